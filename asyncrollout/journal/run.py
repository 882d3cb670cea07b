"""The journal of a run that goes on: what was, and what happens now."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from asyncrollout.arrays.records import encode_record
from asyncrollout.errors import EnvError, UsageError
from asyncrollout.journal.events import (
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
    Updated,
)
from asyncrollout.journal.reader import Past, read_past
from asyncrollout.journal.writer import JOURNAL, Lock, Writer
from asyncrollout.plain import to_plain
from asyncrollout.trajectories import Group, StopReason, Trajectory, group_of

_SHOWN = 500


class RunJournal:
    """Tells of rollouts that are recorded, and records those that are played."""

    def __init__(self, past: Past, writer: Writer) -> None:
        self.past = past
        self.writer = writer
        self._dispatched: set[str] = set()

    def recall(self, uid: str) -> Trajectory | None:
        """A rollout that was finished before, once."""
        return self.past.finished.pop(uid, None)

    def retries_used(self, group: str) -> int:
        return self.past.retries.pop(group, 0)

    def is_broken_off(self, uid: str) -> bool:
        """Whether it was under way when the run was broken off."""
        return uid not in self._dispatched and bool(self.past.replies.get(uid))

    def drawn(self, group: str, index: int, seed: int, tag: str, task: Any) -> None:
        if index not in self.past.drawn:
            event = Drawn(group=group, index=index, seed=seed, tag=tag, task=to_plain(task))
            self.past.drawn[index] = event
            self.writer.put(event)

    def dispatched(self, uid: str) -> None:
        if uid in self._dispatched:  # once more, and from its beginning
            self.past.replies.pop(uid, None)
        self._dispatched.add(uid)
        self.writer.put(Dispatched(uid=uid))

    def failed(self, trajectory: Trajectory) -> None:
        self.past.replies.pop(trajectory.uid, None)
        self.writer.put(Failed(uid=trajectory.uid, error=_told(trajectory)))

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:
        """The trajectory, which is on its way to the disk; one that cannot be written has failed."""
        await self.writer.room()
        try:
            line = encode_record(group_of(trajectory.uid), tag, trajectory)
        except UsageError as error:
            trajectory = _unwritable(trajectory, error)
            line = encode_record(group_of(trajectory.uid), tag, trajectory)
        self._dispatched.discard(trajectory.uid)
        self.writer.put(_end_of(trajectory), line + b"\n")
        return trajectory

    def cancelled(self, groups: Iterable[str]) -> None:
        for group in groups:
            self.writer.put(Cancelled(group=group))

    def judged(self, group: Group) -> None:
        assert group.verdict is not None
        self.writer.put(Judged(group=group.id, keep=group.verdict.keep, reason=group.verdict.reason))

    async def delivered(self, batch: int, groups: list[Group]) -> None:
        """Everything about these groups is written when this returns."""
        self.writer.put(Delivered(batch=batch, groups=[group.id for group in groups]))
        await self.writer.flush()

    async def updated(self, weights: int) -> None:
        self.writer.put(Updated(weights=weights))
        await self.writer.flush()

    def begin_evaluation(self, tasks: int, k: int, seed: int, weights: int) -> str:
        """The name of an evaluation: that of one which was broken off, if it is the same, or a new one."""
        for name, begun in self.past.evaluating.items():
            if (begun.tasks, begun.k, begun.seed, begun.weights) == (tasks, k, seed, weights):
                del self.past.evaluating[name]
                return name
        name = f"eval{self.past.evaluations}"
        self.past.evaluations += 1
        self.writer.put(Evaluating(name=name, tasks=tasks, k=k, seed=seed, weights=weights))
        return name

    def end_evaluation(self, name: str) -> None:
        self.writer.put(Evaluated(name=name))


@asynccontextmanager
async def open_journal(directory: Path, given: dict[str, Any], *, resume: bool | int) -> AsyncIterator[RunJournal]:
    """The journal of a new run, or of one that is resumed; `given` must be what it was then."""
    lock = Lock(directory)
    try:
        past = Past() if resume is False else await _read(directory, given, resume)
        if resume is False and (directory / JOURNAL).exists():
            raise UsageError(f"{directory} holds a run already: resume it, or choose another directory")
        async with Writer(directory) as writer:
            writer.put(Began(given=given, batch=None if isinstance(resume, bool) else resume))
            for trajectory in past.unlisted:
                writer.put(_end_of(trajectory))
            await writer.flush()
            yield RunJournal(past, writer)
    finally:
        lock.release()


async def _read(directory: Path, given: dict[str, Any], resume: bool | int) -> Past:
    batch = None if isinstance(resume, bool) else resume
    past = await anyio.to_thread.run_sync(read_past, directory, batch)
    if not past.attempts:  # killed before it had begun
        return past
    then = past.given
    other = [f"{key}={given.get(key)!r} (then {then.get(key)!r})" for key in given if given[key] != then.get(key)]
    if other:
        raise UsageError(f"{directory} cannot be resumed with other settings: {', '.join(other)}")
    return past


def _end_of(trajectory: Trajectory) -> Finished:
    return Finished(
        uid=trajectory.uid,
        reward=trajectory.reward,
        stop_reason=trajectory.stop_reason,
        turns=len(trajectory.turns),
        tokens=trajectory.sampled_tokens,
        seconds=trajectory.seconds,
        error=None if trajectory.error is None else _told(trajectory),
    )


def _told(trajectory: Trajectory) -> str:
    return f"{type(trajectory.error).__name__}: {trajectory.error}"[:_SHOWN]


def _unwritable(trajectory: Trajectory, error: UsageError) -> Trajectory:
    failed = EnvError.at(f"{error}", env=trajectory.env, seed=trajectory.seed, turn=len(trajectory.turns))
    return msgspec.structs.replace(
        trajectory, turns=[], messages=[], final=None, reward=0.0, stop_reason=StopReason.ENV_ERROR, error=failed
    )
