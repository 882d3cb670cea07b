"""A run as its journal records it: for reports, comparisons, and everything else that reads the files of a run.

The module `history` has the table of what each event means.
"""

from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

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
    VerdictRound,
)
from asyncrollout.journal.files import read_events
from asyncrollout.journal.group_numbers import unfinished
from asyncrollout.journal.settings import changes
from asyncrollout.journal.writer import JOURNAL
from asyncrollout.trajectories import group_of


class BatchRecord(msgspec.Struct, frozen=True):
    """A delivered batch, and the version of the weights at that time."""

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
"""Delivered to the trainer, or played for an evaluation; kept, and not delivered yet; not all members are over; dropped
by the filter; kept, and then too old; cancelled."""


class EvaluationRecord(msgspec.Struct):
    """An evaluation: its tasks, each played `k` times. Journals of older versions do not say how many.

    `env_kwargs` are those it added to the env's own, in plain form; None if they could not be recorded. `splits` has
    what each tag's env played, if it has splits.
    """

    name: str
    tasks: int | None = None
    k: int | None = None
    env_kwargs: Any = None
    splits: dict[str, str] = {}
    is_complete: bool = False

    def kwargs_of(self, tag: str) -> Any:
        """What was added to the arguments of a tag's env."""
        split = {"split": self.splits[tag]} if tag in self.splits else {}
        return {**self.env_kwargs, **split} if isinstance(self.env_kwargs, dict) else self.env_kwargs

    @property
    def split(self) -> str:
        """In words: the one that all envs with splits played, or each tag with its own; empty if none has any."""
        if isinstance(self.env_kwargs, dict) and "split" in self.env_kwargs:
            return str(self.env_kwargs["split"])
        played = dict.fromkeys(self.splits.values())
        return ", ".join(played) if len(played) < 2 else ", ".join(f"{tag} {one}" for tag, one in self.splits.items())


class OpenRollout(msgspec.Struct):
    """A rollout without a recorded end."""

    began: float
    last: float
    turns: int = 0


class RecordedRun:
    """What the events of a run add up to."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.groups: dict[str, str] = {}
        """The tag of each group that was drawn, in order."""
        self.finished: dict[str, float] = {}
        """When each rollout last ended, even if its group was cancelled since."""
        self.in_flight: dict[str, OpenRollout] = {}
        self.verdicts: dict[str, Judged] = {}
        self.batches: dict[int, BatchRecord] = {}
        self.retries: Counter[str] = Counter()
        self.attempts: list[tuple[float, float]] = []
        """When each attempt began, and the sum of the pauses before it."""
        self.last = 0.0
        self._weights = 0
        self._partial_round = VerdictRound()
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
                self.in_flight[uid] = OpenRollout(at, at)
                self._cancelled.discard(group_of(uid))
            case Replied(uid=uid, turn=turn, at=at) if uid in self.in_flight:
                self.in_flight[uid].last = at
                self.in_flight[uid].turns = max(self.in_flight[uid].turns, turn + 1)  # one may have several replies
            case Failed(uid=uid, error=error):
                self.retries[error.partition(":")[0]] += 1
                self.in_flight.pop(uid, None)
            case Finished(uid=uid, at=at):
                self.finished[uid] = at
                self.in_flight.pop(uid, None)
            case Cancelled(group=group):
                self._cancel(group)
            case Judged():
                self.verdicts.update({judged.group: judged for judged in self._partial_round.add(event)})
            case Delivered(batch=batch, at=at, groups=groups, dropped=dropped):
                self.batches[batch] = BatchRecord(batch, at, groups, dropped, self._weights)
            case TakenBack(batch=batch):
                self.batches.pop(batch, None)
            case Dropped(groups=groups):
                self._dropped.update(groups)
            case Updated(weights=weights):
                self._weights = weights
            case Evaluating(name=name, tasks=tasks, k=k, env_kwargs=env_kwargs, splits=splits):
                self.evaluations[name] = EvaluationRecord(name, tasks, k, env_kwargs, splits)
            case Evaluated(name=name) if name in self.evaluations:
                self.evaluations[name].is_complete = True
        self.last = max(self.last, event.at)

    def settle(self) -> None:
        """Find out what became of the groups; call it after the last event."""
        self._ended = Counter(map(group_of, self.finished))
        self._playing = {*map(group_of, self.in_flight)}
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
        """Whether all members of an evaluation's group are over; if their number is unknown, none in flight will do."""
        return self._ended[group] >= size if size is not None else group not in self._playing

    def clock(self, at: float) -> float:
        """Seconds of running up to that time, without pauses between attempts."""
        began, paused = self.attempts[max(bisect_right(self.attempts, (at, float("inf"))) - 1, 0)]
        return max(at, began) - self.attempts[0][0] - paused

    def _cancel(self, group: str) -> None:
        self._cancelled.add(group)
        self.verdicts.pop(group, None)
        self._partial_round.discard(group)

    def _is_evaluated(self, group: str) -> bool:
        evaluation = self.evaluation_of(group)
        return evaluation is not None and evaluation.is_complete

    def _begin(self, event: Began) -> None:
        paused = self.attempts[-1][1] + max(event.at - self.last, 0.0) if self.attempts else 0.0
        self.attempts.append((event.at, paused))
        if changes(self.given, event.given):
            begun = [group for group in {*map(group_of, self.finished)} if not self._is_evaluated(group)]
            for group in [*unfinished(begun, self.finished, self.given)]:
                self._cancel(group)
        self.given = {**self.given, **event.given}
        self.in_flight.clear()
        self._partial_round.clear()
        if event.batch is not None:
            self.batches = {index: batch for index, batch in self.batches.items() if index < event.batch}


def read_run(directory: Path) -> RecordedRun:
    """Read the journal of a run; a `UsageError` says that there is none, or which line is wrong."""
    run = RecordedRun()
    read_events(directory, run.add)
    if not run.attempts:
        raise UsageError(f"{directory / JOURNAL} is empty: the run has not begun")
    run.settle()
    return run
