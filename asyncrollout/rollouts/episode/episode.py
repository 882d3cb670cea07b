"""One episode, from its seed to its trajectory."""

import math
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from asyncrollout import validation
from asyncrollout.errors import (
    ContextError,
    EnvCrashed,
    EnvError,
    JournalError,
    LimitError,
    PoolError,
    ProviderError,
    RolloutError,
    UsageError,
)
from asyncrollout.policies.holding import Deadline, rollout_clock
from asyncrollout.policies.replays import NotedReplies
from asyncrollout.policies.versions import NotedVersions
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Agent, Playable, Player
from asyncrollout.registry import EnvSpec
from asyncrollout.rollouts.episode.progress import POLICY, RESET, STEP, Progress
from asyncrollout.telemetry.tracing import begin_episode
from asyncrollout.trajectories import Limits, Move, StopReason, Trajectory, Turn, as_turn, finished
from asyncrollout.types import Outcome, total_reward
from asyncrollout.video.recording import VideoRecording

_NO_LIMITS = Limits()


class Episode(Protocol):
    """One member of a group, ready to be played: all that a group needs to know about any kind of episode."""

    async def play(self, uid: str, progress: Progress) -> Trajectory:
        """Play it. A failure ends up on the trajectory; cancellation passes."""


@dataclass(frozen=True, kw_only=True)
class EnvEpisode:
    """An agent plays an env of the pool, which is opened for this episode alone."""

    pool: EnvPool
    spec: EnvSpec
    env_kwargs: Mapping[str, Any]
    agent: Agent
    seed: int
    task: Any
    member: int
    sampling_seed: int
    limits: Limits
    recording: VideoRecording | None = None
    is_lost: bool = False
    """Whether an earlier process was within it, and its env cannot be brought back there."""

    async def play(self, uid: str, progress: Progress) -> Trajectory:
        progress.begins("its env")
        try:
            if self.is_lost:
                raise EnvCrashed(
                    f"env {self.spec.name!r} ({uid}) was interrupted within an episode, and is not replayable"
                )
            async with self.pool.open(self.spec, record=self.recording, **self.env_kwargs) as env:
                return await run_rollout(
                    env,
                    self.agent,
                    seed=self.seed,
                    task=self.task,
                    limits=self.limits,
                    member=self.member,
                    uid=uid,
                    sampling_seed=self.sampling_seed,
                    progress=progress,
                )
        except EnvError as error:  # it could not be opened, or closed
            failed = as_data(error, self.spec.name, self.seed, 0)
            return Trajectory(
                uid, self.spec.name, self.seed, [], 0.0, StopReason.ENV_ERROR, failed, self.member, self.task
            )


async def run_rollout(
    env: Playable,
    agent: Agent,
    *,
    seed: int,
    task: Any = None,
    limits: Limits = _NO_LIMITS,
    member: int = 0,
    uid: str | None = None,
    sampling_seed: int | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    """Play one episode. A failure of the env or the policy ends up on the trajectory; cancellation passes.

    `member` and `sampling_seed` are what differs between rollouts of one seed; `progress` follows it.
    """
    seed, member = validation.check_int("seed", seed, 0), validation.check_int("member", member, 0)
    uid = f"{env.name}-{seed}.{member}" if uid is None else uid
    progress = Progress(uid) if progress is None else progress
    player = agent.open(uid, seed if sampling_seed is None else sampling_seed)
    play = partial(_play, uid=uid, seed=seed, task=task, member=member, limits=limits, progress=progress)
    if (span := begin_episode(uid, env.name, seed, member)) is None:
        return await play(env, player)
    with span.current:
        return span.ended(await play(span.env(env), span.player(player)))


async def _play(
    env: Playable, player: Player, *, uid: str, seed: int, task: Any, member: int, limits: Limits, progress: Progress
) -> Trajectory:
    turns: list[Turn] = []
    sampled = 0  # tokens
    earlier = 0.0  # seconds that replies from the record took when they were sampled
    outcome: Outcome | None = None
    stop = StopReason.SECONDS
    error: RolloutError | None = None
    began = time.monotonic()
    with rollout_clock() as held, Deadline(limits.seconds, held.seconds) as deadline:
        try:
            progress.begins(RESET)
            outcome = await env.reset(seed=seed, task=task, member=member)
            while (ended := finished(outcome, turns, limits, sampled)) is None:
                asked = progress.begins(POLICY)
                left = None if limits.tokens is None else limits.tokens - sampled
                with NotedVersions() as versions, NotedReplies() as replies:
                    move = await _act(player, outcome, left)
                spoken = _place_of_reply(player.messages)
                acted = progress.begins(STEP)
                policy_seconds = replies.seconds(acted - asked)
                earlier += max(policy_seconds - (acted - asked), 0.0)
                if not replies.replayed:
                    progress.replied(move.generation, policy_seconds)
                came = await env.step(move.action)
                if not math.isfinite(came.reward):
                    raise EnvError(f"env {env.name!r} ({uid}, seed {seed}, turn {len(turns)}): reward {came.reward}")
                env_seconds, worked = time.monotonic() - acted, env.worked
                if worked is not None:
                    held.add(max(env_seconds - worked, 0.0))  # the rest was a queue of ours
                turn = as_turn(
                    outcome,
                    move,
                    came,
                    policy_seconds=policy_seconds,
                    env_seconds=env_seconds,
                    env_work_seconds=worked,
                    message=spoken,
                    oldest_version=min(versions, default=None),
                    replayed=replies.replayed,
                )
                turns.append(turn)
                sampled += turn.sampled_tokens
                outcome = came
                progress.played(turn)
            if not turns:
                raise EnvError(f"env {env.name!r} ({uid}, seed {seed}): the episode was over at its reset")
            stop = ended
        except ContextError as failed:
            stop, error = (StopReason.TOKENS, None) if turns else (StopReason.POLICY_ERROR, failed)
        except EnvError as failed:
            stop, error = StopReason.ENV_ERROR, failed
        except ProviderError as failed:
            stop, error = StopReason.POLICY_ERROR, failed
    if deadline.expired:
        error = LimitError(f"not finished within {limits.seconds:g} s: {progress}")
    progress.begins("")
    reward = total_reward((turn.reward, turn.info) for turn in turns)
    if error is None and not math.isfinite(reward):
        stop, error = (
            StopReason.ENV_ERROR,
            EnvError(f"env {env.name!r} ({uid}, seed {seed}): its rewards add up to {reward}"),
        )
    return Trajectory(
        uid=uid,
        env=env.name,
        seed=seed,
        turns=turns,
        reward=reward,
        stop_reason=stop,
        error=error and as_data(error, env.name, seed, len(turns)),
        member=member,
        task=task,
        messages=player.messages,
        final=None if outcome is None else outcome.observation,
        seconds=time.monotonic() - began + earlier,
    )


async def _act(player: Player, outcome: Outcome, tokens_left: int | None) -> Move:
    """The player's move; anything else that a policy or an agent raises is a failure of this rollout alone."""
    try:
        return _checked(await player.act(outcome, tokens_left=tokens_left), player)
    except (ProviderError, EnvError, PoolError, JournalError, UsageError):
        raise
    except Exception as error:
        failed = ProviderError(f"the policy raised {type(error).__name__}: {error}")
        failed.add_note("".join(traceback.format_exception(error)))
        raise failed from error


def _place_of_reply(messages: list[dict[str, Any]]) -> int:
    """Where an agent has just put its reply; examples in its prompt are replies, too, but not of this episode."""
    last = messages[-1] if messages else None
    return len(messages) - 1 if isinstance(last, dict) and last.get("role") == "assistant" else -1


def _checked(move: Any, player: Player) -> Move:
    if not isinstance(move, Move):
        raise UsageError(f"{type(player).__name__}.act() must return a Move, not {move!r:.100}")
    return move


def as_data(error: RolloutError, env: str, seed: int, turn: int) -> RolloutError:
    """An error for the record: with its place, and without frames that would keep the episode's objects alive."""
    error.env = env if error.env is None else error.env
    error.seed = seed if error.seed is None else error.seed
    error.turn = turn if error.turn is None else error.turn
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
