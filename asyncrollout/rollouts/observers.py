"""Passes on what happens to rollouts, groups and batches: to the ledger, the metrics and the journal."""

from collections.abc import Iterable

from asyncrollout.journal.events import ShardPlace
from asyncrollout.journal.history import RecordedReply
from asyncrollout.journal.run import NullJournal
from asyncrollout.rollouts.episode.observer import RolloutObserver
from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.rollouts.sampling.ledger import Ledger
from asyncrollout.telemetry import MetricsCollector
from asyncrollout.trajectories import DRAWN, Group, Trajectory


class RunObserver(RolloutObserver):
    """Counts and journals; what only the journal needs to know is reported to `journal` itself.

    Evaluations count in the ledger, but in none of the metrics of training.
    """

    def __init__(self, ledger: Ledger, collector: MetricsCollector) -> None:
        self.ledger = ledger
        self.journal = NullJournal()
        self._collector = collector

    def start_journal(self, journal: NullJournal) -> None:
        """Record from now on, and continue the counts of what was recorded before."""
        self.journal = journal
        self._collector.begin_at(journal.past.counters, journal.past.reward_means.values())

    def recall(self, uid: str) -> Trajectory | None:
        trajectory = self.journal.recall(uid)
        if trajectory is not None:
            self._count_recalled(trajectory)
        return trajectory

    def retries_used(self, group: str) -> int:
        return self.journal.retries_used(group)

    def was_interrupted(self, uid: str) -> bool:
        return self.journal.was_interrupted(uid)

    def dispatched(self, uid: str) -> Progress:
        self.journal.dispatched(uid)
        if not uid.startswith(DRAWN):
            return self.ledger.dispatched(uid)
        return self.ledger.dispatched(uid, self._collector.played, self._collector.replied)

    def failed(self, trajectory: Trajectory) -> None:
        self.journal.failed(trajectory)
        self.ledger.retry(trajectory.uid)
        if trajectory.uid.startswith(DRAWN):
            self._collector.failed(trajectory)
        else:
            self._collector.evaluated()

    def recorded_replies(self, uid: str) -> list[RecordedReply]:
        """What a policy has replied in a rollout that an earlier process has begun."""
        return self.journal.recorded_replies(uid)

    def replied(self, line: bytes) -> None:
        """A policy has replied on a shard; `line` is the event."""
        self.journal.replied(line)

    def ended(self, tag: str, trajectory: Trajectory, record: bytes, place: ShardPlace) -> Trajectory:
        """A rollout has ended on a shard, which may have encoded its record; what this returns takes its place."""
        trajectory = self.journal.ended(tag, trajectory, record, place)
        self._count_end(trajectory)
        return trajectory

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:
        trajectory = await self.journal.finished(tag, trajectory)
        self._count_end(trajectory)
        return trajectory

    def judged(self, group: Group, more: int) -> None:
        """A group has its verdict, and so have `more` that were judged with it, which follow."""
        is_counted = group.id in self.journal.past.verdicts
        self.journal.judged(group, more)
        if not is_counted:
            self._collector.judged(group)

    def dropped_stale(self, group: Group) -> None:
        """A group became too old before it was delivered."""
        verdict = self.journal.past.verdicts.get(group.id) if group.verdict is None else group.verdict
        self._collector.dropped_stale(verdict)

    def given_up(self, groups: Iterable[str], *, with_all_recorded: bool) -> None:
        """They will be played again; verdicts of an earlier process on them are void."""
        for verdict, reward in self.journal.given_up(groups, with_all_recorded=with_all_recorded):
            self._collector.revoked(verdict, reward)

    def handed_over(self, groups: list[Group], lag: int, *, is_repeated: bool) -> None:
        """A batch reached its taker; one that `is_repeated` was delivered to an earlier process, too."""
        if is_repeated:  # its groups come from the record, and through no stream
            for group in groups:
                for trajectory in group.trajectories:
                    self._count_recalled(trajectory)
        for group in groups:
            self.ledger.end_group(group, "delivered")
        self._collector.delivered(len(groups), lag)

    def _count_end(self, trajectory: Trajectory) -> None:
        if trajectory.uid.startswith(DRAWN):
            self._collector.ended(trajectory)
        else:
            self._collector.evaluated()

    def _count_recalled(self, trajectory: Trajectory) -> None:
        """The metrics have counted it already."""
        self.ledger.dispatched(trajectory.uid).begins("")
        self._collector.recalled(trajectory.uid)
