"""A run as its files record it: for reports, comparisons, and everything else that reads the files of a run.

The module `history` has the table of what each event means.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.batches.batch_json import decode_record, located_at
from asyncrollout.errors import UsageError
from asyncrollout.journal.attempts import RolloutAttempt
from asyncrollout.journal.counts import EventCounter
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
    ShardPlace,
    TakenBack,
    Updated,
    VerdictRound,
)
from asyncrollout.journal.files import TrajectoryFile, read_events
from asyncrollout.journal.group_numbers import unfinished
from asyncrollout.journal.settings import changes
from asyncrollout.journal.writer import JOURNAL
from asyncrollout.telemetry import RunCounters
from asyncrollout.trajectories import DRAWN, group_of


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
    what each tag's env played, if it has splits. `most` is the largest number of members that any of its groups has
    begun.
    """

    name: str
    tasks: int | None = None
    k: int | None = None
    env_kwargs: Any = None
    splits: dict[str, str] = {}
    is_complete: bool = False
    most: int = 0

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

    @property
    def size(self) -> int:
        """How many members a whole group has, as far as that is known."""
        return self.most if self.k is None else self.k


class RecordedRun:
    """What the events of a run add up to."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.groups: dict[str, str] = {}
        """The tag of each group that was drawn, in order."""
        self.finished: dict[str, RolloutAttempt] = {}
        """The attempt of each rollout whose record counts, even if its group was cancelled since."""
        self.lost: list[RolloutAttempt] = []
        """Attempts that failed and were retried, or were cancelled or started over: nothing of them counts."""
        self.places: dict[str, ShardPlace] = {}
        """Where rollouts ended that shards have played."""
        self.verdicts: dict[str, Judged] = {}
        self.batches: dict[int, BatchRecord] = {}
        self.attempts: list[tuple[float, float]] = []
        """When each process began, and the sum of the pauses before it."""
        self.retries: Counter[str] = Counter()
        """Failed attempts that were retried, by the name of their error."""
        self._counter = EventCounter(self._note_end)
        self._weights = 0
        self._partial_round = VerdictRound()
        self._dropped: set[str] = set()
        self._cancelled: set[str] = set()
        self.evaluations: dict[str, EvaluationRecord] = {}
        self._ends: Counter[str] = Counter()  # events of rollouts that finished
        self._begun: defaultdict[str, set[str]] = defaultdict(set)  # members of groups of evaluations
        self._over: defaultdict[str, set[str]] = defaultdict(set)  # members of groups that are over
        self._retried: set[str] = set()  # groups
        self._playing: set[str] = set()
        self._fates: dict[str, Fate] = {}

    @property
    def last(self) -> float:
        """When the last event happened."""
        return self._counter.last

    @property
    def counters(self) -> RunCounters:
        """Counts of training, without groups and batches; those of attempts in flight included."""
        return self._counter.played()

    @property
    def in_flight(self) -> dict[str, RolloutAttempt]:
        """Attempts without a recorded end: still playing, or interrupted."""
        return self._counter.attempts.open

    def add(self, event: AnyEvent) -> None:  # noqa: PLR0912 (one case for each event)
        before = self.last
        self._counter.add(event)
        match event:
            case Began():
                self._begin(event, before)
            case Drawn(group=group, tag=tag):
                self.groups[group] = tag
            case Dispatched(uid=uid):
                self._dispatch(uid)
            case Failed(uid=uid, error=error):
                self.retries[error.partition(":")[0]] += 1
                self._retried.add(group_of(uid))
            case Finished(uid=uid):
                self._ends[uid] += 1
                if event.node is not msgspec.UNSET and event.shard is not msgspec.UNSET:
                    self.places[uid] = ShardPlace(event.shard, event.node)
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

    def add_records(self, records: TrajectoryFile) -> None:
        """A record without an event is that of a rollout that is over: the process was killed in between."""
        for uid, count in records.counts.items():
            if count > self._ends[uid]:
                attempt = self.in_flight.pop(uid, None) or RolloutAttempt(uid, [(self.last, None)])
                line = records.groups[group_of(uid)][uid]
                with located_at(line.place):
                    _, _, trajectory = decode_record(records.read(line))
                attempt.turns = max(attempt.turns, len(trajectory.turns))
                attempt.tokens = max(attempt.tokens, trajectory.sampled_tokens)
                attempt.pause(self.last)
                attempt.end = "finished"
                self._note_end(attempt)

    def settle(self) -> None:
        """Find out what became of the groups; call it after the last event."""
        self._playing = {*map(group_of, self.in_flight)}
        for group, begun in self._begun.items():
            if (evaluation := self.evaluation_of(group)) is not None:
                evaluation.most = max(evaluation.most, len(begun))
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

    def attempts_of(self, evaluation: EvaluationRecord | None) -> Iterator[RolloutAttempt]:
        """All attempts of training, or those of an evaluation: what counts, what was lost, and what is in flight."""
        for attempt in (*self.finished.values(), *self.lost, *self.in_flight.values()):
            if self.evaluation_of(group_of(attempt.uid)) is evaluation:
                yield attempt

    def fate(self, group: str) -> Fate:
        if group in self._fates:
            return self._fates[group]
        verdict = self.verdicts.get(group)
        if (evaluation := self.evaluation_of(group)) is not None:
            return Fate("evaluation" if evaluation.is_complete or self._is_whole(group, evaluation) else "incomplete")
        if verdict is not None and not verdict.keep:
            return Fate("dropped", verdict.reason)
        if group in self._cancelled:
            return Fate("cancelled")
        if group in self._dropped:
            return Fate("stale")
        return Fate("incomplete" if verdict is None else "waiting")

    def clock(self, at: float) -> float:
        """Seconds of running up to that time, without pauses between processes."""
        began, paused = self.attempts[max(bisect_right(self.attempts, (at, float("inf"))) - 1, 0)]
        return max(at, began) - self.attempts[0][0] - paused

    def _is_whole(self, group: str, evaluation: EvaluationRecord) -> bool:
        """Whether all members of an evaluation's group are over."""
        return len(self._over.get(group, ())) >= max(evaluation.size, 1) and group not in self._playing

    def _note_end(self, attempt: RolloutAttempt) -> None:
        if attempt.end == "finished":
            self._void([attempt.uid])
            self.finished[attempt.uid] = attempt
            self._over[group_of(attempt.uid)].add(attempt.uid)
        else:
            self.lost.append(attempt)

    def _dispatch(self, uid: str) -> None:
        """A group that was cancelled begins anew with its first rollout."""
        group = group_of(uid)
        if not group.startswith(DRAWN):
            self._begun[group].add(uid)
        is_new = group in self._cancelled
        self._cancelled.discard(group)
        self._void([*self._over.get(group, ())] if is_new else [uid])

    def _void(self, uids: Iterable[str]) -> None:
        """Their records do not count any more: they are played again."""
        for uid in uids:
            if (attempt := self.finished.pop(uid, None)) is not None:
                attempt.end = "cancelled"
                self.lost.append(attempt)
                self._over[group_of(uid)].discard(uid)

    def _cancel(self, group: str) -> None:
        self._cancelled.add(group)
        self._retried.discard(group)
        self.verdicts.pop(group, None)
        self._partial_round.discard(group)

    def _is_evaluated(self, group: str) -> bool:
        evaluation = self.evaluation_of(group)
        return evaluation is not None and evaluation.is_complete

    def _begin(self, event: Began, before: float) -> None:
        paused = self.attempts[-1][1] + max(event.at - before, 0.0) if self.attempts else 0.0
        self.attempts.append((event.at, paused))
        if changes(self.given, event.given):
            replied = (uid for uid, attempt in self.in_flight.items() if attempt.turns)
            begun = {*map(group_of, self.finished), *map(group_of, replied), *self._retried}
            changed = [group for group in begun if not self._is_evaluated(group)]
            forgotten = [*unfinished(changed, self.finished, self.given)]
            for group in forgotten:
                self._cancel(group)
            self._counter.forget(forgotten)
        self.given = {**self.given, **event.given}
        self._partial_round.clear()
        if event.batch is not None:
            self._go_back_to(event.batch)

    def _go_back_to(self, batch: int) -> None:
        """From this batch on nothing has been delivered; the weights are those with which it was."""
        again = sorted(index for index in self.batches if index >= batch)
        if again:
            self._weights = self.batches[again[0]].weights
        for index in again:
            self._dropped.update(self.batches.pop(index).dropped)


def read_run(directory: Path) -> RecordedRun:
    """Read the journal of a run; a `UsageError` says that there is none, or which line is wrong."""
    run = _read_events(directory)
    run.settle()
    return run


def read_files(directory: Path) -> tuple[RecordedRun, TrajectoryFile]:
    """Read the journal of a run, which may still be playing, and find its records, those without an event included."""
    run, records = _read_events(directory), TrajectoryFile(directory)
    run.add_records(records)
    run.settle()
    return run, records


def _read_events(directory: Path) -> RecordedRun:
    run = RecordedRun()
    read_events(directory, run.add)
    if not run.attempts:
        raise UsageError(f"{directory / JOURNAL} is empty: the run has not begun")
    return run
