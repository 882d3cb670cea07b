"""What a journal tells of a run that was broken off."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from asyncrollout.arrays.records import decode_record, told_at
from asyncrollout.errors import JournalError, UsageError
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
    decode,
)
from asyncrollout.journal.lines import Line, read_head, whole_lines
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.plain import to_plain
from asyncrollout.trajectories import DRAWN, Group, Trajectory, Verdict, group_of


class Reply(NamedTuple):
    """A recorded reply, not decoded yet, and a digest of what it replies to."""

    turn: int
    asked: int
    content: msgspec.Raw


class _Batch(NamedTuple):
    delivered: Delivered
    weights: int | None
    is_repeated: bool


class Past:
    """What is known: groups that are settled, finished rollouts of all others, and replies of those under way."""

    def __init__(self) -> None:
        self.attempts = 0
        self.given: dict[str, Any] = {}
        self.drawn: dict[int, Drawn] = {}
        self.settled: set[str] = set()
        """Groups that need not be looked at again: delivered, or dropped on the way to a batch."""
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        """How many groups were dropped on the way to what was delivered, by reason."""
        self.again: list[tuple[int, list[Group], list[str]]] = []
        """Batches that were delivered, and are to be delivered once more, with what was dropped on the way to them."""
        self.finished: dict[str, Trajectory] = {}
        self.unlisted: list[Trajectory] = []
        """Those of which the journal does not tell: the process was killed in between."""
        self.replies: defaultdict[str, list[Reply]] = defaultdict(list)
        self.verdicts: dict[str, Verdict] = {}
        self._together: dict[str, Verdict] = {}  # verdicts of a round, until all of them are there
        self.retries: Counter[str] = Counter()
        self.weights: int | None = None
        self.evaluations = 0
        self.evaluating: dict[str, Evaluating] = {}
        self._batches: list[_Batch] = []
        self._given_again: list[Delivered] = []
        self._skipped: set[str] = set()
        self._members: defaultdict[str, set[str]] = defaultdict(set)
        self._ends: Counter[str] = Counter()
        self._over: set[str] = set()
        self._under_way: set[str] = set()  # since the run was last begun or resumed

    @property
    def next_batch(self) -> int:
        """The first one that was not delivered, or is to be delivered again."""
        return self._batches[-1].delivered.batch + 1 if self._batches else 0

    def add(self, event: AnyEvent) -> None:  # noqa: PLR0912 (one case for each event)
        match event:
            case Began():
                self.attempts += 1
                self._under_way.clear()
                self._together.clear()
                self.given = self.given or event.given
                if event.batch is not None:
                    self.go_back_to(event.batch)
            case Drawn(index=index):
                self.drawn[index] = event
            case Dispatched(uid=uid):
                self._begin(uid)
            case Replied(uid=uid, turn=turn, asked=asked, reply=reply):
                self.replies[uid].append(Reply(turn, asked, reply))
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
            case Judged(group=group, keep=keep, reason=reason, more=more):
                self._together[group] = Verdict(keep, reason)
                if not more:
                    self.verdicts.update(self._together)
                    self._together.clear()
            case Delivered():
                is_repeated = any(one.batch == event.batch for one in self._given_again)
                self._given_again = [one for one in self._given_again if one.batch > event.batch]
                self._batches.append(_Batch(event, self.weights, is_repeated))
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
        """Deliver this batch, and those after it, once more."""
        if batch > self.next_batch:
            raise UsageError(f"batch {batch} is not the next one: {self.next_batch} have been delivered")
        while self.next_batch > batch:
            delivered, self.weights, _ = self._batches.pop()
            self._given_again.insert(0, delivered)

    def _take_back(self, number: int) -> None:
        """Nobody has had this batch; one of an earlier process is delivered again as it was."""
        taken_back = [batch for batch in self._batches if batch.delivered.batch == number]
        self._batches = [batch for batch in self._batches if batch.delivered.batch != number]
        self._given_again = [*(batch.delivered for batch in taken_back if batch.is_repeated), *self._given_again]

    def settle(self) -> None:
        """Find out which groups need not be looked at again."""
        for delivered, *_ in self._batches:
            self.delivered += len(delivered.groups)
            self.dropped.update(self._reason(group) for group in delivered.dropped)
        all_delivered = [*(batch.delivered for batch in self._batches), *self._given_again]
        self.settled = self._skipped.union(*([*one.groups, *one.dropped] for one in all_delivered))

    def add_trajectories(self, lines: Iterable[Line]) -> None:
        """Finished rollouts of groups that are not settled, or delivered again."""
        wanted_again = {group for delivered in self._given_again for group in delivered.groups}
        records, latest = Counter[str](), dict[str, Line]()
        for line in lines:
            head = read_head(line)
            records[head.uid] += 1
            if head.group in wanted_again or self._is_open(head.group):
                latest[head.uid] = line
        for uid, line in latest.items():
            is_unlisted = records[uid] > self._ends[uid]
            if is_unlisted or uid in self._over:
                with told_at(line.place):
                    _, tag, self.finished[uid] = decode_record(line.content)
                if is_unlisted:
                    self._list(self.finished[uid], tag)
        lost = [uid for uid in self._over - self.finished.keys() if self._is_open(group_of(uid))]
        if lost:
            raise JournalError(
                f"{TRAJECTORIES} lacks {len(lost)} rollouts that {JOURNAL} says are finished, such as {lost[0]}"
            )
        self.again = [
            (one.batch, [self._take(group) for group in one.groups], one.dropped) for one in self._given_again
        ]

    def forget(self, group: str) -> None:
        """Nothing of it counts any more."""
        for uid in self._members.pop(group, ()):
            self.replies.pop(uid, None)
            self.finished.pop(uid, None)
            self._over.discard(uid)
        self.retries.pop(group, None)
        self.verdicts.pop(group, None)

    def unfinished_groups(self) -> set[str]:
        """Groups that were drawn, and of which something is recorded, but not settled."""
        groups = {group_of(uid) for uid in (*self.replies, *self.finished)}
        return {group for group in groups if group.startswith(DRAWN)}

    def _begin(self, uid: str) -> None:
        """A rollout that is begun twice by one process is played anew; after a resume, it goes on."""
        if uid in self._under_way:
            self.replies.pop(uid, None)
            self._over.discard(uid)
        self._under_way.add(uid)
        self._members[group_of(uid)].add(uid)

    def _list(self, trajectory: Trajectory, tag: str) -> None:
        """A record without events: what they would have told is in it."""
        group = group_of(trajectory.uid)
        self.unlisted.append(trajectory)
        self.replies.pop(trajectory.uid, None)
        self._members[group].add(trajectory.uid)
        number = group.removeprefix(DRAWN)
        if number.isdecimal() and int(number) not in self.drawn:
            index, task = int(number), to_plain(trajectory.task)
            self.drawn[index] = Drawn(group=group, index=index, seed=trajectory.seed, tag=tag, task=task)

    def _take(self, group: str) -> Group:
        uids = sorted(self._members[group] & self.finished.keys(), key=lambda uid: self.finished[uid].member)
        number = group.removeprefix(DRAWN)
        tag = self.drawn[int(number)].tag if number.isdecimal() and int(number) in self.drawn else ""
        return Group(group, [self.finished.pop(uid) for uid in uids], tag, self.verdicts.get(group))

    def _is_open(self, group: str) -> bool:
        name, dash, _ = group.rpartition("-")
        return group not in self.settled and (not dash or name in self.evaluating)

    def _reason(self, group: str) -> str:
        verdict = self.verdicts.get(group)
        return "stale" if verdict is None or verdict.keep else verdict.reason or "dropped"


def read_past(directory: Path, batch: int | None = None) -> Past:
    """The past of a run, up to the batch; what is wrong with it is told, and nothing is changed."""
    if not (directory / JOURNAL).exists():
        raise UsageError(f"{directory} holds no run: it has no {JOURNAL}")
    past = Past()
    for line in whole_lines(directory / JOURNAL):
        with told_at(line.place):
            event = decode(line.content)
            if not past.attempts and not isinstance(event, Began):
                raise UsageError("the first line does not say what run this is")
            past.add(event)
    if batch is not None:
        past.go_back_to(batch)
    past.settle()
    past.add_trajectories(whole_lines(directory / TRAJECTORIES))
    return past
