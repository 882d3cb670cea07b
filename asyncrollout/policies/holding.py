"""Time that counts: a rollout or a request is not charged for the time in which we hold it back."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

import anyio

_SOONEST = 0.001  # seconds until a deadline is looked at again


class HeldTime:
    """How many seconds somebody was held back; several may hold at a time."""

    __slots__ = ("_holders", "_last", "_since", "_total")

    def __init__(self) -> None:
        self._holders = 0
        self._since = self._total = 0.0
        self._last = -math.inf

    def begin(self) -> None:
        if not self._holders:
            self._since = time.monotonic()
        self._holders += 1

    def end(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._last = time.monotonic()
            self._total += self._last - self._since

    def add(self, seconds: float) -> None:
        """Time that turned out to have been spent waiting."""
        self._total += seconds

    def seconds(self) -> float:
        return self._total + (time.monotonic() - self._since if self._holders else 0.0)

    def last(self) -> float:
        """Until when, on the monotonic clock: now while it lasts."""
        return time.monotonic() if self._holders else self._last


_ROLLOUT: ContextVar[HeldTime | None] = ContextVar("rollout_held", default=None)


@contextmanager
def rollout_clock() -> Iterator[HeldTime]:
    """What `held_back` in this block, and in tasks started there, is charged to."""
    held = HeldTime()
    token = _ROLLOUT.set(held)
    try:
        yield held
    finally:
        _ROLLOUT.reset(token)


def rollout_held() -> HeldTime | None:
    """Of the rollout that this code runs for, if any."""
    return _ROLLOUT.get()


def charged() -> float:
    """A clock that stands still while the rollout that this code runs for is held back."""
    held = _ROLLOUT.get()
    return time.monotonic() if held is None else time.monotonic() - held.seconds()


@contextmanager
def held_back() -> Iterator[None]:
    """A wait that the rollout is not charged for."""
    held = _ROLLOUT.get()
    if held is None:
        yield
        return
    held.begin()
    try:
        yield
    finally:
        held.end()


class Deadline:
    """A block that is cancelled after so many seconds (None: never) without those that `held` returns.

    It looks at the clock when time seems to be up, and waits on if it was held meanwhile: holding costs nothing.
    """

    def __init__(self, seconds: float | None, held: Callable[[], float]) -> None:
        self.expired = False
        self._scope = anyio.CancelScope()
        self._seconds = seconds
        self._held = held
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._scope.__enter__()
        if self._seconds is not None and self._seconds < math.inf:
            self._began = time.monotonic() - self._held()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        swallowed = bool(self._scope.__exit__(kind, error, trace))
        self.expired = self._scope.cancelled_caught
        return swallowed

    def left(self) -> float:
        """Seconds; for a deadline that was entered and has a limit."""
        assert self._seconds is not None
        return self._seconds - (time.monotonic() - self._began - self._held())

    def _look(self) -> None:
        left = self.left()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(max(left, _SOONEST), self._look)
        else:
            self._scope.cancel()
