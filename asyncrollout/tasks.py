"""Task groups: one whose failures read like those of a plain call, and one that lives as long as an object."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group of which the first failure is raised as it is, and not inside a group of exceptions."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except ExceptionGroup as failures:
        failure: Exception = failures
        while isinstance(failure, ExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from failure.__cause__


class Background:
    """The tasks of an object that is entered and left; the object can be made where no event loop runs yet."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None

    async def open(self) -> None:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        assert self._group is not None, "open it first"
        self._group.start_soon(work, *arguments)

    async def start(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """Wait until the task says that it has started, and for what it says then; if it fails before, raise that."""
        assert self._group is not None, "open it first"
        return await self._group.start(work, *arguments)

    async def close(self, *, cancel: bool = True) -> None:
        """Cancel the tasks, or wait for them, even if whoever leaves is cancelled; they must come to their end.

        An error of whoever leaves is not made part of a group of exceptions.
        """
        assert self._group is not None, "open it first"
        if cancel:
            self._group.cancel_scope.cancel()
        else:
            self._group.cancel_scope.shield = True
        await self._group.__aexit__(None, None, None)
