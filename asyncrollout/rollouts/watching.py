"""All who want to know of rollouts as they are played: the ledger, the meter, and the journal if there is one."""

from asyncrollout.journal.run import RunJournal
from asyncrollout.metrics import Meter
from asyncrollout.rollout.progress import Progress
from asyncrollout.rollout.watch import Nobody
from asyncrollout.sampler.ledger import Ledger
from asyncrollout.trajectories import Trajectory


class Watching(Nobody):
    def __init__(self, ledger: Ledger, meter: Meter) -> None:
        self._ledger = ledger
        self._meter = meter

    def dispatched(self, uid: str) -> Progress:
        return self._ledger.dispatched(uid, self._meter.played)

    def failed(self, trajectory: Trajectory) -> None:
        self._ledger.retry(trajectory.uid)
        self._meter.ended(trajectory)

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:  # noqa: ARG002
        self._meter.ended(trajectory)
        return trajectory


class Recording(Watching):
    """With a journal, which knows what was played before."""

    def __init__(self, ledger: Ledger, meter: Meter, journal: RunJournal) -> None:
        super().__init__(ledger, meter)
        self._journal = journal

    def recall(self, uid: str) -> Trajectory | None:
        trajectory = self._journal.recall(uid)
        if trajectory is not None:
            self._ledger.dispatched(uid).begins("")
            self._meter.recalled(trajectory)
        return trajectory

    def retries_used(self, group: str) -> int:
        return self._journal.retries_used(group)

    def is_broken_off(self, uid: str) -> bool:
        return self._journal.is_broken_off(uid)

    def dispatched(self, uid: str) -> Progress:
        self._journal.dispatched(uid)
        return super().dispatched(uid)

    def failed(self, trajectory: Trajectory) -> None:
        self._journal.failed(trajectory)
        super().failed(trajectory)

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:
        return await super().finished(tag, await self._journal.finished(tag, trajectory))
