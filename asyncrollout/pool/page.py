"""The page in which a worker says what it is working on, so that deadlines cost nothing per step."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from asyncrollout.pool.mapping import attach, reserve

PAGE_SLOTS = 4096


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
