"""Environments on the nodes of a Ray cluster: as on this machine, and restored from whatever happens to a node."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import psutil
import pytest

from asyncrollout import EnvHandle, EnvPool, EnvSpec, EnvTimeout, Outcome, PoolError, RayOptions, UsageError
from asyncrollout.ray import actor_rank, cluster, env_actors, orders
from asyncrollout.ray.cluster import ClusterLease
from asyncrollout.testing import check_env, same
from asyncrollout.video import VideoRecorder
from tests.docs_page import ROOT
from tests.playing import (
    ACTIONS,
    COUNTER,
    ENVS,
    EPISODES,
    PATIENCE,
    REPLIES,
    SNAPSHOT,
    TEXT,
    expected,
    pid_of,
    play,
)
from tests.ray_cluster import TestCluster
from tests.waiting import freeze

pytestmark = pytest.mark.ray


def on(ray_cluster: TestCluster, **options: Any) -> dict[str, Any]:
    """What makes a pool on this cluster."""
    return {"backend": "ray", "ray": RayOptions(address=ray_cluster.address, **{"wait": 60, **options})}


# The same as on this machine


@pytest.mark.parametrize("transport", ["socket", "ray"])
async def test_same_transcripts_as_on_this_machine(transport: str, ray_cluster: TestCluster) -> None:
    seen: dict[tuple[int, int], list[Outcome]] = {}

    async def run(pool: EnvPool, kind: int) -> None:
        spec, actions = EPISODES[kind]
        async with pool.open(replace(spec, runs="io") if kind == 1 else spec) as env:
            for seed in (3, 8, 3):
                seen[kind, seed] = await play(env, seed, actions)

    async with EnvPool(2, **on(ray_cluster, transport=transport)) as pool:
        async with anyio.create_task_group() as tasks:
            for kind in range(len(EPISODES)):
                tasks.start_soon(run, pool, kind)
        async with pool.open(TEXT) as env:
            replies = await play(env, 5, REPLIES)
        await _forks_and_batches(pool)
    for (kind, seed), outcomes in seen.items():
        spec, actions = EPISODES[kind]
        assert same(outcomes, expected(spec, seed, actions)), (spec.name, seed)
    async with EnvPool(backend="inline") as pool, pool.open(TEXT) as env:
        assert same(replies, await play(env, 5, REPLIES))


async def _forks_and_batches(pool: EnvPool) -> None:
    known = expected(COUNTER, 5, ACTIONS)
    envs = [await pool.open(COUNTER) for _ in range(4)]
    await pool.reset_many(envs, seeds=[5] * 4)
    for at, action in enumerate(ACTIONS[:3], 1):
        assert same(await pool.step_many(envs, [action] * 4), [known[at]] * 4)
    forked = await envs[0].fork()
    assert same(await forked.step(ACTIONS[3]), known[4])
    async with EnvPool(backend="inline") as here:
        elsewhere = await envs[1].fork(here)
        assert same(await elsewhere.step(ACTIONS[3]), known[4])
        back = await elsewhere.fork(pool)
        assert same(await back.step(ACTIONS[4]), known[5])
    async with pool.open(SNAPSHOT) as env:
        await play(env, 5, ACTIONS[:2])
        state = await env.snapshot()
        third = await env.step(ACTIONS[2])
        assert same(await env.restore(state), known[2])
        assert same(await env.step(ACTIONS[2]), third)


async def test_arrays_travel_inline_between_machines(ray_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "PROBE", "not what the actor looks for")  # as if it saw another file system
    big = next(spec for spec, _ in EPISODES if spec.name == "big")
    async with EnvPool(1, **on(ray_cluster)) as pool, pool.open(big) as env:
        assert same(await play(env, 7, [0, 0, 0]), expected(big, 7, [0, 0, 0]))
        (directory,) = Path("/dev/shm").glob(f"asyncrollout-{os.getpid()}-*")
        assert [path.name for path in directory.iterdir()] == ["not what the actor looks for"]


async def test_workers_are_told_apart(ray_cluster: TestCluster, tmp_path: Path) -> None:
    """Pinning, environment variables, classes of the script, logs, videos, where each worker is."""

    class Local:
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
            return os.environ["FOR_RANK"], {}

        def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
            print("said by", action)
            return os.getcwd(), 0.0, True, False, {}

    async with EnvPool(
        2, **on(ray_cluster), worker_env=lambda rank: {"FOR_RANK": f"rank {rank}"}, log_dir=tmp_path / "logs"
    ) as pool:
        for rank in (1, 0):
            async with pool.open(Local, worker=rank) as env:
                assert (await env.reset(seed=1)).observation == f"rank {rank}"
                assert (await env.step(f"env {rank}")).observation == os.getcwd()
                assert env.worker == rank
        workers = pool.stats().workers
        assert {worker.pid for worker in workers} == ray_cluster.workers()
        assert len({worker.node for worker in workers}) == 2  # they are spread over the nodes
        async with VideoRecorder(tmp_path / "videos", fps=5) as recorder:
            recording = recorder.record("counted")
            assert recording is not None
            async with pool.open(COUNTER, record=recording) as env:
                await play(env, 3, ACTIONS)
        assert recording.path.exists()
    assert "said by env 1" in (tmp_path / "logs" / "worker-1.log").read_text()


async def test_an_env_that_hangs_is_the_only_one_to_fail(ray_cluster: TestCluster) -> None:
    hanging = EnvSpec(name="hangs", factory=f"{ENVS}:Crasher", kwargs={"how": "hang", "at": 2})
    async with EnvPool(1, **on(ray_cluster), step_timeout=1.0) as pool:
        async with pool.open(hanging) as env, pool.open(COUNTER) as neighbour:
            await env.reset(seed=1)
            outcomes = [await neighbour.reset(seed=4)]
            await env.step(1)
            with pytest.raises(EnvTimeout, match="step took longer than 1 s"):
                await env.step(1)
            outcomes += [await neighbour.step(action) for action in ACTIONS]
        assert same(outcomes, expected(COUNTER, 4, ACTIONS))


async def test_check_env_on_ray(ray_cluster: TestCluster) -> None:
    """`check_env` opens its own pools, on the cluster that $RAY_ADDRESS names."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_ADDRESS", ray_cluster.address)
        report = await check_env(COUNTER, backends=["inline", "ray"], seeds=[1], max_steps=3, actions=[1, 2, 3])
    assert report.backends == ("ray", "inline")


# Whatever happens to a node


async def _play_through(pool: EnvPool, envs: list[EnvHandle], disturb: Callable[[int], Awaitable[None]]) -> None:
    """All envs reach the end of the same episode, though something happens before each step."""
    wanted = expected(COUNTER, 6, ACTIONS)
    assert same(await pool.reset_many(envs, seeds=[6] * len(envs)), [wanted[0]] * len(envs))
    for at, action in enumerate(ACTIONS, 1):
        with anyio.fail_after(PATIENCE):
            await disturb(at)
            assert same(await pool.step_many(envs, [action] * len(envs)), [wanted[at]] * len(envs))


@pytest.mark.parametrize("transport", ["socket", "ray"])
async def test_killed_and_frozen_workers_and_actors(
    transport: str, ray_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(actor_rank, "SILENCE_LIMIT", 3.0)
    async with EnvPool(2, **on(ray_cluster, transport=transport)) as pool:
        envs = [await pool.open(COUNTER) for _ in range(6)]
        disturbances = {1: _kill_worker, 2: _kill_actor, 3: freeze, 4: _freeze_actor}
        harmed: set[int] = set()

        async def disturb(at: int) -> None:
            if at in disturbances:
                worker = pid_of(pool, envs[0])
                harmed.update((worker, psutil.Process(worker).ppid()))
                disturbances[at](worker)
                while worker in (one.pid for one in pool.stats().workers):  # noqa: ASYNC110 (no event says so)
                    await anyio.sleep(0.01)

        await _play_through(pool, envs, disturb)
        assert pool.stats().restored >= 4
    causes = [vars(one)["fields"]["cause"] for one in caplog.records if vars(one).get("event") == "worker_died"]
    assert causes[0] == "SIGKILL"
    assert "died: The actor died unexpectedly before finishing this task" in causes[1]
    assert causes[2] == "it was stopped, as by SIGSTOP, for longer than 3 s"
    assert causes[3].startswith("nothing was heard of its actor on node ")
    with anyio.fail_after(PATIENCE):
        while any("IDLE" not in one for pid, one in ray_cluster.processes().items() if pid in harmed):  # noqa: ASYNC110
            await anyio.sleep(0.05)  # nothing that was frozen is left; other tests may use the cluster meanwhile


def _kill_worker(worker: int) -> None:
    os.kill(worker, signal.SIGKILL)


def _kill_actor(worker: int) -> None:
    os.kill(psutil.Process(worker).ppid(), signal.SIGKILL)


def _freeze_actor(worker: int) -> None:
    freeze(psutil.Process(worker).ppid())


async def test_a_killed_node(ray_cluster: TestCluster) -> None:
    node = ray_cluster.add_node(resources={"doomed": 1})
    other = ray_cluster.add_node(resources={"doomed": 1})
    try:
        async with EnvPool(2, **on(ray_cluster, resources={"doomed": 1}, wait=1)) as pool:
            envs = [await pool.open(COUNTER) for _ in range(4)]
            (rank,) = (worker.rank for worker in pool.stats().workers if (worker.node or "").endswith(node[:8]))

            async def disturb(at: int) -> None:
                if at == 2:
                    ray_cluster.kill_node(node)

            await _play_through(pool, envs, disturb)
            assert {worker.rank for worker in pool.stats().workers if worker.pid} == {1 - rank}
            with pytest.raises(PoolError, match=rf"worker {rank} cannot start: 2 workers need 1 CPU, 1 doomed each"):
                with anyio.fail_after(PATIENCE):
                    await pool.open(COUNTER, worker=rank)
            third = ray_cluster.add_node(resources={"doomed": 1})  # the cluster recovers, and so does the pool
            try:
                with anyio.fail_after(PATIENCE):
                    while not all(worker.pid for worker in pool.stats().workers):  # noqa: ASYNC110 (no event says so)
                        await anyio.sleep(0.05)
                async with pool.open(COUNTER, worker=rank) as env:
                    assert same(await play(env, 6, ACTIONS), expected(COUNTER, 6, ACTIONS))
            finally:
                await pool.close()
                ray_cluster.forget_node(third)
    finally:
        for one in (node, other):
            ray_cluster.forget_node(one)


async def test_a_killed_program_leaves_nothing(ray_cluster: TestCluster) -> None:
    script = """
import asyncio, sys
import asyncrollout as ar

async def main():
    options = ar.RayOptions(address=sys.argv[1], wait=60)
    async with ar.EnvPool(2, backend="ray", ray=options) as pool:
        async with pool.open("tests.envs.tiny:Crasher", how="spin", at=1) as env:
            await env.reset(seed=1)
            print("ready", flush=True)
            await env.step(1)

asyncio.run(main())
"""
    command = [sys.executable, "-c", script, ray_cluster.address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:  # noqa: ASYNC220
        assert program.stdout is not None
        assert await anyio.to_thread.run_sync(program.stdout.readline) == "ready\n"  # and nothing of Ray's
        assert ray_cluster.workers()
        program.kill()  # the fixture waits until all workers have gone


# What cannot be


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"num_cpus": 64}, r"2 workers need 64 CPU each, and none of its nodes has that: [\d.]+ \(\d CPU\); "),
        ({"num_gpus": 1}, r"need 1 CPU, 1 GPU each, and none of its nodes has that: [\d.]+ \(\d CPU, 0 GPU\)"),
        ({"labels": {"zone": "b"}}, r"need 1 CPU on a node with labels \{'zone': 'b'\} each, and none"),
        ({"num_cpus": 2.0, "workers": 3}, r"3 workers need 2 CPU each, and it has room for 2"),
    ],
    ids=str,
)
async def test_what_the_cluster_lacks_is_said(asked: dict[str, Any], message: str, ray_cluster: TestCluster) -> None:
    workers = asked.pop("workers", 2)
    pool = EnvPool(workers, **on(ray_cluster, **{**asked, "wait": 0.5}))
    with pytest.raises(PoolError, match=message), anyio.fail_after(PATIENCE):
        await pool.start()


async def test_a_program_has_one_cluster(ray_cluster: TestCluster) -> None:
    async with EnvPool(1, **on(ray_cluster)) as pool, pool.open(COUNTER) as env:
        await env.reset(seed=1)
        other = EnvPool(1, backend="ray", ray=RayOptions(address="127.0.0.1:1"))
        with pytest.raises(UsageError, match="a program has one connection"):
            await other.start()
        async with EnvPool(1, backend="ray") as second, second.open(COUNTER) as beside:  # the one that is there
            assert same(await beside.reset(seed=1), env.outcome)
        assert np.isfinite((await env.step(1)).reward)


async def test_a_connection_of_the_program_stays(ray_cluster: TestCluster, capfd: pytest.CaptureFixture[str]) -> None:
    lease = await ClusterLease.take(ray_cluster.address)
    lease.ray._private.worker.print_to_stdstream({"lines": ["raylet: x"], "pid": "raylet", "is_err": False}, False)
    await lease.give_back()
    lease.ray.init(ray_cluster.address, log_to_driver=False, logging_level="error")
    try:
        async with EnvPool(1, backend="ray", ray=RayOptions(wait=60)) as pool, pool.open(COUNTER) as env:
            await env.reset(seed=1)
        assert lease.ray.is_initialized()
    finally:
        lease.ray.shutdown()
    printed = capfd.readouterr()
    assert printed.out == ""  # whose place is the program's own output
    assert "raylet: x" in printed.err


async def test_the_loss_of_the_head_is_said_before_ray_ends_the_program(
    ray_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head's own service is stood in for by a socket: the cluster is needed by other tests."""
    monkeypatch.setattr(env_actors, "_HEAD_LOOK", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setattr(ClusterLease, "head", f"127.0.0.1:{head.getsockname()[1]}")
        with pytest.raises(PoolError, match=r"the head node of the Ray cluster at 127.0.0.1:\d+ is gone"):  # noqa: PT012
            async with EnvPool(1, **on(ray_cluster)) as pool, pool.open(COUNTER) as env:
                assert same(await play(env, 6, ACTIONS), expected(COUNTER, 6, ACTIONS))
                head.close()
                with anyio.fail_after(PATIENCE):
                    await anyio.sleep_forever()
    await anyio.to_thread.run_sync(cluster._disconnect)  # nobody asked anything of a head that is gone


async def test_a_memory_limit_below_that_of_a_worker_is_said(ray_cluster: TestCluster) -> None:
    pool = EnvPool(1, **on(ray_cluster), memory_limit=1 << 20)
    with anyio.fail_after(PATIENCE), pytest.raises(PoolError, match="memory_limit=1048576 is less than a worker"):
        await pool.start()


async def test_another_version_on_a_node_is_said(ray_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_rank, "__version__", "99.0")
    pool = EnvPool(1, **on(ray_cluster))
    with (
        anyio.fail_after(PATIENCE),
        pytest.raises(PoolError, match=r"this node has asyncrollout .*, and the program 99"),
    ):
        await pool.start()
