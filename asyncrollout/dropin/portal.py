"""Coroutines called from synchronous code: one event loop in a background thread, shared by the whole process."""

import asyncio
import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import thread as _executors  # noqa: F401 (its exit hook must be set before ours)
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, Generic, ParamSpec, Self, TypeVar

import anyio
import anyio.from_thread

from asyncrollout.errors import ClosedError, UsageError
from asyncrollout.logs import get_logger

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

log = get_logger(__name__)

_LOOK_FOR_SIGNALS = 0.2  # seconds
_END_GRACE = 10.0  # seconds for an interrupted call to come to its end
_EXIT_GRACE = 30.0  # seconds for all that was left open, when the program ends


def awaited(future: "Future[T]") -> T:
    """Its result. A signal that comes just before a lock is waited for is not seen until the wait ends: so it ends."""
    while not future.done():
        with suppress(TimeoutError):
            return future.result(_LOOK_FOR_SIGNALS)
    return future.result()


class _PortalCall(Generic[T]):
    """A coroutine for another thread's loop, which can be cancelled at any moment: before, while or after it runs."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self.ended = threading.Event()

    async def run(self) -> T:
        try:
            with anyio.CancelScope() as self._scope:
                if self._is_cancelled:
                    self._scope.cancel()
                return await self._work()
            raise CancelledError  # nobody waits for it any more
        finally:
            self.ended.set()

    def cancel(self) -> None:
        """For the loop's thread only."""
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()


class LoopThread:
    """An event loop in a thread of its own, to which any other thread can give coroutine functions to run."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._ready: Future[tuple[asyncio.AbstractEventLoop, anyio.CancelScope]] = Future()
        self._thread = threading.Thread(target=self._serve, name="asyncrollout-portal", daemon=True)
        self._thread.start()
        self._loop, self._scope = self._ready.result()

    def _serve(self) -> None:
        try:
            anyio.run(self._host, backend_options={"use_uvloop": find_spec("uvloop") is not None})
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)  # raised where the loop was wanted

    async def _host(self) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.from_thread.BlockingPortal() as self._portal:
                self._ready.set_result((asyncio.get_running_loop(), scope))
                await self._portal.sleep_until_stopped()

    @property
    def can_be_awaited(self) -> bool:
        """Whether the caller may wait for it: not in a process forked from its own, and not on its own thread."""
        return os.getpid() == self._pid and threading.current_thread() is not self._thread

    def run(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the coroutine returns or raises."""
        return self.attend(partial(work, *args, **kwargs), awaited)

    def start(self, work: Callable[[], Awaitable[T]]) -> "Future[T]":
        """Start a coroutine without waiting for it."""
        self._check_caller()
        return self._start(_PortalCall(work))

    def attend(self, work: Callable[[], Awaitable[T]], wait: "Callable[[Future[T]], R]") -> R:
        """Start a coroutine and wait; an interrupt of the wait, such as Ctrl-C, cancels it and awaits its end."""
        self._check_caller()
        call = _PortalCall(work)
        try:
            return wait(self._start(call))
        except CancelledError:
            raise ClosedError("the event loop of synchronous calls was closed meanwhile") from None
        except BaseException:
            if not call.ended.is_set():
                self.call_soon(call.cancel)
                call.ended.wait(_END_GRACE)
            raise

    def _check_caller(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                "this was opened before the process was forked, and belongs to the parent: open it again here, "
                "or start processes with multiprocessing.get_context('spawn')"
            )
        if not self.can_be_awaited:
            raise UsageError(
                "a synchronous call on the event loop's own thread would wait for itself: await the coroutine instead"
            )

    def _start(self, call: _PortalCall[T]) -> "Future[T]":
        try:
            return self._portal.start_task_soon(call.run)
        except RuntimeError as error:
            call.ended.set()  # it never begins
            raise ClosedError("the event loop of synchronous calls is closed") from error

    def call_soon(self, act: Callable[[], object]) -> None:
        """From any thread, without waiting; nothing happens where the loop is gone."""
        if os.getpid() == self._pid:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(act)

    def close(self) -> None:
        """Cancel what runs and leave what is open, workers included; waits for the end, but not for ever."""
        self.call_soon(self._scope.cancel)
        self._thread.join(_EXIT_GRACE)
        if self._thread.is_alive():
            log.warning("event_loop_did_not_end", seconds=_EXIT_GRACE, hint="what is still open there is abandoned")


class Opened(Generic[T]):
    """An async context manager entered on the shared loop; left by `close()`, by `with`, as garbage or at exit."""

    value: T

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._loop = shared_loop()
        entered: Future[tuple[T, anyio.Event]] = Future()

        def wait_entered(left: "Future[None]") -> tuple[T, anyio.Event]:
            self._left = left
            return awaited(entered)

        self.value, leave = self._loop.attend(partial(_hold, manager, entered), wait_entered)
        self._leave = weakref.finalize(self, self._loop.call_soon, leave.set)
        self._leave.atexit = False  # at exit the loop leaves all that is open

    def run(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a coroutine function where it was opened, and wait for the result."""
        self._check_open()
        return self._loop.run(work, *args, **kwargs)

    def start(self, work: Callable[[], Awaitable[R]]) -> "Future[R]":
        """Start a coroutine where it was opened, without waiting for it."""
        self._check_open()
        return self._loop.start(work)

    def close(self) -> None:
        """Leave it and wait until that is done; a second time does nothing."""
        self._leave()
        if self._loop.can_be_awaited:
            with suppress(CancelledError):  # the loop was closed before
                awaited(self._left)

    def _check_open(self) -> None:
        if not self._leave.alive:
            raise ClosedError("this was closed: make another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _hold(manager: AbstractAsyncContextManager[T], entered: "Future[tuple[T, anyio.Event]]") -> None:
    """One task enters and leaves, as task groups demand."""
    try:
        async with manager as value:
            leave = anyio.Event()
            entered.set_result((value, leave))
            await leave.wait()
    except BaseException as error:
        if entered.done():
            raise
        entered.set_exception(error if isinstance(error, Exception) else CancelledError())
        if not isinstance(error, Exception):
            raise


_lock = threading.Lock()
_shared: LoopThread | None = None
_of_parent: list[LoopThread] = []  # kept: to collect a parent's loop would close what the parent still uses
_is_registered = False


def shared_loop() -> LoopThread:
    """The process's one loop, started when it is first wanted and closed when the program ends."""
    global _shared, _is_registered  # noqa: PLW0603
    with _lock:
        if _shared is None:
            if _of_parent:
                warnings.warn(
                    "this process was forked from one that had an event loop for synchronous calls. A new one is "
                    "started here; what was opened before the fork belongs to the parent and must be opened again. "
                    "Processes started with multiprocessing.get_context('spawn') have no such trouble.",
                    RuntimeWarning,
                    stacklevel=3,
                )
            _shared = LoopThread()
            if not _is_registered:
                _at_exit(close)
                _is_registered = True
        return _shared


def run(work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a coroutine function on the shared loop and wait for its result, from any thread."""
    return shared_loop().run(work, *args, **kwargs)


def close() -> None:
    """End the shared loop and leave all that is open on it; the next call starts another."""
    global _shared
    with _lock:
        ending, _shared = _shared, None
    if ending is not None:
        ending.close()


def _at_exit(act: Callable[[], None]) -> None:
    """When the main thread ends, while executors still take work, which closing may need; atexit comes after that."""
    register: Any = getattr(threading, "_register_atexit", atexit.register)
    register(act)


def _after_fork_in_child() -> None:
    """The parent's thread does not exist here, and its lock may have been held."""
    global _lock, _shared  # noqa: PLW0603
    _lock = threading.Lock()
    if _shared is not None:
        _of_parent.append(_shared)
        _shared = None


os.register_at_fork(after_in_child=_after_fork_in_child)
