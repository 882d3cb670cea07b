"""Memory that pool and worker both map: large arrays on their way, and the page that says what a worker is doing.

Each file lives in the worker's private directory and is unlinked as soon as both sides have it open, so
that no kill can leak it.
"""

import mmap
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncrollout.pool import wire

_ALIGN = 64
_SPARE = 1.25
PAGE_SLOTS = 4096


def reserve(path: Path, size: int) -> mmap.mmap:
    """Create and map a file whose space is really there: writing to a full tmpfs would be a SIGBUS."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:  # macOS
            os.write(fd, bytes(size))
        return mmap.mmap(fd, size)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(fd)


def attach(path: Path) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


class ArrayWriter:
    """The worker's side, one for each env: its arrays of one reply lie in one file, used again for the next reply."""

    def __init__(self, directory: Path, env_id: int) -> None:
        self._directory = directory
        self._env_id = env_id
        self._files = 0
        self._memory: mmap.mmap | None = None
        self._offset = 0
        self._full = False
        self.used = False

    def begin(self) -> None:
        """A new reply: the pool has taken what the last one held."""
        self._offset = 0
        self.used = False

    def place(self, array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext | None:
        self.used = True
        start = -(-self._offset // _ALIGN) * _ALIGN
        if self._full or array.dtype.kind in "Mm":  # dates have no buffer interface
            return None
        if self._memory is None or start + array.nbytes > len(self._memory):
            try:
                self._grow(int((start + array.nbytes) * _SPARE))
            except OSError:
                self._full = True  # no room: this env's arrays go over the socket from now on
                return None
            start = 0
        assert self._memory is not None
        room: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, self._memory, start)
        room[...] = array
        self._offset = start + array.nbytes
        name = f"{self._env_id}-{self._files}"
        return msgspec.msgpack.Ext(
            wire.Code.MAPPED, msgspec.msgpack.encode((self._env_id, name, start, array.dtype.str, array.shape))
        )

    def _grow(self, size: int) -> None:
        self._files += 1
        self._memory = reserve(self._directory / f"{self._env_id}-{self._files}", size)


class ArrayReader:
    """The pool's side of a worker's array files: copies an array out, so that its place is free for the next reply."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, tuple[str, mmap.mmap]] = {}
        self._decode = msgspec.msgpack.Decoder(tuple[int, str, int, str, tuple[int, ...]]).decode

    def read(self, reference: bytes) -> np.ndarray[Any, Any]:
        env_id, name, start, dtype, shape = self._decode(reference)
        known = self._files.get(env_id)
        if known is None or known[0] != name:
            path = self._directory / name
            known = self._files[env_id] = (name, attach(path))
            path.unlink()
        seen: np.ndarray[Any, Any] = np.ndarray(shape, dtype, known[1], start)
        return seen.copy()

    def forget(self, env_id: int) -> None:
        self._files.pop(env_id, None)


class Page:
    """What a worker is working on: it writes start time and call id into a slot for each thread; the watchdog reads.

    Each number is one aligned store, so that it is never seen half-written; the id comes last, and 0 means idle.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        half = PAGE_SLOTS * 8
        self._starts = memoryview(memory)[:half].cast("d")
        self._calls = memoryview(memory)[half:].cast("Q")
        self._calls_seen: np.ndarray[Any, Any] = np.frombuffer(self._calls, np.uint64)

    @classmethod
    def create(cls, path: Path) -> "Page":
        return cls(reserve(path, PAGE_SLOTS * 16))

    @classmethod
    def attach(cls, path: Path) -> "Page":
        return cls(attach(path))

    def begin(self, slot: int, call_id: int, now: float) -> None:
        self._starts[slot] = now
        self._calls[slot] = call_id

    def end(self, slot: int) -> None:
        self._calls[slot] = 0

    def running(self) -> list[tuple[int, float]]:
        """`(call id, start)` of every call under way."""
        busy = np.flatnonzero(self._calls_seen.copy())  # of a copy, since it changes while we look
        entries = [(self._calls[slot], self._starts[slot]) for slot in busy.tolist()]
        return [(call, start) for call, start in entries if call]

    def main_start(self) -> list[float]:
        """When the main thread, where others queue, began its call; nothing if it is idle."""
        return [self._starts[0]] if self._calls[0] else []
