"""Large arrays on their way from a worker to the pool, through mapped files.

An image copied through a socket passes the kernel twice, in many small reads. Here the worker writes it once and the
pool copies it once. An env has one call in flight, so the pool has taken the arrays of a reply before the env's next
one is written: one region per env suffices, without locks or acknowledgements.
"""

import mmap
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.mapping import attach, reserve

_ALIGN = 64
_FILE_STEP = 64 << 20  # bytes by which a worker's room for arrays grows, once there is much


class Arena:
    """A worker's files for arrays: a few large ones, because each costs a descriptor. Thread-safe.

    Sizes are powers of two, so that a region given back fits the next env that needs one of its size.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[mmap.mmap] = []
        self._end = 0  # of what is used in the last file
        self._free: defaultdict[int, list[Region]] = defaultdict(list)
        self._lock = threading.Lock()

    def take(self, size: int) -> "Region":
        """A region of at least this size; raises OSError if it does not fit."""
        size = 1 << (size - 1).bit_length()
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            if not self._files or self._end + size > len(self._files[-1]):
                room = max(size, min(sum(map(len, self._files)), _FILE_STEP))
                self._files.append(reserve(self._directory / str(len(self._files)), room))
                self._end = 0
            start, self._end = self._end, self._end + size
            return Region(self._files[-1], len(self._files) - 1, start, size)

    def give_back(self, region: "Region") -> None:
        with self._lock:
            self._free[region.size].append(region)


class Region(NamedTuple):
    memory: mmap.mmap
    file: int
    offset: int
    size: int


class ArrayWriter:
    """The worker's side, one for each env: the arrays of a reply lie in one region, used again for the next reply.

    Without an arena, all arrays go over the socket.
    """

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena
        self._region: Region | None = None
        self._outgrown: list[Region] = []
        self._used = 0
        self._full = False
        self.used = False
        self.is_bulky = False
        """Whether the reply holds a large array that goes over the socket."""

    def begin(self) -> None:
        """A new reply: the pool has taken what the last one held."""
        self._used = 0
        self.used = self.is_bulky = False
        for region in self._outgrown:
            self._give_back(region)
        self._outgrown.clear()

    def place(self, array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext | None:
        self.used = True
        if self._arena is None or self._full or array.dtype.kind in "Mm":  # dates have no buffer interface
            self.is_bulky = True
            return None
        start = -(-self._used // _ALIGN) * _ALIGN
        if self._region is None or start + array.nbytes > self._region.size:
            try:
                self._grow(self._arena, start + array.nbytes)
            except OSError:
                self._full = self.is_bulky = True  # no room: this env's arrays go over the socket from now on
                return None
            start = 0
        assert self._region is not None
        memory, file, offset, _ = self._region
        room: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, memory, offset + start)
        room[...] = array
        self._used = start + array.nbytes
        reference = msgspec.msgpack.encode((file, offset + start, array.dtype.str, array.shape))
        return msgspec.msgpack.Ext(codec.Code.MAPPED, reference)

    def _grow(self, arena: Arena, size: int) -> None:
        region = arena.take(size)
        if self._region is not None:
            self._outgrown.append(self._region)  # earlier arrays of this reply lie there
        self._region = region

    def close(self) -> None:
        self.begin()
        if self._region is not None:
            self._give_back(self._region)
            self._region = None

    def _give_back(self, region: Region) -> None:
        if self._arena is not None:
            self._arena.give_back(region)


class ArrayReader:
    """The pool's side of a worker's array files: copies an array out, so that its place is free for the next reply."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, mmap.mmap] = {}
        self._decode = msgspec.msgpack.Decoder(tuple[int, int, str, tuple[int, ...]]).decode

    def read(self, reference: bytes) -> np.ndarray[Any, Any]:
        file, offset, dtype, shape = self._decode(reference)
        memory = self._files.get(file)
        if memory is None:
            path = self._directory / str(file)
            memory = self._files[file] = attach(path)
            path.unlink()
        seen: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memory, offset)
        return seen.copy()

    def close(self) -> None:
        for memory in self._files.values():
            memory.close()
        self._files.clear()
