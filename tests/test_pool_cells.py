"""A pool that is opened by one task and closed by another, as in the cells of a notebook."""

import asyncio
import os
import subprocess
import sys
import tempfile
from typing import Any

import anyio
import anyio.lowlevel
import psutil
import pytest

from asyncrollout import Batch, BatchedPolicy, ClosedError, EnvPool, PoolError, RemoteEnvPool, Rollouts, UsageError
from asyncrollout.service.server import EnvServer
from asyncrollout.testing import same
from tests.playing import ACTIONS, COUNTER, PATIENCE, expected
from tests.scripts.processes import ROOT, wait_until

BOTH_WAYS = (
    r"`async with EnvPool\(\.\.\.\) as pool:` .*, or call `await pool\.start\(\)` first and `await pool\.close\(\)`"
)


async def cell(code: Any) -> Any:
    """In a task of its own."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(code)
    return task.result()


async def test_a_pool_spans_tasks(options: dict[str, Any]) -> None:
    async def open_env() -> Any:
        env = await pool.open(COUNTER)
        return env, [await env.reset(seed=3)]

    async def play() -> None:
        outcomes.extend([await env.step(action) for action in ACTIONS])

    pool = EnvPool(**options)
    assert await cell(pool.start()) is pool
    env, outcomes = await cell(open_env())
    await cell(play())
    assert same(outcomes, expected(COUNTER, 3, ACTIONS))
    await cell(pool.close())
    with pytest.raises(ClosedError, match=BOTH_WAYS):
        pool.open(COUNTER)


async def test_a_remote_pool_spans_tasks_too() -> None:
    async with EnvPool(backend="inline") as at_server, EnvServer(at_server, "127.0.0.1", 0) as server:
        pool = RemoteEnvPool(server.url)
        await cell(pool.start())
        env = await pool.open("bandit")
        await env.reset(seed=1)
        await cell(pool.close())


async def test_rollouts_span_tasks_too() -> None:
    async def iterate() -> None:
        async for batch in rollouts.batches(groups=1):
            batches.append(batch)
            if len(batches) == 2:
                break

    batches: list[Batch] = []
    policy = BatchedPolicy(lambda requests: ["a"] * len(requests))
    rollouts = Rollouts("bandit", policy=policy, group_size=2)
    with pytest.raises(ClosedError, match=r"await rollouts\.start\(\)"):
        await rollouts.collect(groups=1)
    assert await cell(rollouts.start()) is rollouts
    batches.append(await cell(rollouts.collect(groups=1)))
    await cell(iterate())
    assert [batch.index for batch in batches] == [0, 1]
    await cell(rollouts.close())
    await rollouts.close()
    with pytest.raises(ClosedError):
        await rollouts.collect(groups=1)


async def test_a_pool_that_was_never_started_says_how_to() -> None:
    pool = EnvPool(backend="inline")
    with pytest.raises(ClosedError, match=BOTH_WAYS):
        pool.open(COUNTER)
    await pool.close()
    async with pool:  # closing a pool that was never open has no effect
        pass


async def test_closing_twice_is_closing_once_and_opening_twice_is_an_error() -> None:
    pool = await EnvPool(backend="inline").start()
    for again in (pool.start, pool.__aenter__):
        with pytest.raises(UsageError, match="make another one"):
            await again()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pool.close)
        tasks.start_soon(pool.close)
    await pool.close()
    with pytest.raises(UsageError, match="make another one"):
        await pool.start()
    async with EnvPool(backend="inline") as other:
        await other.close()
        with pytest.raises(ClosedError):
            other.open(COUNTER)


async def test_a_start_that_fails_or_is_cancelled_leaves_nothing() -> None:
    with pytest.raises(PoolError, match="memory_limit"):
        await EnvPool(workers=1, memory_limit=1).start()
    pool = EnvPool(workers=1)
    with pytest.raises(TimeoutError), anyio.fail_after(0):
        await pool.start()
    await pool.close()
    assert not psutil.Process().children(recursive=True)


async def test_a_failure_in_the_background_is_raised_once_when_it_is_closed() -> None:
    async def fail() -> None:
        raise ValueError("ours")

    pool = await EnvPool(backend="inline").start()
    pool._background.start_soon(fail)
    with anyio.fail_after(PATIENCE):
        while pool._background.failure is None:
            await anyio.lowlevel.checkpoint()
    with pytest.raises(ClosedError, match="ValueError: ours"):
        pool.open(COUNTER)
    with pytest.raises(ValueError, match="ours"):
        await pool.close()
    await pool.close()


CASES = [("asyncio", "terminal", "open"), ("uvloop", "kernel", "open")]
REST = [
    (loop, place, end)
    for loop in ("asyncio", "uvloop")
    for place in ("terminal", "kernel", "script")
    for end in ("open", "closed")
    if (loop, place, end) not in CASES
]


@pytest.mark.parametrize(
    ("loop", "place", "end"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]
)
def test_cells_keep_their_workers_and_an_exit_leaves_none(loop: str, place: str, end: str) -> None:
    command = [sys.executable, "-m", "tests.scripts.cells", loop, place, end]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    pid, restarts = map(int, output.split())
    assert restarts == 0
    assert wait_until(lambda: not psutil.pid_exists(pid))
    places = ("/dev/shm", tempfile.gettempdir())
    own = f"asyncrollout-{process.pid}-"
    assert wait_until(lambda: not [name for there in places for name in os.listdir(there) if name.startswith(own)])
