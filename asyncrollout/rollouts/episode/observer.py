"""Who wants to know of each rollout, and may know of some already."""

from typing import Protocol

from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.trajectories import Trajectory


class RolloutObserver(Protocol):
    """Told of all members of a group; an earlier process is one whose run is resumed."""

    def recall(self, uid: str) -> Trajectory | None:
        """The rollout, if an earlier process has finished it."""

    def retries_used(self, group: str) -> int:
        """By an earlier process."""

    def is_broken_off(self, uid: str) -> bool:
        """Whether an earlier process had begun it."""

    def dispatched(self, uid: str) -> Progress: ...

    def failed(self, trajectory: Trajectory) -> None:
        """It will be played again."""

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:
        """It has come to its end, and stays as it is given back."""


class NullObserver:
    """Watches nothing, and knows of nothing."""

    def recall(self, _uid: str) -> Trajectory | None: ...

    def retries_used(self, _group: str) -> int:
        return 0

    def is_broken_off(self, _uid: str) -> bool:
        return False

    def dispatched(self, uid: str) -> Progress:
        return Progress(uid)

    def failed(self, trajectory: Trajectory) -> None: ...

    async def finished(self, _tag: str, trajectory: Trajectory) -> Trajectory:
        return trajectory
