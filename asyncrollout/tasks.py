"""Task groups whose failures read like those of plain calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
