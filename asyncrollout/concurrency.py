"""Task groups: one whose failures read like those of a plain call, one that lives as long as an object, and one that is
cancelled some tasks at a time.

An object's background tasks belong to a host task, not to the task that enters the object. A cancel scope on the user's
task would have to distinguish its own cancellation from others when it is left, and before Python 3.13 it cannot: an
`asyncio.TaskGroup` that failed inside leaves `Task.cancelling()` raised. A host task also lets an object be opened in
one notebook cell and closed in another, which are different tasks.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from asyncrollout.logs import get_logger

T = TypeVar("T")

log = get_logger(__name__)

CANCELLED_AT_ONCE = 64
"""Rollouts that are cancelled in one iteration of the event loop; each takes some tenths of a millisecond to end."""

_running: set[asyncio.Task[Any]] = set()
"""Host tasks and clean-up: the event loop itself has only weak references to tasks."""


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group of which the first failure is raised as it is, and not inside a group of exceptions."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except ExceptionGroup as failures:
        failure = failures.exceptions[0]
        raise failure from failure.__cause__


class Background:
    """The tasks of an object that is entered and left; the object can be made where no event loop runs yet.

    If a task fails, whoever entered is cancelled, and leaving raises that failure instead of the cancellation. Any
    other error of the body passes as it is. `finish` is the first part of closing: it ends tasks that are shielded.
    """

    def __init__(self, finish: Callable[[], Awaitable[None]] | None = None) -> None:
        self._finish = finish
        self._group: TaskGroup | None = None
        self._host: asyncio.Task[None] | None = None
        self._body: asyncio.Task[Any] | None = None
        self._ready, self._closing = anyio.Event(), anyio.Event()
        self._cancels = True
        self._has_cancelled_body = False
        self._is_failure_raised = False

    @property
    def group(self) -> TaskGroup:
        assert self._group is not None, "open it first"
        return self._group

    @property
    def failure(self) -> BaseException | None:
        """What one of the tasks failed with, once all of them have ended."""
        host = self._host
        return host.exception() if host is not None and host.done() and not host.cancelled() else None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(error)

    async def open(self, *, cancels_body: bool = True) -> None:
        """Without `cancels_body`, nobody is cancelled if a task fails, and only `close` raises the failure.

        What was closed may be opened again.
        """
        assert self._host is None or self._host.done(), "close it first"
        self._ready, self._closing = anyio.Event(), anyio.Event()
        self._is_failure_raised = False
        self._body = asyncio.current_task() if cancels_body else None
        self._host = _spawn(self._live())
        try:
            await self._ready.wait()
        except BaseException as error:
            await self.close(error)
            raise

    @asynccontextmanager
    async def opening(self, *, cancels_body: bool = True) -> AsyncIterator[None]:
        """Open it for a block that starts what belongs to it; if the block fails, it is closed again."""
        await self.open(cancels_body=cancels_body)
        try:
            yield
        except BaseException as error:
            await self.close(error)
            raise

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        self.group.start_soon(work, *arguments)

    async def start(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """Wait until the task says that it has started, and for what it says then; if it fails before, raise that."""
        return await self.group.start(work, *arguments)

    async def close(self, error: BaseException | None = None, *, cancel: bool = True) -> None:
        """Cancel the tasks, or wait for them, even if whoever leaves is cancelled; they must come to their end.

        `error` is what the body raised. To close again does nothing.
        """
        if self._host is None:
            return
        self._cancels = cancel
        self._closing.set()
        if cancel and self._finish is None and self._group is not None:
            self._group.cancel_scope.cancel()  # at once: no task begins anything while the host wakes up
        cancelled = await _outlast(self._host)
        if self._has_cancelled_body:
            self._has_cancelled_body, cancelled = False, None
            if self._body is not None:
                self._body.uncancel()
        failure = None if self._is_failure_raised else self.failure
        if failure is not None:
            self._is_failure_raised = True
            if error is None or isinstance(error, asyncio.CancelledError):
                raise failure from failure.__cause__
            log.warning("background_task_failed", error=f"{type(failure).__name__}: {failure}")
        if cancelled is not None:
            raise cancelled

    async def _live(self) -> None:
        async with task_group() as self._group:
            self._ready.set()
            try:
                await self._closing.wait()
            except asyncio.CancelledError:  # a task has failed, or the event loop is being closed
                self._cancel_body()
                raise
            finally:
                if self._finish is not None:
                    with anyio.CancelScope(shield=True):
                        await self._finish()
            if self._cancels:
                self._group.cancel_scope.cancel()

    def _cancel_body(self) -> None:
        if self._body is not None and not self._body.done() and not self._closing.is_set():
            self._has_cancelled_body = True
            self._body.cancel("a background task failed")


class GradualTasks:
    """The tasks of a block, which is left once they have ended. They are cancelled some at a time.

    Thousands of tasks that all clean up in one iteration of the event loop hold it for seconds. If a task fails, the
    block is cancelled, and leaving it raises that failure as it is.
    """

    def __init__(self) -> None:
        self._background = Background(self._cancel_all)
        self._scopes: dict[anyio.CancelScope, int] = {}  # of tasks that run, and what each of them counts for
        self._running = 0
        self._idle = anyio.Event()
        self._is_cancelled = False

    async def __aenter__(self) -> Self:
        await self._background.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._until_idle()
        except BaseException as cancelled:
            error = cancelled
            raise
        finally:
            await self._background.close(error)

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any, counts: int = 1) -> None:
        """Start a task, which counts as so many when tasks are cancelled."""
        self._running += 1
        self._background.start_soon(self._run, counts, work, *arguments)

    async def _run(self, counts: int, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        try:
            with anyio.CancelScope(shield=True) as scope:  # from being cancelled with all others
                if self._is_cancelled:
                    scope.cancel()
                else:
                    self._scopes[scope] = counts
                try:
                    await work(*arguments)
                finally:
                    self._scopes.pop(scope, None)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _until_idle(self) -> None:
        while self._running:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def _cancel_all(self) -> None:
        """Cancel the newest first: their places would go to others that are cancelled next."""
        self._is_cancelled = True
        while self._scopes:
            cancelled = 0
            while self._scopes and cancelled < CANCELLED_AT_ONCE:
                scope, counts = self._scopes.popitem()
                scope.cancel()
                cancelled += counts
            await anyio.lowlevel.checkpoint()


async def run_to_end(work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Run clean-up in a task of its own: it must be bounded, and continues if its caller is cancelled."""
    task = _spawn(work(*arguments))
    cancelled = await _outlast(task)
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


def _spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """The one place where a task is made without a group: the caller awaits the task's end before it continues."""
    task = asyncio.create_task(work)  # noqa: TID251
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


async def _outlast(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """Wait for a task to end, even if the caller is cancelled; gives that cancellation, to be raised later."""
    cancelled = None
    has_ended = False
    with anyio.CancelScope(shield=True):  # anyio would repeat its cancellation in each iteration of the loop
        while not has_ended:
            try:
                await asyncio.wait([task])
                has_ended = True
            except asyncio.CancelledError as error:  # a native one, which no shield holds off
                cancelled = error
    return cancelled
