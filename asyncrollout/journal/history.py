"""The state from which an interrupted run resumes, rebuilt from its journal.

`RunHistory` and `recorded_run.RecordedRun` (for reports and records) read the same events, and give each the same
meaning:

| event | effect |
|---|---|
| began | the settings are those given now; nothing is in flight; a round of verdicts that is not complete is void. If agent or policy have changed, groups that are not finished count as cancelled. From `batch` on, nothing has been delivered: what was, is delivered again as it was |
| drawn | the group exists, with its seed, tag and task |
| dispatched | the rollout is in flight; a second time in one process, it starts over, and what was recorded of it is void; after a resume, it continues |
| turn | one more reply of a rollout in flight |
| failed | the rollout will start over; its replies are void, and the group has used one retry |
| finished | the rollout is over, and its record is in the other file. A record without this event counts the same: the process was killed in between |
| cancelled | nothing of the group counts any more, its verdict included; it is drawn again |
| judged | a verdict, once the other verdicts of its round (`more`) are there |
| delivered | the batch is delivered, its groups and those dropped on the way to it are settled |
| taken_back | the batch was not delivered after all; a batch that was delivered before the last resume is delivered again as it was, another one's groups come in a later batch |
| dropped | the groups are settled without a batch |
| weights | replies are by these weights from here on |
| evaluating | the evaluation begins, or continues |
| evaluated | the evaluation is complete |
"""  # noqa: E501

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from asyncrollout.batches.batch_json import decode_record, located_at
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.counts import EventCounter, count_verdicts
from asyncrollout.journal.events import (
    AnyEvent,
    Began,
    Cancelled,
    Delivered,
    Dispatched,
    Drawn,
    Dropped,
    Evaluated,
    Evaluating,
    Failed,
    Finished,
    Judged,
    Replied,
    TakenBack,
    Updated,
    VerdictRound,
    end_of,
)
from asyncrollout.journal.files import JournalLine, read_events, read_head, whole_lines
from asyncrollout.journal.group_numbers import GroupNumbers, number_of, unfinished
from asyncrollout.journal.settings import changes
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.serialization import to_plain
from asyncrollout.telemetry import RunCounters
from asyncrollout.trajectories import DRAWN, Group, Trajectory, Verdict, group_of


class RecordedReply(NamedTuple):
    """A recorded reply, not decoded yet, and digests of what it replies to: of the last message, and of everything.

    `policy` is which one of the agent's policies has replied, `oldest_version` and `seconds` as in `Replied`.
    """

    turn: int
    asked: int
    content: msgspec.Raw
    request: int | None = None
    policy: int = 0
    oldest_version: int | None = None
    seconds: float | None = None


def recorded_reply(event: Replied) -> RecordedReply:
    policy = 0 if event.policy is msgspec.UNSET else event.policy
    oldest = None if event.oldest_version is msgspec.UNSET else event.oldest_version
    took = None if event.seconds is msgspec.UNSET else event.seconds
    return RecordedReply(event.turn, event.asked, event.reply, event.request, policy, oldest, took)


class RedeliveredBatch(NamedTuple):
    """A batch that was delivered, and is to be delivered again as it was."""

    batch: int
    groups: list[Group]
    dropped: list[str]
    stats: dict[str, float]


class SettledGroup(NamedTuple):
    """A group that needs no further work; a stale one may have no verdict."""

    tag: str
    verdict: Verdict | None
    is_delivered: bool


class _DeliveredBatch(NamedTuple):
    delivered: Delivered
    weights: int | None
    is_repeated: bool


class RunHistory:
    """Which groups are settled, the finished rollouts of all others, and the replies of those in flight."""

    def __init__(self) -> None:
        self.attempts = 0
        self.has_spread_seeds = False
        """Whether an older version began the run: then envs keep getting their seeds as they did."""
        self.given: dict[str, Any] = {}
        self.drawn: dict[int, Drawn] = {}
        self.settled = GroupNumbers()
        """Numbers of groups that need no further work: delivered, or dropped."""
        self.settled_groups: list[SettledGroup] = []
        self.judged_at: dict[str, int] = {}
        """How many groups had been drawn when a group was first judged."""
        self.counters = RunCounters()
        """What the whole run has counted so far; batches, and groups delivered, without those to deliver again."""
        self.reward_means: dict[str, float] = {}
        """Of judged groups, in that order."""
        self._events = EventCounter()
        self._delivered = 0
        self._dropped: set[str] = set()
        self.redelivered: list[RedeliveredBatch] = []
        self.finished: dict[str, Trajectory] = {}
        self.unlogged: list[Finished] = []
        """Finished rollouts without an event: the process was killed in between."""
        self.undrawn: list[Drawn] = []
        """The draws of their groups, if those have no event either."""
        self.replies: defaultdict[str, list[RecordedReply]] = defaultdict(list)
        self.verdicts: dict[str, Verdict] = {}
        self._partial_round = VerdictRound()
        self.retries: Counter[str] = Counter()
        self.weights: int | None = None
        self.evaluations = 0
        self.evaluating: dict[str, Evaluating] = {}
        self.next_batch = 0
        """The first batch that is still to be delivered, or to be delivered again."""
        self._batches: list[_DeliveredBatch] = []
        self._redelivered: list[Delivered] = []
        self._skipped: set[str] = set()
        self._members: defaultdict[str, set[str]] = defaultdict(set)
        self._ends: Counter[str] = Counter()
        self._over: set[str] = set()
        self._in_flight: set[str] = set()  # dispatched since the run was last begun or resumed
        self._most_drawn = 0

    def add(self, event: AnyEvent) -> None:  # noqa: PLR0912 (one case for each event)
        self._events.add(event)
        match event:
            case Began():
                self.attempts += 1
                if self.attempts == 1:
                    self.has_spread_seeds = event.seeds == "spread"
                self._in_flight.clear()
                self._partial_round.clear()
                if changes(self.given, event.given):
                    self.forget_unfinished()
                self.given = {**self.given, **event.given}
                if event.batch is not None:
                    self.go_back_to(event.batch)
            case Drawn(index=index):
                self.drawn[index] = event
                self._most_drawn = max(self._most_drawn, index + 1)
            case Dispatched(uid=uid):
                self._begin(uid)
            case Replied(uid=uid):
                self.replies[uid].append(recorded_reply(event))
            case Failed(uid=uid):
                self.replies.pop(uid, None)
                self.retries[group_of(uid)] += 1
            case Finished(uid=uid):
                self._members[group_of(uid)].add(uid)
                self.replies.pop(uid, None)
                self._ends[uid] += 1
                self._over.add(uid)
            case Cancelled(group=group):
                self.forget(group)
            case Judged():
                for judged in self._partial_round.add(event):
                    self.verdicts[judged.group] = Verdict(judged.keep, judged.reason)
                    self.judged_at.setdefault(judged.group, self._most_drawn)
                    if (reward := self._events.mean_reward(judged.group)) is not None:
                        self.reward_means[judged.group] = reward
            case Delivered():
                self._deliver(event)
            case TakenBack(batch=batch):
                self._take_back(batch)
            case Dropped(groups=groups):
                self._skipped.update(groups)
            case Updated(weights=weights):
                self.weights = weights
            case Evaluating(name=name):
                self.evaluations += 1
                self.evaluating[name] = event
            case Evaluated(name=name):
                self.evaluating.pop(name, None)

    def go_back_to(self, batch: int) -> None:
        """Deliver this batch, and those after it, again."""
        if batch > self.next_batch:
            raise UsageError(f"batch {batch} is not the next one: {self.next_batch} have been delivered")
        while self.next_batch > batch:
            delivered, self.weights, _ = self._batches.pop()
            self._redelivered.insert(0, delivered)
            self.next_batch = self._batches[-1].delivered.batch + 1 if self._batches else 0

    def forget_unfinished(self) -> None:
        """Forget all groups that are not finished: the agent or policy has changed."""
        begun = {*map(group_of, self.replies), *map(group_of, self._over), *self.retries}
        forgotten = [*unfinished(begun, self._over, self.given)]
        for group in forgotten:
            self.forget(group)
        self._events.forget(forgotten)
        self.evaluating.clear()

    def _deliver(self, event: Delivered) -> None:
        is_repeated = any(one.batch == event.batch for one in self._redelivered)
        self._redelivered = [one for one in self._redelivered if one.batch > event.batch]
        self._batches.append(_DeliveredBatch(event, self.weights, is_repeated))
        if event.batch < self.next_batch:  # it was taken back, and comes later than others
            self._batches.sort(key=lambda one: one.delivered.batch)
        self.next_batch = max(self.next_batch, event.batch + 1)

    def _take_back(self, number: int) -> None:
        """Nobody got this batch; one of an earlier process is delivered again as it was."""
        taken_back = [batch for batch in self._batches if batch.delivered.batch == number]
        self._batches = [batch for batch in self._batches if batch.delivered.batch != number]
        self._redelivered = [*(batch.delivered for batch in taken_back if batch.is_repeated), *self._redelivered]
        if self.next_batch == number + 1:
            self.next_batch = number

    def settle(self) -> None:
        """Find out which groups need no further work."""
        done = [batch.delivered for batch in self._batches]
        dropped = self._skipped.union(*(one.dropped for one in (*done, *self._redelivered)))
        again = {group for one in self._redelivered for group in one.groups}
        delivered = {group for one in done for group in one.groups}
        self._delivered = sum(len(one.groups) for one in done)
        self._dropped = dropped - delivered - again
        settled = delivered | dropped | again
        self.settled = GroupNumbers(number for group in settled if (number := number_of(group)) is not None)
        self.settled_groups = [
            SettledGroup(drawn.tag, self.verdicts.get(drawn.group), drawn.group in delivered or drawn.group in again)
            for drawn in self.drawn.values()
            if drawn.group in settled
        ]

    def add_trajectories(self, lines: Iterable[JournalLine]) -> None:
        """Add the finished rollouts of groups that are not settled, or are delivered again."""
        wanted_again = {group for delivered in self._redelivered for group in delivered.groups}
        records, latest = Counter[str](), dict[str, JournalLine]()
        for line in lines:
            head = read_head(line)
            records[head.uid] += 1
            if head.group in wanted_again or self._is_open(head.group):
                latest[head.uid] = line
        for uid, line in latest.items():
            is_unlogged = records[uid] > self._ends[uid]
            is_again = group_of(uid) in wanted_again
            if is_unlogged or uid in self._over or is_again:
                if is_again:
                    self._members[group_of(uid)].add(uid)
                with located_at(line.place):
                    _, tag, self.finished[uid] = decode_record(line.content)
                if is_unlogged:
                    self._add_unlogged(self.finished[uid], tag)
        lost = [uid for uid in self._over - self.finished.keys() if self._is_open(group_of(uid))]
        if lost:
            raise JournalError(
                f"{TRAJECTORIES} lacks {len(lost)} rollouts that {JOURNAL} says are finished, such as {lost[0]}"
            )
        self.redelivered = [
            RedeliveredBatch(one.batch, [self._take(group) for group in one.groups], one.dropped, _numbers(one.stats))
            for one in self._redelivered
        ]

    def let_go(self) -> None:
        """Count all of it, and free what belongs to settled groups: a run may have millions."""
        self.counters = self._events.played()
        self.counters.batches, self.counters.delivered = self.next_batch, self._delivered
        count_verdicts(self.counters, self.verdicts, self._dropped)
        self._events, means, self.reward_means = EventCounter(), self.reward_means, {}
        settled = [group for group in self._members if number_of(group) in self.settled]
        for group in settled:
            self.forget(group)
        self.verdicts = {group: one for group, one in self.verdicts.items() if number_of(group) not in self.settled}
        self._members, self.reward_means = defaultdict(set, self._members), means
        for kept in (
            self._batches, self._redelivered, self._skipped, self._dropped, self._ends, self._over, self._in_flight,
        ):  # fmt: skip
            kept.clear()

    def forget_beginning(self) -> None:
        """Free what only the start of a resumed run needs: draws, judged groups, batches to deliver again."""
        for kept in (self.drawn, self.judged_at, self.settled_groups, self.redelivered):
            kept.clear()
        self.reward_means = {group: mean for group, mean in self.reward_means.items() if group in self.verdicts}
        self.counters = RunCounters()

    def forget(self, group: str) -> None:
        """Nothing of the group counts any more."""
        for uid in self._members.pop(group, ()):
            self.replies.pop(uid, None)
            self.finished.pop(uid, None)
            self._over.discard(uid)
        self.retries.pop(group, None)
        self.verdicts.pop(group, None)
        self.reward_means.pop(group, None)
        self._partial_round.discard(group)

    def unfinished_groups(self) -> set[str]:
        """Drawn groups that are recorded in part, and not settled."""
        groups = {group_of(uid) for uid in (*self.replies, *self.finished)}
        return {group for group in groups if group.startswith(DRAWN)}

    def _begin(self, uid: str) -> None:
        """A rollout that one process begins twice starts over; after a resume, it continues."""
        if uid in self._in_flight:
            self.replies.pop(uid, None)
            self._over.discard(uid)
        self._in_flight.add(uid)
        self._members[group_of(uid)].add(uid)

    def _add_unlogged(self, trajectory: Trajectory, tag: str) -> None:
        """Do what the missing events would have done."""
        group, error, at = group_of(trajectory.uid), trajectory.error, self._events.last or time.time()
        finished = end_of(trajectory, None if error is None else type(error).__name__, at)
        self.unlogged.append(finished)
        self.replies.pop(trajectory.uid, None)
        self._members[group].add(trajectory.uid)
        self._over.add(trajectory.uid)
        index = number_of(group)
        if index is not None and index not in self.drawn:
            task = to_plain(trajectory.task)
            drawn = Drawn(at=at, group=group, index=index, seed=trajectory.seed, tag=tag, task=task)
            self.drawn[index] = drawn
            self.undrawn.append(drawn)
            self._events.add(drawn)
        self._events.add(finished)

    def _take(self, group: str) -> Group:
        uids = sorted(self._members[group] & self.finished.keys(), key=lambda uid: self.finished[uid].member)
        size = self.given.get("group_size", len(uids))
        if len(uids) != size or not uids:
            raise JournalError(
                f"{TRAJECTORIES} has {len(uids)} of the {size} rollouts of group {group}, which was delivered, and is "
                "to be delivered again"
            )
        drawn = self.drawn.get(-1 if (number := number_of(group)) is None else number)
        members = [self.finished.pop(uid) for uid in uids]
        return Group(group, members, "" if drawn is None else drawn.tag, self.verdicts.get(group))

    def _is_open(self, group: str) -> bool:
        name, dash, _ = group.rpartition("-")
        return number_of(group) not in self.settled and (not dash or name in self.evaluating)


def _numbers(stats: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in stats.items()}


def read_past(directory: Path, batch: int | None = None) -> RunHistory:
    """The history of a run, up to the batch; changes nothing. Errors say which line is wrong."""
    past = RunHistory()
    read_events(directory, past.add)
    if batch is not None:
        past.go_back_to(batch)
    past.settle()
    past.add_trajectories(whole_lines(directory / TRAJECTORIES))
    return past
