"""All who want to know what is played: the ledger, the meter, and the journal if there is one."""

from collections.abc import Iterable

from asyncrollout.journal.run import RunJournal
from asyncrollout.metrics import Meter
from asyncrollout.rollout.progress import Progress
from asyncrollout.rollout.watch import Nobody
from asyncrollout.sampler.draws import Draw
from asyncrollout.sampler.ledger import Ledger
from asyncrollout.trajectories import Group, Trajectory


class Watching(Nobody):
    """Counts. What is done for a record only, is done by those who keep one."""

    def __init__(self, ledger: Ledger, meter: Meter) -> None:
        self.ledger = ledger
        self._meter = meter
        self._evaluations = 0

    def dispatched(self, uid: str) -> Progress:
        return self.ledger.dispatched(uid, self._meter.played)

    def failed(self, trajectory: Trajectory) -> None:
        self.ledger.retry(trajectory.uid)
        self._meter.ended(trajectory)

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:  # noqa: ARG002
        self._meter.ended(trajectory)
        return trajectory

    def drawn(self, draw: Draw) -> None: ...

    def judged(self, group: Group) -> None:
        self._meter.judged(group)

    def given_up(self, groups: Iterable[str]) -> None:
        """They are not finished, and will be drawn again."""

    async def delivered(self, batch: int, groups: list[Group], lag: int) -> None:  # noqa: ARG002
        self._meter.delivered(len(groups), lag)

    async def updated(self, weights: int) -> None: ...

    def begin_evaluation(self, tasks: int, k: int, seed: int, weights: int) -> str:  # noqa: ARG002
        """Its name, which no other has."""
        name, self._evaluations = f"eval{self._evaluations}", self._evaluations + 1
        return name

    def end_evaluation(self, name: str) -> None: ...


class Recording(Watching):
    """Also keeps a journal, and knows what was played before."""

    def __init__(self, ledger: Ledger, meter: Meter, journal: RunJournal) -> None:
        super().__init__(ledger, meter)
        self._journal = journal
        past = journal.past
        meter.begin_at(batches=past.next_batch, delivered=past.delivered, kept=past.delivered, dropped=past.dropped)

    def recall(self, uid: str) -> Trajectory | None:
        trajectory = self._journal.recall(uid)
        if trajectory is not None:
            self.ledger.dispatched(uid).begins("")
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

    def drawn(self, draw: Draw) -> None:
        self._journal.drawn(draw.id, draw.index, draw.seed, draw.tag, draw.task)

    def judged(self, group: Group) -> None:
        self._journal.judged(group)
        super().judged(group)

    def given_up(self, groups: Iterable[str]) -> None:
        self._journal.cancelled(groups)

    async def delivered(self, batch: int, groups: list[Group], lag: int) -> None:
        await self._journal.delivered(batch, groups)
        await super().delivered(batch, groups, lag)

    async def updated(self, weights: int) -> None:
        await self._journal.updated(weights)

    def begin_evaluation(self, tasks: int, k: int, seed: int, weights: int) -> str:
        return self._journal.begin_evaluation(tasks, k, seed, weights)

    def end_evaluation(self, name: str) -> None:
        self._journal.end_evaluation(name)
