"""Running an evaluation: each env plays at its own pace, in its process, with its video."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from asyncrollout.concurrency import task_group
from asyncrollout.dropin.rlinf.config import Eval
from asyncrollout.dropin.rlinf.plan import EvaluationPlan, PlannedEnv
from asyncrollout.dropin.rlinf.player import EvaluationPlayer
from asyncrollout.dropin.rlinf.results import EvaluatedEpisode, as_episode
from asyncrollout.errors import JournalError, RolloutError, UsageError
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Agent, Player
from asyncrollout.rollouts.episode.episode import run_rollout
from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.trajectories import Limits, Move, Trajectory
from asyncrollout.types import Outcome
from asyncrollout.video import VideoRecorder

_NO_BOUND = 1 << 50  # bytes: an evaluation keeps a video of every env
_EARLIER = "earlier"
_NOT_KEPT = "(not kept)"


async def run_plan(
    plan: EvaluationPlan,
    chosen: Eval,
    player: EvaluationPlayer,
    *,
    on_step: Callable[[], None] = lambda: None,
    on_episode: Callable[[EvaluatedEpisode], None] = lambda _: None,
) -> list[EvaluatedEpisode]:
    """All episodes, in the order of the envs; a failed one is data, misuse is raised."""
    played: list[list[EvaluatedEpisode]] = [[] for _ in plan.envs]
    pool = EnvPool(
        len(plan.environs),
        step_timeout=chosen.step_timeout,
        reset_timeout=chosen.reset_timeout,
        worker_env=lambda rank: plan.environs[rank],
    )
    async with _recorder(plan, chosen) as recorder, pool, task_group() as tasks:
        run = _Run(plan, player, pool, recorder, on_step, on_episode)
        for planned, episodes in zip(plan.envs, played, strict=True):
            tasks.start_soon(run.play, planned, episodes)
    every = [episode for episodes in played for episode in episodes]
    return await anyio.to_thread.run_sync(with_videos, every, Path(chosen.video_cfg.video_base_dir))


@dataclass(frozen=True)
class _Run:
    plan: EvaluationPlan
    player: EvaluationPlayer
    pool: EnvPool
    recorder: VideoRecorder | None
    on_step: Callable[[], None]
    on_episode: Callable[[EvaluatedEpisode], None]

    async def play(self, planned: PlannedEnv, played: list[EvaluatedEpisode]) -> None:
        """The episodes of one env."""
        record = None if self.recorder is None else self.recorder.record(planned.name)
        how: dict[str, Any] = {"text": self.player.text, "expert": self.player.expert, "worker": planned.process}
        kwargs, limits = self.plan.bounded(text=self.player.text)
        try:
            async with self.pool.open(self.plan.spec, record=record, **how, **kwargs) as env:
                for number in range(len(planned.seeds)):
                    trajectory = await self._played(env, planned, number, limits)
                    is_recorded = record is not None
                    played.append(as_episode(planned, number, trajectory, text=self.player.text, video=is_recorded))
                    self.on_episode(played[-1])
        except UsageError:
            raise
        except RolloutError as error:  # the env could not be made
            for number in range(len(played), len(planned.seeds)):
                played.append(as_episode(planned, number, error, text=self.player.text, video=False))
                self.on_episode(played[-1])

    async def _played(self, env: EnvHandle, planned: PlannedEnv, number: int, limits: Limits) -> Trajectory:
        uid = f"{planned.slot.video_id}.{number}"
        return await run_rollout(
            env,
            _DropObservations(self.player.agent),
            seed=planned.seeds[number],
            task=planned.tasks[number],
            limits=limits,
            uid=uid,
            progress=Progress(uid, lambda _: self.on_step()),
        )


@asynccontextmanager
async def _recorder(plan: EvaluationPlan, chosen: Eval) -> AsyncIterator[VideoRecorder | None]:
    """Records the videos; None, and no directory, if none are saved."""
    video = chosen.video_cfg
    if not video.save_video:
        yield None
        return
    directory = Path(video.video_base_dir)
    async with VideoRecorder(
        directory,
        fps=video.fps,
        overlay=video.info_on_video,
        max_encoders=len(plan.envs),
        max_bytes=_NO_BOUND,
    ) as recorder:  # by now it has completed what a killed one left behind
        if recorder.is_shared:
            raise UsageError(
                f"another process records videos of the same names in {directory}: "
                "choose another directory, env.eval.video_cfg.video_base_dir=DIRECTORY"
            )
        try:
            await anyio.to_thread.run_sync(_set_aside, directory, video.prefix)
        except OSError as error:
            raise JournalError(f"cannot record videos in {directory}: {error.strerror or error}") from error
        yield recorder


def with_videos(episodes: Sequence[EvaluatedEpisode], directory: Path) -> list[EvaluatedEpisode]:
    """The episodes, without the names of videos that were not made: an env without a picture has none."""
    return [
        msgspec.structs.replace(one, video=None) if one.video and not (directory / one.video).exists() else one
        for one in episodes
    ]


def videos_in(directory: Path, prefix: str) -> list[Path]:
    """The videos of an evaluation."""
    return sorted(directory.glob(f"{prefix}_rank*_gpu*_env*.mp4"))


def _set_aside(directory: Path, prefix: str) -> None:
    """Move the videos of an earlier evaluation to a directory of their own."""
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
class _DropObservations:
    """An agent whose turns are recorded without observations: images of thousands of steps would fill the memory."""

    agent: Agent

    def open(self, session: str, seed: int) -> "_DroppingPlayer":
        return _DroppingPlayer(self.agent.open(session, seed))


@dataclass(frozen=True)
class _DroppingPlayer:
    player: Player

    @property
    def messages(self) -> list[dict[str, object]]:
        return []

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        move = await self.player.act(outcome, tokens_left=tokens_left)
        return msgspec.structs.replace(move, observation=_NOT_KEPT)
