"""What a journal tells of a run that was broken off."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog

from asyncrollout.arrays.records import decode_record, told_at
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.events import (
    AnyEvent,
    Began,
    Cancelled,
    Delivered,
    Dispatched,
    Drawn,
    Evaluated,
    Evaluating,
    Failed,
    Finished,
    Judged,
    Replied,
    Updated,
    decode,
)
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.trajectories import Trajectory, group_of

log = structlog.get_logger(__name__)


class Reply(NamedTuple):
    """A recorded reply, not decoded yet, and a digest of what it replies to."""

    turn: int
    asked: int
    content: msgspec.Raw


class _Batch(NamedTuple):
    delivered: Delivered
    dropped: list[str]
    """Groups that were dropped on the way to it."""
    weights: int | None


class _Head(msgspec.Struct):
    """As much of a record as tells whose it is."""

    uid: str
    group: str


class Past:
    """What is known: groups that are settled, finished rollouts of all others, and replies of those under way."""

    def __init__(self) -> None:
        self.attempts = 0
        self.given: dict[str, Any] = {}
        self.drawn: dict[int, Drawn] = {}
        self.settled: set[str] = set()
        """Groups that need not be looked at again: those that were delivered, or dropped on the way to a batch."""
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        """How many groups were dropped on the way to what was delivered, by reason."""
        self.finished: dict[str, Trajectory] = {}
        self.unlisted: list[Trajectory] = []
        """Those of which the journal does not tell: the process was killed in between."""
        self.replies: defaultdict[str, deque[Reply]] = defaultdict(deque)
        self.retries: Counter[str] = Counter()
        self.weights: int | None = None
        self.evaluations = 0
        self.evaluating: dict[str, Evaluating] = {}
        self._batches: list[_Batch] = []
        self._members: defaultdict[str, set[str]] = defaultdict(set)
        self._verdicts: dict[str, Judged] = {}
        self._dropped: list[str] = []
        self._ends: Counter[str] = Counter()
        self._over: set[str] = set()
        self._under_way: set[str] = set()  # since the run was last begun or resumed

    @property
    def next_batch(self) -> int:
        return self._batches[-1].delivered.batch + 1 if self._batches else 0

    def add(self, event: AnyEvent) -> None:  # noqa: PLR0912 (one case for each event)
        match event:
            case Began():
                self.attempts += 1
                self._under_way.clear()
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
                self.replies.pop(uid, None)
                self._ends[uid] += 1
                self._over.add(uid)
            case Cancelled(group=group):
                self._forget(group)
            case Judged(group=group, keep=keep):
                self._verdicts[group] = event
                if not keep:
                    self._dropped.append(group)
            case Delivered():
                self._batches.append(_Batch(event, self._dropped, self.weights))
                self._dropped = []
            case Updated(weights=weights):
                self.weights = weights
            case Evaluating(name=name):
                self.evaluations += 1
                self.evaluating[name] = event
            case Evaluated(name=name):
                self.evaluating.pop(name, None)

    def go_back_to(self, batch: int) -> None:
        """Take this batch, and those after it, for not delivered."""
        if batch > self.next_batch:
            raise UsageError(f"batch {batch} is not the next one: {self.next_batch} have been delivered")
        while self.next_batch > batch:
            self.weights = self._batches.pop().weights

    def settle(self) -> None:
        """Find out which groups need not be looked at again.

        In start order, groups that were dropped after the last one of a batch count for the batch to come.
        """
        index = {drawn.group: number for number, drawn in self.drawn.items()}
        for delivered, dropped, _ in self._batches:
            last = max((index.get(group, -1) for group in delivered.groups), default=-1)
            is_ordered = self.given.get("order") == "start"
            gone = {group for group in dropped if not is_ordered or index.get(group, -1) < last} - {*delivered.groups}
            self.settled |= gone | {*delivered.groups}
            self.delivered += len(delivered.groups)
            self.dropped.update(self._verdicts[group].reason or "dropped" for group in gone)

    def add_trajectories(self, lines: Iterator[tuple[str, bytes]]) -> None:
        """Finished rollouts of groups that are not settled."""
        records, latest = Counter[str](), dict[str, tuple[str, bytes]]()
        for place, line in lines:
            with told_at(place):
                head = msgspec.json.decode(line, type=_Head)
            records[head.uid] += 1
            if head.group not in self.settled and not self._is_of_ended_evaluation(head.group):
                latest[head.uid] = place, line
        for uid, (place, line) in latest.items():
            is_unlisted = records[uid] > self._ends[uid]
            if is_unlisted or uid in self._over:
                with told_at(place):
                    self.finished[uid] = trajectory = decode_record(line)[2]
                if is_unlisted:
                    self.unlisted.append(trajectory)
                    self.replies.pop(uid, None)
        lost = [uid for uid in self._over - self.finished.keys() if self._is_missing(uid)]
        if lost:
            raise JournalError(
                f"{TRAJECTORIES} lacks {len(lost)} rollouts that {JOURNAL} says are finished, such as {lost[0]}"
            )

    def _begin(self, uid: str) -> None:
        """A rollout that is begun twice by one process is played anew; after a resume, it goes on."""
        if uid in self._under_way:
            self.replies.pop(uid, None)
            self._over.discard(uid)
        self._under_way.add(uid)
        self._members[group_of(uid)].add(uid)

    def _is_missing(self, uid: str) -> bool:
        group = group_of(uid)
        return group not in self.settled and not self._is_of_ended_evaluation(group)

    def _is_of_ended_evaluation(self, group: str) -> bool:
        name, dash, _ = group.rpartition("-")
        return bool(dash) and name not in self.evaluating

    def _forget(self, group: str) -> None:
        for uid in self._members.pop(group, ()):
            self.replies.pop(uid, None)
            self._over.discard(uid)
        self.retries.pop(group, None)
        verdict = self._verdicts.pop(group, None)
        if verdict is not None and not verdict.keep and group in self._dropped:
            self._dropped.remove(group)


def read_past(directory: Path, batch: int | None = None) -> Past:
    """The past of a run, up to the batch; a line that was not written to its end is cut off, all else that is wrong
    is told."""
    if not (directory / JOURNAL).exists():
        raise UsageError(f"{directory} holds no run: it has no {JOURNAL}")
    past = Past()
    for place, line in _whole_lines(directory / JOURNAL):
        with told_at(place):
            event = decode(line)
            if not past.attempts and not isinstance(event, Began):
                raise UsageError("the first line does not say what run this is")
            past.add(event)
    if batch is not None:
        past.go_back_to(batch)
    past.settle()
    past.add_trajectories(_whole_lines(directory / TRAJECTORIES))
    return past


def _whole_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a file, each with its place; an end that was torn off is removed from the file."""
    try:
        with path.open("rb+") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield f"{path}, line {number}", line
                else:
                    file.seek(-len(line), 2)
                    file.truncate()
                    log.warning("torn_line_cut", file=str(path), line=number, bytes=len(line))
                    return
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror or error}") from error
