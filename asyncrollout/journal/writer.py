"""Writes the files of a run from one task: all that is queued goes to disk together, in order."""

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import aiofiles
import anyio

from asyncrollout.concurrency import Background, run_to_end
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.events import AnyEvent, encode

JOURNAL = "journal.jsonl"
TRAJECTORIES = "trajectories.jsonl"

_MOST_QUEUED = 16 * 2**20  # bytes
_LONGEST_WRITE = 60  # seconds
_LINGER = 0.02  # seconds; each trip to the disk costs as much as a turn


class Writer:
    """Appends to the two files of a run: its events, and its finished trajectories.

    A trajectory is in its file before its event is in the other. Once `flush` returns, the operating system has
    everything, so that killing this process loses nothing. Every method raises a failure of the disk.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lines: list[bytes] = []
        self._trajectories: list[bytes] = []
        self._held: list[bytes] = []
        self._queued = self._written = 0  # bytes
        self._failure: JournalError | None = None
        self._is_failure_raised = self._closing = False
        self._hurry = anyio.Event()
        self._changed = anyio.Event()
        self._background = Background()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as files:
            try:
                self._journal = await files.enter_async_context(_appending(self._directory / JOURNAL))
                self._records = await files.enter_async_context(_appending(self._directory / TRAJECTORIES))
            except OSError as error:
                raise _write_error(self._directory, error) from error
            self._files = files.pop_all()
        await self._background.open()
        self._background.start_soon(self._write_to_the_end)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Write all that is queued; raise a failure of the disk that no method has raised yet."""
        self._closing = True
        self._hurry.set()
        self._notify()
        try:
            await self._background.close(error, cancel=False)
        finally:
            await run_to_end(self._files.aclose)  # bounded by the disk, as is what was written last
        if kind is None and not self._is_failure_raised:
            self._check()

    def hold(self, event: AnyEvent) -> None:
        """Hold an event back until another one is queued: without that, it means nothing."""
        self._held.append(encode(event))

    def put(self, event: AnyEvent, trajectory: bytes = b"") -> None:
        """Queue an event, and the line of the trajectory that it is about."""
        self.put_line(encode(event), trajectory)

    def put_line(self, line: bytes, trajectory: bytes = b"") -> None:
        """Queue an event that is encoded already."""
        self._check()
        if self._closing:
            return
        if self._held:
            line, self._held = b"".join((*self._held, line)), []
        if trajectory:
            self._trajectories.append(trajectory)
        self._lines.append(line)
        self._queued += len(line) + len(trajectory)
        if len(self._lines) == 1:
            self._notify()

    @property
    def is_full(self) -> bool:
        """Whether too much is queued, or cannot be written."""
        return self._queued - self._written > _MOST_QUEUED or self._failure is not None

    async def room(self) -> None:
        """Wait while too much is queued."""
        if self._queued - self._written > _MOST_QUEUED:
            await self._until(lambda: self._queued - self._written <= _MOST_QUEUED or self._closing)
        self._check()

    async def flush(self) -> None:
        """Wait until all that was queued so far is written."""
        wanted = self._queued
        if self._written < wanted:
            await self._until(lambda: self._written >= wanted)
        self._check()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        with anyio.move_on_after(_LONGEST_WRITE) as waiting:
            while not is_so():
                self._check()
                self._hurry.set()
                await self._changed.wait()
        if waiting.cancelled_caught:
            left = self._queued - self._written
            raise JournalError(f"{self._directory}: {left} bytes could not be written in {_LONGEST_WRITE} s")

    async def _write_to_the_end(self) -> None:
        """Write until closed, even if cancelled: what was played by then is recorded."""
        with anyio.CancelScope(shield=True):
            await self._write_all()

    async def _write_all(self) -> None:
        try:
            while self._lines or not self._closing:
                if not self._lines:
                    await self._changed.wait()
                    continue
                with anyio.move_on_after(_LINGER):
                    await self._hurry.wait()
                self._hurry = anyio.Event()
                lines, self._lines = b"".join(self._lines), []
                trajectories, self._trajectories = b"".join(self._trajectories), []
                if not os.fstat(self._journal.fileno()).st_nlink:
                    raise FileNotFoundError(errno.ENOENT, "the directory of the run is gone")
                await _append(self._records, trajectories)
                await _append(self._journal, lines)
                self._written += len(lines) + len(trajectories)
                self._notify()
        except OSError as error:
            self._failure = _write_error(self._directory, error)
            self._notify()

    def _check(self) -> None:
        if self._failure is not None:
            self._is_failure_raised = True
            raise self._failure

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _appending(path: Path) -> Any:
    return aiofiles.open(path, "ab", buffering=0)


async def _append(file: Any, content: bytes) -> None:
    """Write all of it: a nearly full disk takes a part, and refuses the rest."""
    rest = memoryview(content)
    while rest:
        rest = rest[await file.write(rest) :]


def _write_error(directory: Path, error: OSError) -> JournalError:
    return JournalError(f"cannot write to {directory}: {error.strerror or error}")


class Lock:
    """A run directory belongs to one process at a time; the lock ends with its process."""

    def __init__(self, directory: Path, name: str = ".lock") -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.file = (directory / name).open("ab")  # changes nothing if another process owns the directory
        except OSError as error:
            raise _write_error(directory, error) from error
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.file.close()
            if isinstance(error, BlockingIOError):
                raise UsageError(f"{directory} is in use by another process") from error
            raise _write_error(directory, error) from error
        _held.add(self)

    def release(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)  # a forked process may have it open, too
        self.file.close()

    @staticmethod
    def forget_all() -> None:
        """Called in a forked process, which may outlive this one and must not keep its locks."""
        for lock in _held:
            lock.file.close()


_held: WeakSet[Lock] = WeakSet()
os.register_at_fork(after_in_child=Lock.forget_all)
