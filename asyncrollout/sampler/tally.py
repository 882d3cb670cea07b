"""What was played, filtered or not: filtering changes what a trainer sees, and this tells what it does not see."""

from collections import Counter

from asyncrollout.trajectories import Group


class Tally:
    """Sums over judged groups, since it was last read."""

    def __init__(self) -> None:
        self._means: dict[str, float] = dict.fromkeys(("mean_reward", "mean_turns", "mean_tokens"), 0.0)
        self._clear()

    def _clear(self) -> None:
        self._groups = self._rollouts = self._failed = self._turns = self._tokens = self._successes = self._told = 0
        self._reward = 0.0
        self._dropped: Counter[str] = Counter()

    def add(self, group: Group) -> None:
        self._groups += 1
        if group.verdict is not None and not group.verdict.keep:
            self._dropped[group.verdict.reason or "dropped"] += 1
        self._failed += len(group.trajectories) - len(group.valid)
        for trajectory in group.valid:
            self._rollouts += 1
            self._reward += trajectory.reward
            self._turns += len(trajectory.turns)
            self._tokens += trajectory.sampled_tokens
            self._told += trajectory.success is not None
            self._successes += trajectory.success or 0

    def read(self) -> dict[str, float]:
        """Counts and means of all groups, dropped ones included; then it begins anew.

        If there were none (a batch may have been ready before), the means are those of last time.
        """
        read: dict[str, float] = {
            "drawn_groups": self._groups,
            "failed_rollouts": self._failed,
            **{f"dropped_{reason}": count for reason, count in sorted(self._dropped.items())},
        }
        if self._rollouts:
            self._means["mean_reward"] = self._reward / self._rollouts
            self._means["mean_turns"] = self._turns / self._rollouts
            self._means["mean_tokens"] = self._tokens / self._rollouts
        if self._told:
            self._means["success_rate"] = self._successes / self._told
        self._clear()
        return {**read, **self._means}
