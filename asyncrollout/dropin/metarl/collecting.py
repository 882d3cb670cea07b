"""Rollouts for a learner: each env plays its share at its own pace, and what was played goes into the storage."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import anyio.lowlevel
import msgspec
import numpy as np

from asyncrollout.concurrency import task_group
from asyncrollout.dropin.metarl.acting import AGENT_ARCHS
from asyncrollout.dropin.metarl.serving import MetaEnv
from asyncrollout.pool.wire.codec import detach
from asyncrollout.protocols import Agent, Playable
from asyncrollout.rollouts.episode.episode import run_rollout
from asyncrollout.seeding import sampling_seed
from asyncrollout.trajectories import Limits, StopReason
from asyncrollout.types import Outcome

_NO_LIMITS = Limits(invalid=None)  # actions of numbers are none that could not be read


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


class LocalEnv:
    """A learner's own env, to be played where the event loop runs."""

    worked: float | None = None

    def __init__(self, env: Any) -> None:
        self.name = type(env).__name__
        self._env = MetaEnv(env)

    async def reset(self, *, seed: int, task: Any, member: int) -> Outcome:  # noqa: ARG002
        observation, info = self._env.reset(seed=seed, options=None if task is None else {"task": task})
        return Outcome(detach(observation), info=info)

    async def step(self, action: Any) -> Outcome:
        await anyio.lowlevel.checkpoint()  # who never waits could not be cancelled
        observation, reward, terminated, truncated, info = self._env.step(detach(action))
        return Outcome(detach(observation), reward, terminated, truncated, info)  # as from a worker: nobody else's


class CollectedRollout(NamedTuple):
    """A rollout: what was seen, from its start to its end, and of each step the action, its reward, and the goal."""

    seen: np.ndarray[Any, Any]
    actions: np.ndarray[Any, Any]
    rewards: np.ndarray[Any, Any]
    reached: list[bool | None]  # None where the env tells no goal
    terminated: bool


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
