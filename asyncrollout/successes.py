"""Which rollouts succeeded: whether an env reports success at all is known only from all of its rollouts."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Self

from asyncrollout.trajectories import StopReason, Trajectory

OWN_ENDS = (StopReason.TERMINATED, StopReason.TRUNCATED)
"""The env itself ended the episode."""


class RolloutResult(NamedTuple):
    """What decides about a rollout: `success` as its env reported it, or None; `ended` if the env itself ended it."""

    env: str
    success: bool | None
    ended: bool
    reward: float


def result_of(trajectory: Trajectory) -> RolloutResult:
    ended = trajectory.stop_reason in OWN_ENDS
    return RolloutResult(trajectory.env, reported(trajectory), ended, trajectory.reward)


def reported(trajectory: Trajectory) -> bool | None:
    """What the env reported, or None; the info of an invalid reply is not the env's."""
    success = trajectory.success
    if success is None or any(turn.valid and turn.info.get("success") is not None for turn in trajectory.turns[::-1]):
        return success
    return None


class Successes:
    """Decides for each env, over all of its rollouts that have an outcome.

    If the env reports `success` in any of them, one without a report failed: it was cut off. A reward above 0 counts
    as success only if the env has ended an episode, and has never reported.
    """

    def __init__(self, rollouts: Iterable[RolloutResult] = ()) -> None:
        self._count: Counter[str] = Counter()
        self._reports: Counter[str] = Counter()
        self._wins: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()
        for result in rollouts:
            self.add(result)

    def add(self, result: RolloutResult) -> None:
        self._count[result.env] += 1
        self._ends[result.env] += result.ended
        if result.success is not None:
            self._reports[result.env] += 1
            self._wins[result.env] += result.success

    def __add__(self, other: Self) -> Self:
        added = type(self)()
        for name, counts in vars(self).items():
            setattr(added, name, counts + getattr(other, name))
        return added

    def succeeded(self, result: RolloutResult) -> bool:
        if result.success is not None:
            return result.success
        is_silent = self._ends[result.env] > 0 and not self._reports[result.env]
        return is_silent and result.reward > 0

    @property
    def rate(self) -> float | None:
        """The share that succeeded, over all rollouts of envs that report; None if none does."""
        rollouts = sum(self._count[env] for env in self._reports)
        return sum(self._wins.values()) / rollouts if rollouts else None


def succeeded(trajectories: Iterable[Trajectory]) -> set[str]:
    """The uids of those that succeeded."""
    results = {one.uid: result_of(one) for one in trajectories if one.valid}
    found = Successes(results.values())
    return {uid for uid, one in results.items() if found.succeeded(one)}
