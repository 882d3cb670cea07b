"""What a journal tells of a run, as far as a report needs it. Nothing is locked or changed: the run may still go on."""

from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.batches.records import located_at
from asyncrollout.errors import UsageError
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
from asyncrollout.journal.files import whole_lines
from asyncrollout.journal.writer import JOURNAL
from asyncrollout.trajectories import group_of


class BatchRecord(msgspec.Struct, frozen=True):
    """A batch that was delivered, and the version of the weights at that time."""

    index: int
    at: float
    groups: list[str]
    dropped: list[str]
    weights: int


class Fate(msgspec.Struct, frozen=True):
    """What became of a group: `kind` is one of `FATES`; a dropped one has a reason, a delivered one a batch."""

    kind: str
    reason: str = ""
    batch: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


FATES = ("delivered", "evaluation", "waiting", "incomplete", "dropped", "stale", "cancelled")
"""Delivered to the trainer or played for an evaluation; kept, and not delivered yet; not all members are over; dropped
by the filter; kept, and then too old; given up."""


class EvaluationRecord(msgspec.Struct):
    """An evaluation: its tasks, each played `k` times. Journals of older versions do not say how many."""

    name: str
    tasks: int | None = None
    k: int | None = None
    is_complete: bool = False


class OpenRollout(msgspec.Struct):
    """A rollout of which no end is recorded."""

    began: float
    last: float
    turns: int = 0


class RecordedRun:
    """The events of a run, put together."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.groups: dict[str, str] = {}
        """The tag of each group that was drawn, in order."""
        self.finished: dict[str, float] = {}
        self.under_way: dict[str, OpenRollout] = {}
        self.verdicts: dict[str, Judged] = {}
        self.batches: dict[int, BatchRecord] = {}
        self.retries: Counter[str] = Counter()
        self.attempts: list[tuple[float, float]] = []
        """When each attempt at the run began, and how much of the time before it nothing was run."""
        self.last = 0.0
        self._weights = 0
        self._dropped: set[str] = set()
        self._cancelled: set[str] = set()
        self.evaluations: dict[str, EvaluationRecord] = {}
        self._ended: Counter[str] = Counter()
        self._playing: set[str] = set()
        self._fates: dict[str, Fate] = {}

    def add(self, event: AnyEvent) -> None:  # noqa: PLR0912 (one case for each event)
        match event:
            case Began():
                self._begin(event)
            case Drawn(group=group, tag=tag):
                self.groups[group] = tag
            case Dispatched(uid=uid, at=at):
                self.finished.pop(uid, None)
                self.under_way[uid] = OpenRollout(at, at)
                self._cancelled.discard(group_of(uid))
            case Replied(uid=uid, at=at) if uid in self.under_way:
                self.under_way[uid].last = at
                self.under_way[uid].turns += 1
            case Failed(uid=uid, error=error):
                self.retries[error.partition(":")[0]] += 1
                self.under_way.pop(uid, None)
            case Finished(uid=uid, at=at):
                self.finished[uid] = at
                self.under_way.pop(uid, None)
            case Cancelled(group=group):
                self._cancelled.add(group)
                self.verdicts.pop(group, None)
            case Judged(group=group):
                self.verdicts[group] = event
            case Delivered(batch=batch, at=at, groups=groups, dropped=dropped):
                self.batches[batch] = BatchRecord(batch, at, groups, dropped, self._weights)
            case TakenBack(batch=batch):
                self.batches.pop(batch, None)
            case Dropped(groups=groups):
                self._dropped.update(groups)
            case Updated(weights=weights):
                self._weights = weights
            case Evaluating(name=name, tasks=tasks, k=k):
                self.evaluations[name] = EvaluationRecord(name, tasks, k)
            case Evaluated(name=name) if name in self.evaluations:
                self.evaluations[name].is_complete = True
        self.last = max(self.last, event.at)

    def settle(self) -> None:
        """Find out what became of the groups; after the last event."""
        self._ended = Counter(map(group_of, self.finished))
        self._playing = {*map(group_of, self.under_way)}
        for batch in self.batches.values():
            self._dropped.update(batch.dropped)
            self._fates.update({group: Fate("delivered", batch=batch.index) for group in batch.groups})

    def evaluation_of(self, group: str) -> EvaluationRecord | None:
        """The evaluation that a group was played for."""
        return self.evaluations.get(group.rpartition("-")[0])

    @property
    def evaluates_only(self) -> bool:
        """Whether no group was drawn for a trainer, and there is an evaluation."""
        return bool(self.evaluations) and not self.groups

    @property
    def last_evaluation(self) -> EvaluationRecord | None:
        return next(reversed(self.evaluations.values()), None)

    def fate(self, group: str) -> Fate:
        if group in self._fates:
            return self._fates[group]
        verdict = self.verdicts.get(group)
        if (evaluation := self.evaluation_of(group)) is not None:
            return Fate("evaluation" if evaluation.is_complete or self._is_whole(group, evaluation.k) else "incomplete")
        if verdict is not None and not verdict.keep:
            return Fate("dropped", verdict.reason)
        if group in self._cancelled:
            return Fate("cancelled")
        if group in self._dropped:
            return Fate("stale")
        return Fate("incomplete" if verdict is None else "waiting")

    def _is_whole(self, group: str, size: int | None) -> bool:
        """Whether all members of an evaluation's group are over; if their number is not known, whether none plays."""
        return self._ended[group] >= size if size is not None else group not in self._playing

    def clock(self, at: float) -> float:
        """Seconds of running up to then: pauses between attempts are left out."""
        began, paused = self.attempts[max(bisect_right(self.attempts, (at, float("inf"))) - 1, 0)]
        return max(at, began) - self.attempts[0][0] - paused

    def _begin(self, event: Began) -> None:
        paused = self.attempts[-1][1] + max(event.at - self.last, 0.0) if self.attempts else 0.0
        self.attempts.append((event.at, paused))
        self.given = self.given or event.given
        self.under_way.clear()
        if event.batch is not None:
            self.batches = {index: batch for index, batch in self.batches.items() if index < event.batch}


def read_history(directory: Path) -> RecordedRun:
    """The history of a run; a `UsageError` says that the directory is none, or which line makes no sense."""
    if not (directory / JOURNAL).is_file():
        raise UsageError(f"{directory} holds no run: it has no {JOURNAL}")
    history = RecordedRun()
    for line in whole_lines(directory / JOURNAL):
        with located_at(line.place):
            event = decode(line.content)
            if not history.attempts and not isinstance(event, Began):
                raise UsageError("the first line does not say what run this is")
            history.add(event)
    if not history.attempts:
        raise UsageError(f"{directory / JOURNAL} is empty: nothing has begun")
    history.settle()
    return history
