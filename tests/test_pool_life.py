"""One call at a time, where envs live, and what is left of them."""

import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psutil
import pytest
import structlog
import structlog.testing

from asyncrollout import (
    ClosedError,
    EnvHandle,
    EnvPool,
    EnvSpec,
    UsageError,
)
from asyncrollout.testing import same
from tests.envs.tiny import AsyncCounter
from tests.playing import ACTIONS, COUNTER, ECHO, ENVS, PATIENCE, TEXT, Gate, expected, kill_worker_of, pid_of, play
from tests.waiting import all_tasks_blocked

# One call at a time


async def test_overlapping_calls_are_refused(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    spec = EnvSpec(name="gated", factory=f"{ENVS}:Gated", kwargs={"pipe": gate.pipe})
    async with EnvPool(workers=1) as pool, pool.open(spec) as env:
        await env.reset(seed=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(env.step, "wait")
            await gate.begun()
            for call in (lambda: env.step(1), lambda: env.reset(seed=2), lambda: env.call("total"), env.fork):
                with pytest.raises(UsageError, match="env 'gated'"):
                    await call()
            await gate.open()
        assert same(await env.step(3), expected(COUNTER, 1, [0, 3])[-1])


async def test_envs_opened_behind_a_slow_step_open_elsewhere(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    spec = EnvSpec(name="gated", factory=f"{ENVS}:Gated", kwargs={"pipe": gate.pipe})
    async with EnvPool(workers=2) as pool, pool.open(spec) as slow:
        await slow.reset(seed=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.step, "wait")
            await gate.begun()
            with anyio.fail_after(PATIENCE):
                others = [await pool.open(COUNTER) for _ in range(4)]
            assert {other.worker for other in others}.isdisjoint({slow.worker})
            await gate.open()


async def test_envs_opened_beside_another_begin_on_its_worker() -> None:
    async with EnvPool(workers=3) as pool:
        first = await pool.open(COUNTER)
        beside = [await pool.open(COUNTER, beside=first) for _ in range(4)]
        assert {env.worker for env in beside} == {first.worker}
        assert (await pool.open(COUNTER)).worker != first.worker
        kill_worker_of(pool, first)
        assert [same(await play(env, 7, ACTIONS), expected(COUNTER, 7, ACTIONS)) for env in beside] == [True] * 4


async def test_a_fork_continues_in_another_pool() -> None:
    async with EnvPool(workers=1) as pool, EnvPool(backend="inline") as inline:
        for here, there in ((pool, inline), (inline, pool)):
            async with here.open(COUNTER) as env:
                assert not env.has_episode
                await play(env, 7, ACTIONS[:3])
                twin = await env.fork(there)
                assert (env.has_episode, twin.has_episode) == (True, True)
                assert (env.worker == -1) != (twin.worker == -1)
                for action in ACTIONS[3:]:
                    assert same(await twin.step(action), await env.step(action))
                await twin.close()


@asynccontextmanager
async def _cancelled_half_way(place: str, directory: Path) -> AsyncIterator[EnvHandle]:
    """An env whose step was cancelled while it was under way."""
    gate = Gate(directory)
    gated = EnvSpec(name="env", factory=f"{ENVS}:Gated", kwargs={"pipe": gate.pipe})
    hanging = EnvSpec(name="env", factory=f"{ENVS}:AsyncCounter", runs="io")
    options, spec = {
        "cpu": ({"workers": 1}, gated),
        "io": ({"workers": 1}, replace(gated, runs="io")),
        "io inline": ({"backend": "inline"}, replace(gated, runs="io")),
        "async": ({"backend": "inline"}, hanging),
    }[place]
    async with EnvPool(**options) as pool, pool.open(spec) as env:  # type: ignore[arg-type]
        await env.reset(seed=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(env.step, "hang" if spec is hanging else "wait")
            await (all_tasks_blocked() if spec is hanging else gate.begun())
            tasks.cancel_scope.cancel()
        with anyio.fail_after(PATIENCE):
            for call in (lambda: env.step(1), lambda: env.call("total"), env.snapshot, env.fork):
                with pytest.raises(UsageError, match=r"env 'env' cannot .* call reset\(\) first"):
                    await call()
            if spec is not hanging:
                await gate.open()
            yield env


@pytest.mark.parametrize("place", ["cpu", "io", "io inline", "async"])
async def test_cancelled_step_needs_a_reset(place: str, tmp_path: Path) -> None:
    async with _cancelled_half_way(place, tmp_path) as env:
        assert same(await play(env, 2, ACTIONS), expected(COUNTER, 2, ACTIONS))


@pytest.mark.parametrize("place", ["cpu", "async"])
async def test_cancelled_step_can_be_followed_by_close(place: str, tmp_path: Path) -> None:
    async with _cancelled_half_way(place, tmp_path) as env:
        await env.close()
        with pytest.raises(ClosedError):
            await env.reset(seed=1)


async def test_cancelled_steps_of_many_need_resets(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    gated = EnvSpec(name="env", factory=f"{ENVS}:Gated", kwargs={"pipe": gate.pipe})
    hanging = EnvSpec(name="env", factory=f"{ENVS}:AsyncCounter", runs="io")
    async with EnvPool(workers=1) as pool:
        envs = [await pool.open(spec) for spec in (gated, COUNTER, hanging)]
        await pool.reset_many(envs, seeds=[1] * 3)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.step_many, envs, ["wait", 1, "hang"])  # at work, queued, and on the loop
            await gate.begun()
            tasks.cancel_scope.cancel()
        await gate.open()
        for env in envs:
            with pytest.raises(UsageError, match=r"cancelled half-way: call reset\(\) first"):
                await env.step(1)
        assert [same(await play(env, 2, ACTIONS), expected(COUNTER, 2, ACTIONS)) for env in envs] == [True] * 3


async def test_envs_can_be_reset_after_steps_of_many_that_were_cancelled_at_once() -> None:
    async with EnvPool(workers=1) as pool:
        envs = [await pool.open(replace(COUNTER, runs=runs)) for runs in ("cpu", "light", "light")]
        for places in (envs, envs[1:]):
            await pool.reset_many(places, seeds=[1] * len(places))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await pool.step_many(places, [1] * len(places))
            for env in places:
                assert same(await play(env, 2, ACTIONS), expected(COUNTER, 2, ACTIONS))


async def test_cancelled_open_leaves_no_env(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    spec = EnvSpec(name="gated", factory=f"{ENVS}:Gated", kwargs={"pipe": gate.pipe, "at": "build"})
    async with EnvPool(workers=1) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.open(spec).__aenter__)
            await gate.begun()
            tasks.cancel_scope.cancel()
        await gate.open()
        async with pool.open(COUNTER) as env:
            assert same(await play(env, 2, ACTIONS), expected(COUNTER, 2, ACTIONS))
        stats = pool.stats()
        assert (stats.envs, [worker.envs for worker in stats.workers]) == (0, [0])


# Placement


async def test_placement_is_balanced() -> None:
    async with EnvPool(workers=3) as pool:
        envs = [await pool.open(COUNTER) for _ in range(7)]
        assert sorted(worker.envs for worker in pool.stats().workers) == [2, 2, 3]
        ranks = {env.worker for env in envs}
        assert ranks == {0, 1, 2}
        for env in envs:
            assert await env.call("pid") == pid_of(pool, env)
            if env.worker == 0:
                await env.close()
        for _ in range(2):
            await pool.open(COUNTER)
        assert pool.stats().workers[0].envs == 2


async def test_pinning_and_worker_env() -> None:
    async with EnvPool(workers=2, worker_env=lambda rank: {"WHICH": f"gpu {rank}"}) as pool:
        for rank in (1, 0, 1):
            async with pool.open(ECHO, worker=rank) as env:
                assert env.worker == rank
                assert await env.call("environ", "WHICH") == f"gpu {rank}"
                await env.reset(seed=1)
                kill_worker_of(pool, env)
                assert (await env.step("still here")).observation == "still here"
                assert env.worker == rank
                assert await env.call("environ", "WHICH") == f"gpu {rank}"
    assert os.environ.get("WHICH") is None


async def test_light_env_runs_on_the_loop_unless_pinned() -> None:
    async with EnvPool(workers=1) as pool:
        async with pool.open(replace(COUNTER, runs="light")) as env:
            assert (env.worker, await env.call("pid")) == (-1, os.getpid())
        async with pool.open(replace(COUNTER, runs="light"), worker=0) as env:
            assert (env.worker, await env.call("pid")) == (0, pid_of(pool, env))


async def test_env_that_moves_at_reset_keeps_its_transcripts() -> None:
    slow = EnvSpec(name="slow", factory=f"{ENVS}:Slow", kwargs={"seconds": 0.02})
    async with EnvPool(workers=2) as pool:
        first, quick, second = [await pool.open(spec) for spec in (slow, COUNTER, slow)]
        assert (first.worker, quick.worker, second.worker) == (0, 1, 0)
        for env in (first, second, quick):
            await play(env, 1, ACTIONS)
        await second.reset(seed=2)
        assert (first.worker, second.worker) == (0, 1)
        assert pool.stats().moved == 1 + (quick.worker != 1)  # on a busy machine the quick one may seem slow, and move
        assert same([await second.step(action) for action in ACTIONS], expected(COUNTER, 2, ACTIONS)[1:])


async def test_env_that_was_called_stays_at_a_reset() -> None:
    slow = EnvSpec(name="slow", factory=f"{ENVS}:Slow", kwargs={"seconds": 0.02})
    async with EnvPool(workers=2) as pool:
        first, quick, second = [await pool.open(spec) for spec in (slow, COUNTER, slow)]
        await second.call("set_bonus", 3.0)
        for env in (first, second, quick):
            await play(env, 1, ACTIONS)
        await second.reset(seed=2)
        assert (first.worker, second.worker, pool.stats().moved) == (0, 0, 0)
        rewards = [(await second.step(action)).reward for action in ACTIONS]
        assert rewards == [outcome.reward + 3 for outcome in expected(COUNTER, 2, ACTIONS)[1:]]


async def test_stats(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        before = pool.stats()
        assert (before.envs, before.calls, before.queued, before.restarts) == (0, 0, 0, 0)
        async with pool.open(COUNTER) as env:
            await play(env, 1, [1, 2])
            stats = pool.stats()
            (home,) = (worker for worker in stats.workers if worker.envs)
            assert (stats.envs, stats.calls, stats.queued) == (1, 4, 0)
            assert (home.rank, home.calls, home.envs, home.restarts) == (env.worker, 4, 1, 0)
            assert home.pid == await env.call("pid")
            assert stats.seconds.count == 4
            assert 0 <= stats.seconds.p50 <= stats.seconds.p95 <= stats.seconds.max
        assert pool.stats().envs == 0
        assert [worker.envs for worker in pool.stats().workers] == [0] * len(pool.stats().workers)


async def test_handle_that_is_never_entered_is_no_env() -> None:
    async with EnvPool(backend="inline") as pool:
        pool.open(COUNTER)
        assert pool.stats().envs == 0


# Over time


@pytest.mark.parametrize("hops", range(8))
async def test_light_envs_may_be_closed_by_their_users_while_the_pool_closes(hops: int) -> None:
    left = anyio.Event()
    async with anyio.create_task_group() as tasks, EnvPool(backend="inline") as pool:
        envs = [await pool.open(replace(COUNTER, runs="light")) for _ in range(3)]

        async def close() -> None:
            await left.wait()
            for _ in range(hops):  # at each point of the pool's own way
                await anyio.lowlevel.checkpoint()
            for env in envs:
                await env.close()

        tasks.start_soon(close)
        await all_tasks_blocked()
        left.set()


class ClosesLate(AsyncCounter):
    """Its close waits until it may end."""

    may_end = anyio.Event()

    async def close(self) -> None:
        await self.may_end.wait()


async def test_light_env_is_closed_for_its_users_while_the_pool_still_closes_others() -> None:
    ClosesLate.may_end = anyio.Event()
    async with anyio.create_task_group() as tasks, EnvPool(backend="inline") as pool:
        await pool.open(EnvSpec(name="late", factory=ClosesLate, runs="io"))
        stepped, rested = [await pool.open(replace(COUNTER, runs="light")) for _ in range(2)]
        await stepped.reset(seed=1)

        async def step() -> None:
            await all_tasks_blocked()  # the pool waits for the late one
            with structlog.testing.capture_logs() as logs:
                with pytest.raises(ClosedError, match="the pool is closed"):
                    await stepped.step(1)
                await rested.close()
            assert logs == []
            ClosesLate.may_end.set()

        tasks.start_soon(step)


def _grown(process: psutil.Process, before: int) -> float:
    gc.collect()
    return (process.memory_info().rss - before) / 2**20


@pytest.mark.parametrize("count", [6, pytest.param(100, marks=pytest.mark.slow)])
async def test_pools_one_after_the_other_leave_nothing(count: int) -> None:
    me = psutil.Process()
    before = fds = 0
    for number in range(count):
        async with EnvPool(workers=1) as pool, pool.open(COUNTER) as env:
            assert same(await play(env, 1, ACTIONS), expected(COUNTER, 1, ACTIONS))
        if number == 0:  # warmed up
            gc.collect()
            before, fds = me.memory_info().rss, me.num_fds()
    assert _grown(me, before) < 5
    assert me.num_fds() <= fds


async def test_resets_leave_nothing() -> None:
    big = EnvSpec(name="big", factory=f"{ENVS}:BigArray", kwargs={"size": 1 << 18})
    async with EnvPool(workers=1) as pool, pool.open(big) as large, pool.open(TEXT) as text:
        processes = [psutil.Process(), psutil.Process(pid_of(pool, text))]
        sizes, fds = [0, 0], [0, 0]
        for number in range(1_000):
            await large.reset(seed=number)
            await large.step(0)
            await text.reset(seed=number)
            await text.step("add 1")
            if number == 200:  # warmed up
                gc.collect()
                sizes, fds = [p.memory_info().rss for p in processes], [p.num_fds() for p in processes]
        for process, size, count in zip(processes, sizes, fds, strict=True):
            assert _grown(process, size) < 20
            assert process.num_fds() <= count


async def test_envs_opened_and_closed_leave_nothing() -> None:
    big = EnvSpec(name="big", factory=f"{ENVS}:BigArray", kwargs={"size": 1 << 18})
    async with EnvPool(workers=1) as pool:
        processes = [psutil.Process(), psutil.Process(pid_of_rank(pool, 0))]
        sizes, fds = [0, 0], [0, 0]
        for number in range(300):
            async with pool.open(replace(big, runs="io" if number % 2 else "cpu")) as env:
                await env.reset(seed=number)
                await env.step(0)
            if number == 100:
                gc.collect()
                sizes, fds = [p.memory_info().rss for p in processes], [p.num_fds() for p in processes]
        for process, size, count in zip(processes, sizes, fds, strict=True):
            assert _grown(process, size) < 20
            assert process.num_fds() <= count + 2


def pid_of_rank(pool: EnvPool, rank: int) -> int:
    pid = pool.stats().workers[rank].pid
    assert pid is not None
    return pid


def run_script(limit: int, body: str) -> str:
    """A script of its own, with fewer file descriptors."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    script = (
        f"import asyncio, os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        f"from asyncrollout import EnvPool, PoolError\n"
        f"async def main():\n{lines}\n"
        "if __name__ == '__main__':\n    asyncio.run(main())\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_512_envs_with_1024_descriptors() -> None:
    output = run_script(
        1024,
        """
async with EnvPool(workers=2) as pool:
    envs = [await pool.open("tests.envs.tiny:BigArray", size=1 << 17) for _ in range(512)]
    await pool.reset_many(envs, seeds=list(range(512)))
    for step in (1, 2):
        outcomes = await pool.step_many(envs, [0] * 512)
        assert [outcome.reward for outcome in outcomes] == [(seed + step) % 256 for seed in range(512)]
    stats = pool.stats()
    print(stats.envs, stats.restarts, sorted(worker.envs for worker in stats.workers))
""",
    )
    assert output == "512 0 [256, 256]\n"


def test_too_few_descriptors_are_reported_before_the_start() -> None:
    output = run_script(
        40,
        """
try:
    async with EnvPool(workers=8):
        print("started")
except PoolError as error:
    print(error)
print(os.listdir(f"/proc/self/task/{os.getpid()}") != [], open(f"/proc/self/task/{os.getpid()}/children").read())
""",
    )
    assert "8 workers need" in output
    assert "only 40 are allowed" in output
    assert "ulimit -n" in output
    assert output.endswith("True \n")
