"""Pools that span several tasks, as in a notebook; prints the pid of a worker and how often it was replaced.

The arguments say which loop there is, how cells are run, and whether everything is closed in the end.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import uvloop

import asyncrollout as ar

COUNTER = ar.EnvSpec(name="counter", factory="tests.envs.tiny:Counter")

Cell = Callable[[], Coroutine[Any, Any, None]]
pools: list[ar.EnvPool] = []
envs: list[ar.EnvHandle] = []


async def start() -> None:
    pools.extend([await ar.EnvPool(workers=1).start() for _ in range(2)])


async def open_envs() -> None:
    for pool in pools:
        envs.append(await pool.open(COUNTER))
        await envs[-1].reset(seed=1)


async def close_first() -> None:
    await pools[0].close()
    await pools[0].close()


async def be_interrupted() -> None:
    async with asyncio.timeout(0):
        await envs[1].reset(seed=2)


async def step() -> None:
    await envs[1].reset(seed=1)
    await envs[1].step(1)
    (worker,) = pools[1].stats().workers
    print(worker.pid, worker.restarts, flush=True)


async def close() -> None:
    await pools[1].close()


def in_terminal(loop: asyncio.AbstractEventLoop, cells: Sequence[Cell]) -> None:
    """As IPython does it: between cells the loop stands still."""
    for cell in cells:
        loop.run_until_complete(_contained(cell))


def in_kernel(loop: asyncio.AbstractEventLoop, cells: Sequence[Cell]) -> None:
    """As a notebook does it: the loop runs for ever."""

    async def run_all() -> None:
        await _one_by_one(cells)
        loop.stop()

    task = loop.create_task(run_all())
    loop.run_forever()
    task.result()


def in_script(loop: asyncio.AbstractEventLoop, cells: Sequence[Cell]) -> None:
    """What is still open ends with the loop."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_one_by_one(cells))


async def _one_by_one(cells: Sequence[Cell]) -> None:
    for cell in cells:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_contained(cell))


async def _contained(cell: Cell) -> None:
    """What a cell raises is shown by the notebook."""
    try:
        await cell()
    except TimeoutError:
        assert cell is be_interrupted


if __name__ == "__main__":
    _, kind, place, end = sys.argv
    own_loop = (uvloop if kind == "uvloop" else asyncio).new_event_loop()
    run = {"terminal": in_terminal, "kernel": in_kernel, "script": in_script}[place]
    run(own_loop, [start, open_envs, close_first, be_interrupted, step, *([close] if end == "closed" else [])])
    if end == "closed":
        own_loop.close()
