"""The journal of a run that goes on: what was, and what happens now."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread

from asyncrollout.arrays.records import encode_record
from asyncrollout.errors import EnvError, UsageError
from asyncrollout.journal.events import (
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
    TakenBack,
    Updated,
)
from asyncrollout.journal.lines import cut_torn_end, whole_lines
from asyncrollout.journal.reader import Past, read_past
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES, Lock, Writer
from asyncrollout.plain import to_plain
from asyncrollout.pool.digest import digest
from asyncrollout.secrets import hide, hide_in_error, known_secrets, without_secrets
from asyncrollout.trajectories import Group, StopReason, Trajectory, group_of

_SHOWN = 500


class RunJournal:
    """Tells of rollouts that are recorded, and records those that are played."""

    def __init__(self, directory: Path, past: Past, writer: Writer) -> None:
        self.directory = directory
        self.past = past
        self.writer = writer
        self._dispatched: set[str] = set()
        self._drawn = {*past.drawn}
        self._secrets = known_secrets()

    def recall(self, uid: str) -> Trajectory | None:
        """A rollout that was finished before."""
        return self.past.finished.get(uid)

    def retries_used(self, group: str) -> int:
        return self.past.retries.pop(group, 0)

    def is_broken_off(self, uid: str) -> bool:
        """Whether it was under way when the run was broken off."""
        return uid not in self._dispatched and bool(self.past.replies.get(uid))

    def drawn(self, group: str, index: int, seed: int, tag: str, task: Any) -> None:
        if index not in self._drawn:
            try:
                plain = to_plain(task)
            except UsageError as error:
                raise UsageError(f"task {index} cannot be recorded: {error}") from error
            self._drawn.add(index)
            self.writer.put(Drawn(group=group, index=index, seed=seed, tag=tag, task=plain))

    def dispatched(self, uid: str) -> None:
        if uid in self._dispatched:  # once more, and from its beginning
            self.past.replies.pop(uid, None)
        self._dispatched.add(uid)
        self.writer.put(Dispatched(uid=uid))

    def failed(self, trajectory: Trajectory) -> None:
        self.past.replies.pop(trajectory.uid, None)
        self.writer.put(Failed(uid=trajectory.uid, error=self._told(trajectory)))

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:
        """The trajectory, which is on its way to the disk; one that cannot be written has failed."""
        await self.writer.room()
        group = group_of(trajectory.uid)
        if trajectory.error is not None:
            trajectory = msgspec.structs.replace(trajectory, error=hide_in_error(trajectory.error, self._secrets))
        try:
            line = encode_record(group, tag, trajectory)
        except UsageError as error:
            trajectory = _unwritable(trajectory, error)
            line = encode_record(group, tag, trajectory)
        self._dispatched.discard(trajectory.uid)
        self.writer.put(self._end_of(trajectory), line + b"\n")
        return trajectory

    def given_up(self, groups: Iterable[str], *, with_all_recorded: bool) -> None:
        """They will be played anew; so will be whatever else is recorded and not delivered, if so wished."""
        for group in {*groups, *(self.past.unfinished_groups() if with_all_recorded else ())}:
            self.past.forget(group)
            self.writer.put(Cancelled(group=group))

    def judged(self, group: Group, more: int) -> None:
        assert group.verdict is not None
        self.writer.put(Judged(group=group.id, keep=group.verdict.keep, reason=group.verdict.reason, more=more))

    def delivered(self, batch: int, groups: list[Group], dropped: list[str]) -> None:
        ids = [group.id for group in groups]
        self.writer.put(Delivered(batch=batch, groups=ids, dropped=dropped))
        for group in (*ids, *dropped):
            self.past.forget(group)

    def taken_back(self, batch: int) -> None:
        """It did not come through to its taker, and is delivered later."""
        self.writer.put(TakenBack(batch=batch))

    def dropped(self, groups: list[str]) -> None:
        """They led to no batch, and are not looked at again."""
        if groups:
            self.writer.put(Dropped(groups=groups))

    def updated(self, weights: int) -> None:
        self.writer.put(Updated(weights=weights))

    def begin_evaluation(self, what: Any, env_kwargs: dict[str, Any]) -> str:
        """The name of an evaluation: that of one which was broken off, if it is the same, or a new one."""
        asked = digest(what)
        for name, begun in self.past.evaluating.items():
            if begun.what == asked:
                del self.past.evaluating[name]
                return name
        name = f"eval{self.past.evaluations}"
        self.past.evaluations += 1
        self.writer.put(Evaluating(name=name, what=asked, env_kwargs=_recordable(env_kwargs)))
        return name

    def end_evaluation(self, name: str) -> None:
        self.writer.put(Evaluated(name=name))

    def _end_of(self, trajectory: Trajectory) -> Finished:
        return _end_of(trajectory, None if trajectory.error is None else self._told(trajectory))

    def _told(self, trajectory: Trajectory) -> str:
        return hide(f"{type(trajectory.error).__name__}: {trajectory.error}", self._secrets)[:_SHOWN]


@asynccontextmanager
async def open_journal(directory: Path, given: dict[str, Any], *, resume: bool | int) -> AsyncIterator[RunJournal]:
    """The journal of a new run, or of one that is resumed; `given` must be what it was then."""
    if resume is not False and not (directory / JOURNAL).exists():
        raise UsageError(f"{directory} holds no run: it has no {JOURNAL}")
    lock = Lock(directory)
    try:
        past = _begin(directory) if resume is False else await to_thread.run_sync(_read, directory, given, resume)
        async with Writer(directory) as writer:
            writer.put(Began(given=given, batch=None if isinstance(resume, bool) else resume))
            for trajectory in past.unlisted:
                error = trajectory.error
                writer.put(_end_of(trajectory, None if error is None else type(error).__name__))
            await writer.flush()
            yield RunJournal(directory, past, writer)
    finally:
        lock.release()


def _begin(directory: Path) -> Past:
    """Of a process that was killed before it wrote a line, nothing is left that anybody wants."""
    for name in (JOURNAL, TRAJECTORIES):
        if any(whole_lines(directory / name)):
            raise UsageError(f"{directory} holds a run already: resume it, or choose another directory")
        cut_torn_end(directory / name)
    return Past()


def _read(directory: Path, given: dict[str, Any], resume: bool | int) -> Past:
    past = read_past(directory, None if isinstance(resume, bool) else resume)
    then = past.given
    other = [f"{key}={given.get(key)!r} (then {then.get(key)!r})" for key in given if given[key] != then.get(key)]
    if other and past.attempts:  # else it was killed before it had begun
        raise UsageError(f"{directory} cannot be resumed with other settings: {', '.join(other)}")
    for name in (JOURNAL, TRAJECTORIES):
        cut_torn_end(directory / name)
    return past


def _end_of(trajectory: Trajectory, error: str | None) -> Finished:
    return Finished(
        uid=trajectory.uid,
        reward=trajectory.reward,
        stop_reason=trajectory.stop_reason,
        turns=len(trajectory.turns),
        tokens=trajectory.sampled_tokens,
        seconds=trajectory.seconds,
        error=error,
    )


def _recordable(env_kwargs: dict[str, Any]) -> Any:
    """Without secrets; None if there is no form for a file, which is no reason not to play."""
    try:
        return without_secrets(to_plain(env_kwargs))
    except UsageError:
        return None


def _unwritable(trajectory: Trajectory, error: UsageError) -> Trajectory:
    failed = EnvError.at(f"{error}", env=trajectory.env, seed=trajectory.seed, turn=len(trajectory.turns))
    return msgspec.structs.replace(
        trajectory,
        turns=[],
        messages=[],
        final=None,
        task=None,
        reward=0.0,
        stop_reason=StopReason.ENV_ERROR,
        error=failed,
    )
