"""A restore that does not come to its end, or is refused; calls of an env that failed and is gone."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from asyncrollout import EnvCrashed, EnvError, EnvHandle, EnvPool, EnvSpec, UsageError, registry
from tests.playing import PATIENCE, Gate, kill_worker_of
from tests.test_remote_pool import remote

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # as in test_pool_recovery.py

ENVS = "tests.envs.recovery"
CHANGING = EnvSpec(name="changing", factory=f"{ENVS}:Changing", kwargs={"length": 50})
SAVING = EnvSpec(name="restores_raw", factory=f"{ENVS}:Saving", kwargs={"length": 50})


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registered, SAVING.name, SAVING)


async def cancelled(env: EnvHandle, snapshot: bytes, gate: Gate) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(env.restore, snapshot)
        await gate.begun()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("options", "runs"), [({"workers": 1}, "cpu"), ({"workers": 1}, "io"), ({"backend": "inline"}, "io")], ids=str
)
@pytest.mark.parametrize("is_in_place", [True, False], ids=["in place", "in a new env"])
async def test_a_cancelled_restore_leaves_nothing_of_the_snapshot(
    options: dict[str, Any], runs: Any, is_in_place: bool, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    spec = EnvSpec(name="gated", factory=f"{ENVS}:Gatekeeper", runs=runs, kwargs={"pipe": gate.pipe, "length": 50})
    with anyio.fail_after(PATIENCE):
        async with EnvPool(**options) as pool, pool.open(spec) as env, pool.open(spec) as other:
            await other.reset(seed=1)
            await other.call("add", 1000)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.call, "wait_then_add", 5)
                await gate.begun()
                await gate.open()
            kept = await other.snapshot()
            if not is_in_place:
                await env.call("add", 7)
            await env.reset(seed=2)
            await cancelled(env, kept, gate)
            with pytest.raises(UsageError, match="cancelled half-way"):
                await env.step(1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gate.open)
                wanted = "0 extra" if is_in_place else "7 extra"
                for _ in range(2):  # also when it is made anew
                    assert f", {wanted}" in (await env.reset(seed=2)).observation
                    with pytest.raises(EnvError):
                        await env.step("x")


async def test_a_restore_that_a_remote_pool_refuses_changes_nothing() -> None:
    async with remote() as (_, there), EnvPool(backend="inline") as here:
        one = await here.open(SAVING)
        await one.reset(seed=1)
        await one.call("add", 5, keep=True)
        kept = await one.snapshot()
        env = await there.open(SAVING.name)
        await env.reset(seed=2)
        seat = env._calls.binding.id
        with pytest.raises(UsageError, match="a snapshot that holds an env's own state"):
            await env.restore(kept)
        assert ", 0 extra" in (await env.step(1)).observation
        assert env._calls.binding.id == seat


@pytest.mark.parametrize("fail", ["step", "reset"])
async def test_a_call_after_a_failure_is_not_made_in_another_env(fail: str) -> None:
    spec = EnvSpec(name="failing", factory=f"{ENVS}:Halting")
    async with EnvPool(workers=1) as pool, pool.open(spec) as env:
        await env.reset(seed=1)
        with pytest.raises(EnvError, match="half-way"):
            await (env.step("x") if fail == "step" else env.reset(seed=1, task="x"))
        seen = await env.call("nudge", 0, keep=False)
        kill_worker_of(pool, env)
        gone = r"it is gone, and what failed is not repeated.*call reset\(\)"
        with pytest.raises(EnvCrashed, match=gone):
            await env.call("nudge", 0, keep=False)
        with pytest.raises(EnvCrashed, match=gone):
            await env.call("nudge", 0)
        with pytest.raises(EnvCrashed, match=gone):
            await env.render()
        assert seen == 1000
        assert (await env.reset(seed=1)).observation.startswith("0 at")
        assert await env.snapshot()  # the calls that were not made are nothing that it lacks


async def test_an_env_that_failed_is_not_moved() -> None:
    async with EnvPool(workers=1) as pool, pool.open(CHANGING) as env:
        await env.reset(seed=1)
        with pytest.raises(EnvError):
            await env.step("x")
        assert not env._calls.binding.may_move
        await env.reset(seed=1)
        assert env._calls.binding.may_move


async def test_an_env_that_is_not_replayable_is_not_replayed_for_a_call_either() -> None:
    spec = EnvSpec(name="once", factory=f"{ENVS}:Changing", replayable=False)
    async with EnvPool(workers=1) as pool, pool.open(spec) as env:
        await env.reset(seed=1)
        await env.step(1)
        kill_worker_of(pool, env)
        for _ in range(2):
            with pytest.raises(EnvCrashed, match="not replayable"):
                await env.call("nudge", 1, keep=False)
        await env.reset(seed=1)


async def test_an_env_that_is_closed_behind_cancelled_calls_is_closed_at_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    spec = EnvSpec(name="restores_gated", factory=f"{ENVS}:Gatekeeper", runs="io")
    monkeypatch.setitem(registry._registered, spec.name, spec)
    with anyio.fail_after(PATIENCE):
        async with remote() as (server, pool):
            env = await pool.open(spec.name, pipe=gate.pipe)
            await env.reset(seed=1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(env.render)
                await gate.begun()
                tasks.cancel_scope.cancel()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: env.reset(seed=2))
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            await env.close()  # does not wait, as the env is at work
            await pool.open("restores_raw")  # what was sent before has arrived
            await gate.open()
            while server._pool.stats().envs > 1:
                await anyio.lowlevel.checkpoint()
