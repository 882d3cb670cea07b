"""A loop whose clock jumps to the next timer whenever nothing else is left to do: hours pass in a moment, in order."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

import anyio
import anyio.to_thread

T = TypeVar("T")

_THREAD_POLL = 0.01  # seconds between looks at a thread that is at work


class StuckError(AssertionError):
    """Nothing can ever happen again, or nothing has come to an end within the real time that it was given."""


class _Clock(selectors.DefaultSelector):
    """Never sleeps: instead of waiting for a timer, it moves the time. Only a thread's work is waited for."""

    def __init__(self, patience: float, at_rest: Callable[[], None] | None) -> None:
        super().__init__()
        self.now = 0.0
        self._at_rest = at_rest
        self.threads: anyio.CapacityLimiter | None = None
        self._deadline = time.perf_counter() + patience
        self._is_stuck = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if time.perf_counter() > self._deadline:
            self._give_up("the real time is over")
        if self.threads is not None and self.threads.borrowed_tokens:
            return super().select(_THREAD_POLL if timeout is None else min(timeout, _THREAD_POLL))
        ready = super().select(0)
        if not ready and timeout is None:
            self._give_up("no task can go on, and no timer is set")
        if not ready and timeout:
            self._look()
            self.now += timeout
        return ready

    def _look(self) -> None:
        if self._at_rest is not None:
            at_rest, self._at_rest = self._at_rest, None  # what fails once is not looked at again
            at_rest()
            self._at_rest = at_rest

    def _give_up(self, why: str) -> None:
        if not self._is_stuck:  # once: the tasks must be cancelled then, on this loop
            self._is_stuck = True
            raise StuckError(why)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers run by a clock of its own; `run_in_executor` runs at once, so that files add no chance of their own."""

    def __init__(self, patience: float, at_rest: Callable[[], None] | None = None) -> None:
        self.clock = _Clock(patience, at_rest)
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_virtually(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    patience: float = 60.0,
    at_rest: Callable[[], None] | None = None,
) -> T:
    """What `main()` gives, in virtual time, which `time.monotonic` tells, too; `patience` is in real seconds.

    `at_rest` is called each time before the clock moves: whatever could happen by itself has happened then.
    """

    async def with_threads() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.clock.threads = anyio.to_thread.current_default_thread_limiter()
        return await main()

    loop = VirtualLoop(patience, at_rest)
    with asyncio.Runner(loop_factory=lambda: loop) as runner, patch.object(time, "monotonic", loop.time):
        return runner.run(with_threads())
