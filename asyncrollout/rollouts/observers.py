"""All who want to know what is played: the ledger, the meter, and the journal if there is one."""

from collections.abc import Iterable, Mapping
from typing import Any

from asyncrollout.journal.run import RunJournal
from asyncrollout.rollouts.episode.observer import NullObserver
from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.rollouts.sampling.ledger import Ledger
from asyncrollout.rollouts.sampling.task_source import GroupRequest
from asyncrollout.telemetry import MetricsCollector
from asyncrollout.trajectories import DRAWN, EVALUATED, Group, Trajectory


class MetricsObserver(NullObserver):
    """Counts; evaluations in the ledger alone. What is done for a record only, is done by those who keep one."""

    def __init__(self, ledger: Ledger, meter: MetricsCollector) -> None:
        self.ledger = ledger
        self._collector = meter
        self._evaluations = 0

    def dispatched(self, uid: str) -> Progress:
        return self.ledger.dispatched(uid, self._collector.played if uid.startswith(DRAWN) else None)

    def failed(self, trajectory: Trajectory) -> None:
        self.ledger.retry(trajectory.uid)
        self._count(trajectory)

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:  # noqa: ARG002
        self._count(trajectory)
        return trajectory

    def _count(self, trajectory: Trajectory) -> None:
        if trajectory.uid.startswith(DRAWN):
            self._collector.ended(trajectory)
        else:
            self._collector.evaluated()

    def drawn(self, draw: GroupRequest) -> None: ...

    def judged(self, group: Group, more: int) -> None:  # noqa: ARG002
        """A group has its verdict, and so have `more` that were judged with it, which follow."""
        self._collector.judged(group)

    def dropped_stale(self, group: Group) -> None:
        """A group became too old before it was delivered."""
        self._collector.dropped_stale(group)

    def given_up(self, groups: Iterable[str], *, with_all_recorded: bool) -> None:
        """They are not finished, and will be played anew; so will be, if so wished, what nobody has drawn yet."""

    def dropped(self, groups: list[str]) -> None:
        """They led to no batch."""

    def delivered(self, batch: int, groups: list[Group], dropped: list[str], stats: Mapping[str, float]) -> None:
        """A batch is about to be handed over; also what was dropped on the way to it."""

    def taken_back(self, batch: int) -> None:
        """A batch that was recorded as delivered did not come through to its taker."""

    def handed_over(self, groups: list[Group], lag: int, *, is_repeated: bool) -> None:  # noqa: ARG002
        """A batch has its taker; one that `is_repeated` was delivered to an earlier process, too."""
        for group in groups:
            self.ledger.end_group(group, "delivered")
        self._collector.delivered(len(groups), lag)

    def updated(self, weights: int) -> None: ...

    async def flush(self) -> None:
        """What was told so far is on record."""

    def begin_evaluation(self, what: Any, env_kwargs: dict[str, Any], tasks: int, k: int) -> str:  # noqa: ARG002
        """Its name, which no other has; but one that was broken off, and is the same, goes on."""
        name, self._evaluations = f"{EVALUATED}{self._evaluations}", self._evaluations + 1
        return name

    def end_evaluation(self, name: str) -> None: ...


class JournalObserver(MetricsObserver):
    """Also keeps a journal, and knows what was played before."""

    def __init__(self, ledger: Ledger, meter: MetricsCollector, journal: RunJournal) -> None:
        super().__init__(ledger, meter)
        self._journal = journal
        past = journal.past
        meter.begin_at(batches=past.next_batch, delivered=past.delivered, kept=past.kept, dropped=past.dropped)

    def recall(self, uid: str) -> Trajectory | None:
        trajectory = self._journal.recall(uid)
        if trajectory is not None:
            self._recalled(trajectory)
        return trajectory

    def _recalled(self, trajectory: Trajectory) -> None:
        self.ledger.dispatched(trajectory.uid).begins("")
        if trajectory.uid.startswith(DRAWN):
            self._collector.recalled(trajectory)
        else:
            self._collector.evaluated()

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

    def drawn(self, draw: GroupRequest) -> None:
        self._journal.drawn(draw.id, draw.index, draw.seed, draw.tag, draw.task)

    def judged(self, group: Group, more: int) -> None:
        self._journal.judged(group, more)
        super().judged(group, more)

    def given_up(self, groups: Iterable[str], *, with_all_recorded: bool) -> None:
        self._journal.given_up(groups, with_all_recorded=with_all_recorded)

    def dropped(self, groups: list[str]) -> None:
        self._journal.dropped(groups)

    def delivered(self, batch: int, groups: list[Group], dropped: list[str], stats: Mapping[str, float]) -> None:
        self._journal.delivered(batch, groups, dropped, stats)

    def taken_back(self, batch: int) -> None:
        self._journal.taken_back(batch)

    def handed_over(self, groups: list[Group], lag: int, *, is_repeated: bool) -> None:
        if is_repeated:  # its groups come from the record, and through no stream
            for group in groups:
                for trajectory in group.trajectories:
                    self._recalled(trajectory)
                self._collector.judged(group)
        super().handed_over(groups, lag, is_repeated=is_repeated)

    def updated(self, weights: int) -> None:
        self._journal.updated(weights)

    async def flush(self) -> None:
        await self._journal.writer.flush()

    def begin_evaluation(self, what: Any, env_kwargs: dict[str, Any], tasks: int, k: int) -> str:
        return self._journal.begin_evaluation(what, env_kwargs, tasks, k)

    def end_evaluation(self, name: str) -> None:
        self._journal.end_evaluation(name)
