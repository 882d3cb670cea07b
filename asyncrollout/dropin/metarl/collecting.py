"""Rollouts for a learner: each env plays its share at its own pace, and what was played goes into the storage."""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import anyio.lowlevel
import msgspec
import numpy as np

from asyncrollout.concurrency import task_group
from asyncrollout.dropin.metarl.acting import AGENT_ARCHS
from asyncrollout.dropin.metarl.agent_rollout import AgentRollout, Steps, Work
from asyncrollout.dropin.metarl.chance import PlayedEnv
from asyncrollout.errors import EnvError
from asyncrollout.protocols import Agent, Playable
from asyncrollout.rollouts.episode.episode import run_rollout
from asyncrollout.seeding import sampling_seed
from asyncrollout.trajectories import Limits, StopReason, Turn

_NO_LIMITS = Limits(invalid=None)  # numeric actions are always readable
_ALONE_SECONDS = 0.05  # between two moments at which a rollout can be cancelled


class RolloutStart(msgspec.Struct, frozen=True):
    """What a rollout begins with."""

    seed: int
    task: Any = None


def drawn_plays(seed: int, first: int, count: int, tasks: Sequence[Any]) -> list[RolloutStart]:
    """Those of the rollouts from number `first` on; the same ones whoever plays them."""
    numbers = range(first, first + count)
    return [
        RolloutStart(
            sampling_seed(seed, "rollout", number),
            tasks[sampling_seed(seed, "task", number) % len(tasks)] if len(tasks) else None,
        )
        for number in numbers
    ]


class CollectedRollout(NamedTuple):
    """A rollout: what was seen, from its start to its end, and of each step the action, its reward, and the goal."""

    seen: np.ndarray[Any, Any]
    actions: np.ndarray[Any, Any]
    rewards: np.ndarray[Any, Any]
    reached: list[bool | None]  # None where the env reports no goal
    terminated: bool
    work: Work


PlayOne = Callable[[Playable, RolloutStart], Awaitable[CollectedRollout]]


async def play_shares(
    envs: Sequence[Playable], plays: Sequence[RolloutStart], play_one: PlayOne
) -> list[CollectedRollout]:
    """Env i of n plays the rollouts i, i + n, i + 2n, ... and waits for no other; the first failure is raised."""
    played: dict[int, CollectedRollout] = {}

    async def play_share(rank: int) -> None:
        for number in range(rank, len(plays), len(envs)):
            played[number] = await play_one(envs[rank], plays[number])

    async with task_group() as tasks:
        for rank in range(min(len(envs), len(plays))):
            tasks.start_soon(play_share, rank)
    return [played[number] for number in range(len(plays))]


async def play_asked(agent: Agent, env: Playable, play: RolloutStart) -> CollectedRollout:
    """A rollout whose agent is asked here, at every step."""
    trajectory = await run_rollout(env, agent, seed=play.seed, task=play.task, limits=_NO_LIMITS)
    if trajectory.error is not None:
        raise trajectory.error
    turns = trajectory.turns
    return CollectedRollout(
        np.stack([turn.observation for turn in turns] + [trajectory.final]),
        np.stack([np.ravel(turn.action) for turn in turns]),
        np.array([turn.reward for turn in turns]),
        [turn.info.get("is_goal_state") for turn in turns],
        trajectory.stop_reason is StopReason.TERMINATED,
        _asked_work(turns),
    )


def _asked_work(turns: Sequence[Turn]) -> Work:
    acted = sum(turn.policy_seconds for turn in turns)
    return Work(acted + sum(turn.env_work_seconds or 0.0 for turn in turns), acted)


async def play_alone(agent: Agent, envs: Sequence[PlayedEnv], plays: Sequence[RolloutStart]) -> list[CollectedRollout]:
    """One rollout after the other, where the event loop runs; env i of n plays the rollouts i, i + n, i + 2n, ..."""
    return [
        await _play_one(AgentRollout(env, agent, play.seed, play.task))
        for env, play in zip(itertools.cycle(envs), plays, strict=False)
    ]


async def _play_one(rollout: AgentRollout) -> CollectedRollout:
    parts: list[Steps] = []
    while not rollout.outcome.done:
        await anyio.lowlevel.checkpoint()  # who never waits could not be cancelled
        parts.append(rollout.play(_ALONE_SECONDS))
    return joined_steps(rollout.start, parts, terminated=rollout.outcome.terminated)


def joined_steps(start: Any, parts: Sequence[Steps], *, terminated: bool) -> CollectedRollout:
    """The rollout of which these are the parts."""
    if not parts:
        raise EnvError("the episode was over at its reset")
    return CollectedRollout(
        np.concatenate([np.asarray(start)[None], *(part.seen for part in parts)]),
        np.concatenate([part.actions for part in parts]),
        np.concatenate([part.rewards for part in parts]),
        [goal for part in parts for goal in part.reached],
        terminated,
        reduce(Work.plus, (part.work for part in parts)),
    )


def store(played: CollectedRollout, storage: Any, arch: AGENT_ARCHS) -> int:
    """Add a rollout to a storage, by steps or as a whole; how often it was at the goal."""
    count = len(played.rewards)
    ends = [False] * (count - 1) + [played.terminated]
    # If an env reports its goal, only that is terminal: the episode continues, and its value ends.
    terminals = np.array([[end if goal is None else goal] for end, goal in zip(ends, played.reached, strict=True)])
    rows = {
        "observation": played.seen[:-1],
        "action": played.actions,
        "reward": played.rewards[:, None],
        "terminal": terminals,
        "next_observation": played.seen[1:],
    }
    if arch is not AGENT_ARCHS.Markov:
        storage.add_episode(**{f"{key}s": values for key, values in rows.items()})
    elif hasattr(storage, "add_samples"):  # all at once: a tenth of the time
        storage.add_samples(**rows)
    else:
        for at in range(count):
            storage.add_sample(**{key: values[at] for key, values in rows.items()})
    return sum(map(bool, played.reached))
