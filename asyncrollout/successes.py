"""Which rollouts succeeded: what an env reports of one of them is known only from all that was played of it."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Self

from asyncrollout.trajectories import StopReason, Trajectory

_OWN_ENDS = (StopReason.TERMINATED, StopReason.TRUNCATED)


class RolloutResult(NamedTuple):
    """What decides on one rollout: `success` as its env reported it, or None; `ended` if the env itself ended it."""

    env: str
    success: bool | None
    ended: bool
    reward: float


def result_of(trajectory: Trajectory) -> RolloutResult:
    ended = trajectory.stop_reason in _OWN_ENDS
    return RolloutResult(trajectory.env, reported(trajectory), ended, trajectory.reward)


def reported(trajectory: Trajectory) -> bool | None:
    """What the env reported; None if it never did. What an invalid reply's info says is not the env's."""
    success = trajectory.success
    if success is None or any(turn.valid and turn.info.get("success") is not None for turn in trajectory.turns[::-1]):
        return success
    return None


class Successes:
    """Decides for each env, over all of its rollouts that have an outcome.

    If the env reports `success` in any of them, one without a report is no success: it was cut off before its end. A
    reward above 0 counts only if the env has ended an episode, and has never reported.
    """

    def __init__(self, rollouts: Iterable[RolloutResult] = ()) -> None:
        self._count: Counter[str] = Counter()
        self._reports: Counter[str] = Counter()
        self._wins: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()
        for told in rollouts:
            self.add(told)

    def add(self, told: RolloutResult) -> None:
        self._count[told.env] += 1
        self._ends[told.env] += told.ended
        if told.success is not None:
            self._reports[told.env] += 1
            self._wins[told.env] += told.success

    def __add__(self, other: Self) -> Self:
        added = type(self)()
        for name, counts in vars(self).items():
            setattr(added, name, counts + getattr(other, name))
        return added

    def succeeded(self, told: RolloutResult) -> bool:
        if told.success is not None:
            return told.success
        is_silent = self._ends[told.env] > 0 and not self._reports[told.env]
        return is_silent and told.reward > 0

    @property
    def rate(self) -> float | None:
        """The share that succeeded, of all rollouts whose env reports; None if none does."""
        rollouts = sum(self._count[env] for env in self._reports)
        return sum(self._wins.values()) / rollouts if rollouts else None


def succeeded(trajectories: Iterable[Trajectory]) -> set[str]:
    """The uids of those that did."""
    told = {one.uid: result_of(one) for one in trajectories if one.valid}
    found = Successes(told.values())
    return {uid for uid, one in told.items() if found.succeeded(one)}
