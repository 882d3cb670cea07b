"""Playing an evaluation: each env is a coroutine that goes at its own pace, in its process, with its camera."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from asyncrollout.concurrency import task_group
from asyncrollout.dropin.rlinf.config import Eval
from asyncrollout.dropin.rlinf.plan import EvaluationPlan, PlannedEnv
from asyncrollout.dropin.rlinf.results import EvaluatedEpisode, as_episode
from asyncrollout.errors import JournalError, RolloutError, UsageError
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Agent, Player
from asyncrollout.rollouts.episode.episode import run_rollout
from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.trajectories import Move, Trajectory
from asyncrollout.types import Outcome
from asyncrollout.video import VideoRecorder

_NO_BOUND = 1 << 50  # bytes: whoever asks for a video of each env is to have them all
_EARLIER = "earlier"
_NOT_KEPT = "(not kept)"


@dataclass(frozen=True)
class Manner:
    """How envs are opened and played; `on_step` and `on_episode` are told how it goes."""

    agent: Agent
    text: bool
    expert: bool
    on_step: Callable[[], None]
    on_episode: Callable[[EvaluatedEpisode], None]


async def play(plan: EvaluationPlan, chosen: Eval, manner: Manner) -> list[EvaluatedEpisode]:
    """All episodes, in the order of the envs; a failed one is data, but who asks for what cannot be is told."""
    played: list[list[EvaluatedEpisode]] = [[] for _ in plan.parts]
    pool = EnvPool(
        len(plan.environs),
        step_timeout=chosen.step_timeout,
        reset_timeout=chosen.reset_timeout,
        worker_env=lambda rank: plan.environs[rank],
    )
    async with _recorder(plan, chosen) as recorder, pool, task_group() as tasks:
        stage = _Stage(plan, manner, pool, recorder)
        for part, episodes in zip(plan.parts, played, strict=True):
            tasks.start_soon(stage.play, part, episodes)
    return [episode for episodes in played for episode in episodes]


@dataclass(frozen=True)
class _Stage:
    plan: EvaluationPlan
    manner: Manner
    pool: EnvPool
    recorder: VideoRecorder | None

    async def play(self, part: PlannedEnv, played: list[EvaluatedEpisode]) -> None:
        """The episodes of one env."""
        plan, manner = self.plan, self.manner
        film = None if self.recorder is None else self.recorder.film(part.name)
        how: dict[str, Any] = {"text": manner.text, "expert": manner.expert, "worker": part.process, "record": film}
        try:
            async with self.pool.open(plan.spec, **how, **plan.kwargs) as env:
                for number in range(len(part.seeds)):
                    trajectory = await self._played(env, part, number)
                    played.append(as_episode(part, number, trajectory, video=film is not None))
                    manner.on_episode(played[-1])
        except UsageError:
            raise
        except RolloutError as error:  # the env could not be made
            for number in range(len(played), len(part.seeds)):
                played.append(as_episode(part, number, error, video=False))
                manner.on_episode(played[-1])

    async def _played(self, env: EnvHandle, part: PlannedEnv, number: int) -> Trajectory:
        uid = f"{part.seat.video_id}.{number}"
        return await run_rollout(
            env,
            _Forgetful(self.manner.agent),
            seed=part.seeds[number],
            task=part.tasks[number],
            limits=self.plan.limits,
            uid=uid,
            progress=Progress(uid, lambda _: self.manner.on_step()),
        )


@asynccontextmanager
async def _recorder(plan: EvaluationPlan, chosen: Eval) -> AsyncIterator[VideoRecorder | None]:
    """What films; nothing, and no directory, if no video is to be saved."""
    video = chosen.video_cfg
    if not video.save_video:
        yield None
        return
    directory = Path(video.video_base_dir)
    async with VideoRecorder(
        directory,
        fps=video.fps,
        overlay=video.info_on_video,
        max_encoders=len(plan.parts),
        max_bytes=_NO_BOUND,
    ) as recorder:  # which has made whole by now what one that was killed left behind
        if recorder.is_shared:
            raise UsageError(
                f"another process records videos in {directory}, which have the same names: "
                "choose another directory, env.eval.video_cfg.video_base_dir=DIRECTORY"
            )
        try:
            await anyio.to_thread.run_sync(_set_aside, directory, video.prefix)
        except OSError as error:
            raise JournalError(f"cannot record videos in {directory}: {error.strerror or error}") from error
        yield recorder


def videos_in(directory: Path, prefix: str) -> list[Path]:
    """The videos of an evaluation."""
    return sorted(directory.glob(f"{prefix}_rank*_gpu*_env*.mp4"))


def _set_aside(directory: Path, prefix: str) -> None:
    """Videos of an evaluation before this one go to a directory of their own, so that those here are of this one."""
    before = videos_in(directory, prefix)
    if not before:
        return
    number = 1
    while (aside := directory / f"{_EARLIER}-{number}").exists():
        number += 1
    aside.mkdir()
    for path in before:
        path.rename(aside / path.name)


@dataclass(frozen=True)
class _Forgetful:
    """An agent whose turns go on record without what was seen: pictures of thousands of steps would fill the memory."""

    agent: Agent

    def open(self, session: str, seed: int) -> "_ForgetfulPlayer":
        return _ForgetfulPlayer(self.agent.open(session, seed))


@dataclass(frozen=True)
class _ForgetfulPlayer:
    player: Player

    @property
    def messages(self) -> list[dict[str, object]]:
        return []

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        move = await self.player.act(outcome, tokens_left=tokens_left)
        return msgspec.structs.replace(move, observation=_NOT_KEPT)
