"""What was played, filtered or not: filtering changes what a trainer sees, and this tells what it does not see."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from asyncrollout.successes import Successes, result_of
from asyncrollout.trajectories import Group

_STALE = "stale"


@dataclass
class BatchSums:
    """Of groups that were judged or dropped as stale, and of their members that have an outcome."""

    groups: int = 0
    failed: int = 0
    rollouts: int = 0
    reward: float = 0.0
    turns: int = 0
    tokens: int = 0
    successes: Successes = field(default_factory=Successes)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, group: Group) -> None:
        self.groups += 1
        if group.verdict is not None and not group.verdict.keep:
            self.dropped[group.verdict.reason or "dropped"] += 1
        self.failed += len(group.trajectories) - len(group.completed)
        for trajectory in group.completed:
            self.rollouts += 1
            self.reward += trajectory.reward
            self.turns += len(trajectory.turns)
            self.tokens += trajectory.sampled_tokens
            self.successes.add(result_of(trajectory))

    def merge(self, other: Self) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class BatchStats:
    """Sums since they were last taken."""

    def __init__(self) -> None:
        self._means: dict[str, float] = dict.fromkeys(("mean_reward", "mean_turns", "mean_tokens"), 0.0)
        self._sums = BatchSums()

    def add(self, group: Group) -> None:
        """A group was judged."""
        self._sums.add(group)

    def add_stale(self, group: Group) -> None:
        """A group became stale; one that was not judged before counts as played, too."""
        if group.verdict is None:
            self._sums.add(group)
        self._sums.dropped[_STALE] += 1

    def take(self) -> BatchSums:
        """What has come together; then it begins anew."""
        sums, self._sums = self._sums, BatchSums()
        return sums

    def restore(self, sums: BatchSums) -> None:
        """Sums whose batch nobody had: they are part of the next one's."""
        self._sums.merge(sums)

    def figures(self, sums: BatchSums) -> dict[str, float]:
        """Counts and means of all groups, dropped ones included.

        If there were none (a batch may have been ready before), the means are those of last time.
        """
        counts: dict[str, float] = {
            "drawn_groups": sums.groups,
            "failed_rollouts": sums.failed,
            **{f"dropped_{reason}": count for reason, count in sorted(sums.dropped.items())},
        }
        if sums.rollouts:
            self._means["mean_reward"] = sums.reward / sums.rollouts
            self._means["mean_turns"] = sums.turns / sums.rollouts
            self._means["mean_tokens"] = sums.tokens / sums.rollouts
        if sums.successes.rate is not None:
            self._means["success_rate"] = sums.successes.rate
        return {**counts, **self._means}
