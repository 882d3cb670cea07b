"""The time limit of a call on the event loop."""

import asyncio
import math
from types import TracebackType
from typing import Self

import anyio

_PARTS = 10


class TimeLimit:
    """Cancels its body after so many seconds in which the event loop was awake.

    The time is counted in small parts. A program that was frozen finds one of them over, and not all, so that no env is
    blamed for it.
    """

    def __init__(self, limit: float) -> None:
        self.scope = anyio.CancelScope()
        self.is_over = False
        self._part = limit / _PARTS
        self._left = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self.scope.__enter__()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._stop()
        ended = self.scope.__exit__(kind, error, trace)
        self.is_over = self.scope.cancelled_caught
        self._left = -1
        return bool(ended)

    def start(self) -> None:
        """Give the whole time again, for another part of the work."""
        if self._left >= 0 and self._part < math.inf:
            self._stop()
            self._left = _PARTS
            self._timer = self._loop.call_later(self._part, self._tick)

    def _tick(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._part, self._tick)
        else:
            self.scope.cancel()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
