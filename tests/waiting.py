"""Waiting until nothing more happens by itself."""

import asyncio

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
