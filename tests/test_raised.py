"""Whatever an env raises is its own error, and the same one on every backend; what happens to its caller passes."""

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
import pytest

from asyncrollout import EnvBuildError, EnvError, EnvHandle, EnvPool, EnvSpec, RolloutError, UsageError
from asyncrollout.pool.wire.raised import is_own
from tests.envs.nasty import RAISED, LoadsAs
from tests.waiting import all_tasks_blocked, cancelled

ENVS = "tests.envs.nasty"
CPU = EnvSpec(name="nasty", factory=f"{ENVS}:Nasty", kwargs={"limit": 10**9})
IO = EnvSpec(name="nasty", factory=f"{ENVS}:Nasty", kwargs={"limit": 10**9}, runs="io")
ASYNC = EnvSpec(name="nasty", factory=f"{ENVS}:AsyncNasty", kwargs={"limit": 10**9}, runs="io")
LIGHT = EnvSpec(name="nasty", factory=f"{ENVS}:Nasty", kwargs={"limit": 10**9}, runs="light")
LOADED = [kind for kind in RAISED if kind not in ("group", "notes")]


class Failed(NamedTuple):
    kind: str
    remote: str | None
    text: str


async def failed(call: Callable[[], Awaitable[Any]]) -> Failed:
    with pytest.raises(RolloutError) as caught:
        await call()
    error = caught.value
    text = re.sub(r",? ?worker -?\d+", "", str(error)).replace(" It was raised, though nobody cancelled the call.", "")
    return Failed(type(error).__name__, getattr(error, "remote_type", None), text)


async def failures(pool: EnvPool, spec: EnvSpec) -> dict[str, Failed]:
    """What comes of every fault in every place; after each the env plays on."""
    found: dict[str, Failed] = {}
    env = await pool.open(spec)

    async def expect(name: str, call: Callable[[EnvHandle], Awaitable[Any]]) -> None:
        await env.reset(seed=3)
        found[name] = await failed(lambda: call(env))
        await env.reset(seed=3)
        assert (await env.step(2)).observation.startswith("total ")

    for kind in RAISED:
        await expect(f"step {kind}", lambda env, kind=kind: env.step(("raise", kind)))  # type: ignore[misc]
        await expect(f"reset {kind}", lambda env, kind=kind: env.reset(seed=1, task=kind))  # type: ignore[misc]
        await expect(f"call {kind}", lambda env, kind=kind: env.call("raise_it", kind, keep=False))  # type: ignore[misc]
        found[f"open {kind}"] = await failed(lambda kind=kind: pool.open(spec, build=kind).__aenter__())  # type: ignore[misc]
    for kind in LOADED:
        await expect(f"load {kind}", lambda env, kind=kind: env.step(("load", kind)))  # type: ignore[misc]
        await expect(f"info {kind}", lambda env, kind=kind: env.step(("info", kind)))  # type: ignore[misc]
        await expect(f"give {kind}", lambda env, kind=kind: env.call("give", kind, keep=False))  # type: ignore[misc]
    for where in ("shape", "reward"):
        await expect(where, lambda env, where=where: env.step((where, "")))  # type: ignore[misc]
    await env.close()
    return found


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_what_an_env_raises_is_the_same_on_every_backend() -> None:
    async with EnvPool(workers=1) as pool:
        wanted = await failures(pool, CPU)
        by_place = {"process io": await failures(pool, IO), "light": await failures(pool, LIGHT)}
        assert pool.stats().restarts == 0
    async with EnvPool(backend="inline") as pool:
        by_place |= {"inline": await failures(pool, CPU), "inline io": await failures(pool, IO)}
        on_loop = await failures(pool, ASYNC)
    for name, failure in wanted.items():
        assert failure.kind == (EnvBuildError if name.startswith("open") else EnvError).__name__, name
    assert wanted["step metaclass"].remote == "BadName"
    for place, found in by_place.items():
        assert found == wanted, place
    for name, failure in on_loop.items():
        if not name.endswith(" stop"):  # no coroutine can raise that
            assert failure == wanted[name], name


@pytest.mark.parametrize("spec", [CPU, IO, ASYNC], ids=["cpu", "io", "async"])
async def test_steps_of_many_envs_at_once_take_it_as_well(spec: EnvSpec) -> None:
    async with EnvPool(backend="inline") as pool:
        envs = [await pool.open(spec) for _ in range(3)]
        await pool.reset_many(envs, [1, 2, 3])
        first, second, third = await pool.step_many(envs, [("raise", "cancelled"), 1, ("raise", "interrupt")])
        assert [type(one) for one in (first, third)] == [EnvError, EnvError]
        assert not isinstance(second, RolloutError)


@pytest.mark.parametrize("spec", [IO, ASYNC], ids=["io", "async"])
async def test_a_cancellation_of_the_caller_passes(spec: EnvSpec) -> None:
    async with EnvPool(backend="inline") as pool, pool.open(ASYNC) as env:
        await env.reset(seed=1)
        await cancelled(lambda: env.step("wait"), all_tasks_blocked)
        with pytest.raises(UsageError, match="cancelled half-way"):
            await env.step(1)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await env.reset(seed=1)
        task.uncancel()


async def test_an_action_that_cannot_be_loaded_is_a_mistake_of_its_user() -> None:
    for options in ({"backend": "inline"}, {"workers": 1}):
        async with EnvPool(**options) as pool, pool.open(CPU) as env:
            await env.reset(seed=1)
            for kind in ("interrupt", "text raises"):
                with pytest.raises(UsageError, match="its action"):
                    await env.step(LoadsAs(kind))
            await env.step(1)


async def test_a_replay_that_raises_anything_diverges(tmp_path: Any) -> None:
    trace = str(tmp_path / "trace")
    spec = EnvSpec(name="faulty", factory="tests.envs.fault:Faulty")
    async with EnvPool(backend="inline") as pool, pool.open(spec) as env:
        await env.reset(seed=1)
        await env.step(["past first", trace, "raise", "interrupt"])
        with pytest.raises(RolloutError, match=r"raised at action 1, where it had not: KeyboardInterrupt\(\)"):
            await env.fork()


# Ctrl-C


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


def _be_interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass


def _own(call: Callable[[], None]) -> bool:
    try:
        call()
    except KeyboardInterrupt as error:
        return is_own(error)
    raise AssertionError


def _handle(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [signal.default_int_handler, _handle], ids=["usual", "own"])
def test_ctrl_c_is_not_an_error_of_the_env_that_it_interrupts(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        assert _own(_raise_interrupt)
        assert not _own(_be_interrupted)
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_program_that_steps_an_env_inline() -> None:
    async def play() -> None:
        spec = EnvSpec(name="interrupted", factory=Interrupted)
        async with EnvPool(backend="inline") as pool, pool.open(spec) as env:
            await env.reset(seed=1)
            with anyio.fail_after(10):
                await env.step(1)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()  # without asyncio.run, the signal interrupts whatever runs
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(play())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        signal.signal(signal.SIGINT, before)
        loop.close()


class Interrupted:
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> Any:
        _be_interrupted()
