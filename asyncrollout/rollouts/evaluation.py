"""How good a policy is: rewards and successes over tasks, each played several times."""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec

from asyncrollout.errors import UsageError, like
from asyncrollout.stats import average, pass_at
from asyncrollout.successes import succeeded
from asyncrollout.trajectories import Group, Trajectory


class Evaluation(msgspec.Struct, frozen=True):
    """Groups of `k` rollouts, one group for each task. Rollouts that failed are left out of all numbers."""

    k: int
    groups: list[Group]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def failed(self) -> int:
        return sum(not trajectory.valid for trajectory in self.trajectories)

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions of the weights that played: more than one if they were updated meanwhile."""
        return tuple(sorted({version for one in self.trajectories for version in versions_of(one)}))

    @property
    def mean_reward(self) -> float:
        """The mean over tasks of the mean over each task's rollouts."""
        return _mean([average([one.reward for one in group.completed]) for group in self.groups if group.completed])

    @property
    def success_rate(self) -> float:
        return self.pass_at(1)

    def pass_at(self, k: int) -> float:
        """The unbiased estimate, averaged over tasks, of the chance that at least one of `k` rollouts succeeds.

        A rollout succeeds if its env reports `success`. If the env reports it for any rollout, one that was cut off
        without a report is not a success; if it never does, a reward above 0 counts. Tasks with fewer than `k` valid
        rollouts are left out.
        """
        if not 1 <= k <= self.k:
            raise UsageError(f"pass@{k} of {self.k} rollouts for each task: k must be from 1 to {self.k}")
        won = succeeded(self.trajectories)
        return _mean([_pass_at(group.completed, won, k) for group in self.groups if len(group.completed) >= k])

    def summary(self) -> dict[str, float]:
        figures = {"tasks": len(self.groups), "failed": self.failed, "mean_reward": self.mean_reward}
        return {**figures, "pass@1": self.pass_at(1), f"pass@{self.k}": self.pass_at(self.k)}


def versions_of(trajectory: Trajectory) -> set[int]:
    """The versions of the weights that played it."""
    return {version for turn in trajectory.turns for version in turn.learning_versions}


def checked(evaluation: Evaluation) -> Evaluation:
    """An evaluation in which every rollout failed is an error."""
    trajectories = evaluation.trajectories
    if evaluation.failed == len(trajectories):
        error = trajectories[0].error
        assert error is not None
        raise like(error, f"all {len(trajectories)} rollouts failed; the first one: {type(error).__name__}: {error}")
    return evaluation


def _pass_at(members: Sequence[Trajectory], won: AbstractSet[str], k: int) -> float:
    return pass_at(len(members), sum(member.uid in won for member in members), k)


def _mean(values: list[float]) -> float:
    return average(values) if values else math.nan
