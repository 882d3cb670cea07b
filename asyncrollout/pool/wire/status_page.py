"""The page in which a worker says what it is working on, and the pool what to skip; neither costs a message."""

import mmap
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from asyncrollout.pool.wire.mapping import attach, reserve

PAGE_SLOTS = 4096
MOST_WITHDRAWN = 1022
_ALL = MOST_WITHDRAWN + 1  # in the place of their number
CLOSING = 2**64 - 1
"""In the place of a call's id: an env is being closed because the pool is."""

_HALF = PAGE_SLOTS * 8
_SIZE = 2 * _HALF + (3 + MOST_WITHDRAWN) * 8


class WatchedPage(Protocol):
    """The pool's side of a page; on another machine, what is reported of it."""

    def running(self) -> list[tuple[int, float]]: ...

    def main_call(self) -> tuple[int, float]: ...

    def last_begun(self) -> int: ...

    @property
    def room(self) -> int: ...

    def withdraw(self, call_ids: list[int]) -> None: ...

    def withdraw_all(self) -> None: ...

    def forget_withdrawn(self) -> None: ...


class StatusPage:
    """What a worker is working on: it writes start time and call id into a slot for each thread; the watchdog reads.

    Each number is one aligned store, so that it is never seen half-written; the id comes last, and 0 means idle.
    The pool writes the ids of calls that the worker is to skip, and then looks what it is working on; the worker writes
    what it begins, and then looks whether it is to skip that. So one of them always sees what the other wrote.
    """

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        view = memoryview(memory)
        self._starts = view[:_HALF].cast("d")
        self._calls = view[_HALF : 2 * _HALF].cast("Q")
        self._passed = view[2 * _HALF : 2 * _HALF + 8].cast("Q")
        self._gave_up = view[2 * _HALF + 8 : 2 * _HALF + 16].cast("Q")
        self.withdrawn = view[2 * _HALF + 16 : _SIZE].cast("Q")  # their number, then their ids
        self._calls_seen: np.ndarray[Any, Any] = np.frombuffer(self._calls, np.uint64)

    @classmethod
    def create(cls, path: Path) -> "StatusPage":
        return cls(reserve(path, _SIZE))

    @classmethod
    def attach(cls, path: Path) -> "StatusPage":
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

    @property
    def room(self) -> int:
        """How many more calls can be withdrawn before all are forgotten."""
        return max(MOST_WITHDRAWN - self.withdrawn[0], 0)

    def withdraw(self, call_ids: list[int]) -> None:
        """Have these calls skipped, unless they were begun."""
        count = self.withdrawn[0]
        for place, call_id in enumerate(call_ids, start=count + 1):
            self.withdrawn[place] = call_id
        self.withdrawn[0] = count + len(call_ids)

    def withdraw_all(self) -> None:
        """Have every call skipped that was not begun, however many there are."""
        self.withdrawn[0] = _ALL

    def forget_withdrawn(self) -> None:
        """The worker is past all calls that were withdrawn."""
        self.withdrawn[0] = 0

    def is_withdrawn(self, call_id: int) -> bool:
        """For the worker: whether to skip the call that it just wrote down as begun."""
        count = self.withdrawn[0]
        return count == _ALL or call_id in self.withdrawn[1 : count + 1].tolist()

    def main_call(self) -> tuple[int, float]:
        """`(call id, start)` of the call of the main thread, behind which others queue; the id is 0 if it is idle."""
        return self._calls[0], self._starts[0]

    def end_frame(self, last_call: int) -> None:
        """The main thread has nothing to do: it is past all calls up to this one."""
        self._passed[0] = last_call
        self._calls[0] = 0

    def last_begun(self) -> int:
        """The call up to which the main thread has begun all, or handed them over: their replies are on their way."""
        return max(self._calls[0], self._passed[0])

    def give_up(self) -> None:
        """The worker can no longer serve, and is about to kill itself."""
        self._gave_up[0] = 1

    @property
    def was_given_up(self) -> bool:
        return bool(self._gave_up[0])


NO_PAGE = StatusPage(bytearray(_SIZE))
"""Of a worker that is gone: it works on nothing."""
