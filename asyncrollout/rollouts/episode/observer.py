"""What a group reports about its rollouts, and asks about those that an earlier process has played."""

from typing import Protocol

from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.trajectories import Trajectory


class RolloutObserver(Protocol):
    """Is notified of all members of a group. Subclasses override what they need."""

    def recall(self, uid: str) -> Trajectory | None:  # noqa: ARG002
        """The rollout, if an earlier process has finished it."""
        return None

    def retries_used(self, group: str) -> int:  # noqa: ARG002
        """How many retries of a group an earlier process has used."""
        return 0

    def was_interrupted(self, uid: str) -> bool:  # noqa: ARG002
        """Whether it was in flight when the run was interrupted."""
        return False

    def dispatched(self, uid: str) -> Progress:
        """A rollout starts."""
        return Progress(uid)

    def failed(self, trajectory: Trajectory) -> None:  # noqa: ARG002
        """A rollout failed, and will be played again."""
        return

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:  # noqa: ARG002
        """A rollout has ended; what this returns takes its place."""
        return trajectory


class NullObserver(RolloutObserver):
    """Observes nothing, and knows nothing of earlier processes."""
