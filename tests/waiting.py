"""Waiting until nothing more happens by itself, and stopping what is under way."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel

_LOOK_EVERY = 0.007  # seconds; the periods of our own tasks are no multiples of it


async def all_tasks_blocked() -> None:
    """Until each other task waits for something.

    Not `anyio.wait_all_tasks_blocked`, which looks every 0.1 s: a watchdog of the same period, woken in the same
    iterations of the loop, is then never seen waiting.
    """
    await anyio.lowlevel.checkpoint()
    while any(map(_can_go_on, asyncio.all_tasks() - {asyncio.current_task()})):  # noqa: ASYNC110 (nobody has an event)
        await anyio.sleep(_LOOK_EVERY)


def _can_go_on(task: "asyncio.Task[object]") -> bool:
    waits_for: asyncio.Future[object] | None = task._fut_waiter  # type: ignore[attr-defined]
    return waits_for is None or waits_for.done()


async def cancelled(call: Callable[[], Awaitable[object]], begun: Callable[[], Awaitable[object]]) -> None:
    """Make a call, and cancel it once it has begun."""

    async def make() -> None:
        await call()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(make)
        await begun()
        tasks.cancel_scope.cancel()


def freeze(pid: int) -> None:
    """Stop a process with all of its threads: the signal alone reaches the others only when one of them runs."""
    os.kill(pid, signal.SIGSTOP)
    while any(_state(thread) not in "TtZX" for thread in Path(f"/proc/{pid}/task").iterdir()):
        os.sched_yield()


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
