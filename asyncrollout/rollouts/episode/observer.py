"""What a group reports of its rollouts, and asks about those that an earlier process has played."""

from typing import Protocol

from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.trajectories import Trajectory


class RolloutObserver(Protocol):
    """Hears of all members of a group. Those who subclass it override what they care about."""

    def recall(self, uid: str) -> Trajectory | None:  # noqa: ARG002
        """The rollout, if an earlier process has finished it."""
        return None

    def retries_used(self, group: str) -> int:  # noqa: ARG002
        """By an earlier process."""
        return 0

    def is_broken_off(self, uid: str) -> bool:  # noqa: ARG002
        """Whether an earlier process had begun it."""
        return False

    def dispatched(self, uid: str) -> Progress:
        """It begins."""
        return Progress(uid)

    def failed(self, trajectory: Trajectory) -> None:  # noqa: ARG002
        """It will be played again."""
        return

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:  # noqa: ARG002
        """It has ended, and stays as it is returned."""
        return trajectory


class NullObserver(RolloutObserver):
    """Observes nothing, and knows nothing of earlier processes."""
