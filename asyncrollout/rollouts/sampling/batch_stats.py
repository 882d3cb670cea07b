"""Statistics of all that was played, kept or not: they show what a filter hides from the trainer."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from asyncrollout.successes import Successes, result_of
from asyncrollout.trajectories import Group

_STALE = "stale"


@dataclass
class BatchSums:
    """Sums over groups that were judged or dropped as stale, and over their members that have an outcome."""

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
    """The sums since they were last taken, and their means."""

    def __init__(self) -> None:
        self._means: dict[str, float] = dict.fromkeys(("mean_reward", "mean_turns", "mean_tokens"), 0.0)
        self._sums = BatchSums()
        self.stale_groups = 0
        """Over the whole run."""

    def add(self, group: Group) -> None:
        """Count a judged group."""
        self._sums.add(group)

    def add_stale(self, group: Group) -> None:
        """Count a stale group; one that was not judged before counts as played, too."""
        if group.verdict is None:
            self._sums.add(group)
        self.stale_groups += 1
        self._sums.dropped[_STALE] += 1

    def take(self) -> BatchSums:
        """The sums so far; then they start at zero again."""
        sums, self._sums = self._sums, BatchSums()
        return sums

    def restore(self, sums: BatchSums) -> None:
        """Give back the sums of a batch that was not delivered; they count for the next one."""
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
