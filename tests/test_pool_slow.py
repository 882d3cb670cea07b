"""Envs that take long to be built, reset, stepped or closed: nobody waits for others longer than necessary."""

import os
import signal
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from asyncrollout import EnvHandle, EnvPool, EnvSpec
from asyncrollout.errors import ClosedError, EnvCrashed, EnvError
from asyncrollout.pool.hosts import SOON
from asyncrollout.pool.quarantine import Retries
from asyncrollout.testing import same
from tests.envs.slow import AsyncLong, Confused, read
from tests.playing import ACTIONS, COUNTER, PATIENCE, expected, pid_of
from tests.scripts.processes import until
from tests.waiting import all_tasks_blocked, cancelled

ENVS = "tests.envs.slow"
uvloop_only = pytest.mark.asyncio(loop_factories=["uvloop"])  # it takes seconds
LENGTHY = EnvSpec(name="lengthy", factory=f"{ENVS}:Lengthy")
HELD = EnvSpec(name="held", factory=f"{ENVS}:Held")
CROWD = EnvSpec(name="crowd", factory=f"{ENVS}:Crowd", runs="io")
ASYNC = EnvSpec(name="async", factory=AsyncLong, runs="io")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    AsyncLong.entered.clear()
    AsyncLong.closed.clear()


def words(diary: Path) -> Tally[str]:
    return Tally(line[0] for line in read(diary))


# Slow envs, all at once


@uvloop_only
@pytest.mark.parametrize("slow", [{"build": 0.3}, {"build": 0.3, "reset": 0.3}, {"build": 0.3, "step": 0.3}])
async def test_slow_envs_come_and_none_is_made_twice(tmp_path: Path, slow: dict[str, Any]) -> None:
    """Each call takes longer than what counts as slow, 0.2 s here, and building is never quicker than waiting."""
    diary = tmp_path / "diary"
    played = []

    async def play(pool: EnvPool, number: int) -> None:
        async with pool.open(LENGTHY, diary=str(diary), **slow) as env:
            first = await env.reset(seed=number)
            played.append((number, [first, await env.step(1)]))

    async with EnvPool(workers=2, step_timeout=0.4, reset_timeout=PATIENCE) as pool:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(play, pool, number)
    assert words(diary)["built"] == 6
    assert words(diary)["stepped"] == 6
    assert all(same(outcomes, expected(COUNTER, number, [1])) for number, outcomes in played)
    assert len(played) == 6


async def test_calls_that_moved_are_skipped_where_they_waited(tmp_path: Path) -> None:
    diary, hold = tmp_path / "diary", tmp_path / "hold"
    hold.touch()
    async with EnvPool(workers=2, step_timeout=2 * PATIENCE) as pool:
        slow = await pool.open(HELD, diary=str(diary), name="slow", hold=str(hold), worker=0)
        await slow.reset(seed=0)
        others = [await pool.open(HELD, diary=str(diary), name=str(number)) for number in range(6)]
        for env in others:
            await env.reset(seed=1)
        behind = [env for env in others if env.worker == 0]
        assert behind
        outcomes = {}

        async def step(env: EnvHandle) -> None:
            outcomes[env] = await env.step(5)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(slow.step, "hold")
                await until(lambda: words(diary)["step"] == 1)
                async with anyio.create_task_group() as waiting:
                    for env in behind:
                        waiting.start_soon(step, env)
                assert {env.worker for env in behind} == {1}
                assert pool.stats().moved == len(behind)
                hold.unlink()
        await slow.step(1)  # the old worker is past all that was given up
        names = Tally(name for what, name, *_ in read(diary) if what == "step")
        assert names == {"slow": 2} | {name: 1 for name in names if name != "slow"}
        assert len(names) == 1 + len(behind)
        for env in behind:
            assert same(outcomes[env], expected(COUNTER, 1, [5])[-1])


@pytest.mark.parametrize("runs", ["cpu", "io"])
async def test_calls_that_were_cancelled_while_they_waited_are_skipped(
    tmp_path: Path, runs: Literal["cpu", "io"]
) -> None:
    diary, hold = tmp_path / "diary", tmp_path / "hold"
    hold.touch()
    async with EnvPool(workers=1) as pool:
        slow = await pool.open(HELD, diary=str(diary), hold=str(hold))
        await slow.reset(seed=0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.step, "hold")
            await until(lambda: words(diary)["step"] == 1)
            async with anyio.create_task_group() as opening:
                for _ in range(3):
                    opening.start_soon(pool.open(replace(HELD, runs=runs), diary=str(diary), worker=0).__aenter__)
                await until(lambda: pool._backend is not None and pool._backend.hosts[0].wait() > SOON)
                opening.cancel_scope.cancel()
            hold.unlink()
        await slow.step(1)
        assert words(diary)["built"] == 1


async def test_an_env_whose_restore_was_cancelled_has_its_own_life(tmp_path: Path) -> None:
    diary, hold = tmp_path / "diary", tmp_path / "hold"
    async with EnvPool(workers=1) as pool:
        theirs, ours = [await pool.open(HELD, diary=str(diary), hold=str(hold)) for _ in range(2)]
        await theirs.call("set_name", "theirs", keep=True)
        await theirs.reset(seed=1)
        await theirs.step("hold")
        snapshot = await theirs.snapshot()
        await ours.call("set_name", "ours", keep=True)
        await ours.reset(seed=1)
        hold.touch()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ours.restore, snapshot)
            await until(lambda: words(diary)["step"] == 2)
            tasks.cancel_scope.cancel()
        hold.unlink()
        await ours.reset(seed=1)
        await ours.step(1)
    assert [name for what, name, *_ in read(diary) if what == "step"] == ["theirs", "theirs", "ours"]


# Deaths


async def test_suspects_are_tried_again_together(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    async with EnvPool(workers=1) as pool:
        (worker,) = pool.stats().workers
        assert worker.pid is not None
        envs = [await pool.open(CROWD, diary=str(diary), first=worker.pid, together=4) for _ in range(16)]
        for number, env in enumerate(envs):
            await env.reset(seed=number)
        outcomes = {}

        async def step(number: int) -> None:
            outcomes[number] = await envs[number].step(7)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for number in range(16):
                    tasks.start_soon(step, number)
                await until(lambda: words(diary)["step"] == 16)
                os.kill(worker.pid, signal.SIGKILL)
        assert all(same(outcomes[number], expected(COUNTER, number, [7])[-1]) for number in range(16))


async def test_a_quarantine_has_as_many_as_their_shares_allow() -> None:
    retries = Retries()
    inside: list[int] = []
    most: dict[int, int] = {}

    async def stay(count: int) -> None:
        async with retries.share(count):
            inside.append(count)
            most[count] = max(most.get(count, 0), len(inside))
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            inside.remove(count)

    async with anyio.create_task_group() as tasks:
        for count in [3] * 7 + [1] * 2 + [8] * 20:
            tasks.start_soon(stay, count)
    assert most == {3: 3, 1: 1, 8: 8}


async def test_the_log_that_a_crash_quotes_is_that_of_its_own_worker(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").write_text("of another run\n")
    async with EnvPool(workers=1, recover="none", log_dir=tmp_path) as pool, pool.open("tests.envs.tiny:Noisy") as env:
        await env.reset(seed=1)
        await env.step(1)
        os.kill(pid_of(pool, env), signal.SIGKILL)
        with pytest.raises(EnvCrashed) as crash:
            await env.step(1)
    assert "The end of the worker's log" in "".join(crash.value.__notes__)
    assert "of another run" not in "".join(crash.value.__notes__)


# The end of envs


async def test_nobody_waits_for_the_end_of_others() -> None:
    """An async env that is given up, and never comes to its end, delays no light env."""
    async with EnvPool(backend="inline", step_timeout=1000, reset_timeout=1000) as pool:
        stuck = await pool.open(ASYNC, name="stuck", hangs=True)
        light = await pool.open(replace(COUNTER, runs="light"))
        await stuck.reset(seed=1)
        await light.reset(seed=1)
        await cancelled(lambda: stuck.step("stay"), all_tasks_blocked)
        await stuck.close()
        await until(lambda: AsyncLong.entered == ["stuck"])
        assert same(await light.step(1), expected(COUNTER, 1, [1])[-1])


async def test_an_env_that_never_comes_to_its_end_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrollout.pool.handle.CLOSE_GRACE", 0.01)
    async with EnvPool(backend="inline") as pool:
        stuck = await pool.open(ASYNC, name="stuck", hangs=True)
        await stuck.close()
    assert AsyncLong.entered == ["stuck"]


async def test_a_cancellation_within_an_env_is_its_own_failure(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        env = await pool.open(EnvSpec(name="confused", factory=Confused, runs="io"))
        await env.reset(seed=1)
        with pytest.raises(EnvError, match="though nobody cancelled"):
            await env.step(1)
        await env.close()


async def test_a_call_of_an_env_that_is_closed_meanwhile_says_so() -> None:
    async with EnvPool(backend="inline") as pool:
        env = await pool.open(ASYNC)
        await env.reset(seed=1)

        async def stay() -> None:
            with pytest.raises(ClosedError, match="it was closed"):
                await env.step("stay")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stay)
            await all_tasks_blocked()
            await env.close()


async def test_async_envs_that_are_given_up_are_closed_without_any_further_call(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        envs = [await pool.open(ASYNC, name=str(number)) for number in range(3)]

        async def live(env: EnvHandle) -> None:
            try:
                await env.step("stay")
            finally:
                await env.close()

        async with anyio.create_task_group() as tasks:
            for env in envs:
                await env.reset(seed=1)
                tasks.start_soon(live, env)
            await all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await until(lambda: sorted(AsyncLong.closed) == ["0", "1", "2"])


async def test_at_a_pools_end_all_envs_are_closed_at_once(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        for number in range(30):
            await pool.open(ASYNC, name=str(number), crowd=30)
    assert sorted(AsyncLong.closed) == sorted(map(str, range(30)))


async def test_at_a_pools_end_no_env_is_closed_within_its_step() -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, EnvPool(backend="inline") as pool:
            env = await pool.open(ASYNC, name="walker")
            await env.reset(seed=1)

            async def stay() -> None:
                with pytest.raises(Exception, match="the pool is closed"):
                    await env.step("stay")

            tasks.start_soon(stay)
            await all_tasks_blocked()
    assert AsyncLong.closed == ["walker"]


@pytest.mark.parametrize("backend", [{"workers": 1}, {"backend": "inline"}])
async def test_io_envs_are_closed_in_their_own_thread(tmp_path: Path, backend: dict[str, Any]) -> None:
    diary, hold = tmp_path / "diary", tmp_path / "hold"
    hold.touch()
    async with EnvPool(**backend) as pool:
        envs = [
            await pool.open(replace(HELD, runs="io"), diary=str(diary), name=str(number), hold=str(hold))
            for number in range(3)
        ]
        for env in envs:
            await env.reset(seed=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(envs[0].step, "hold")
            await until(lambda: words(diary)["step"] == 1)
            tasks.cancel_scope.cancel()
        hold.unlink()
    threads = {name: thread for what, name, _, thread in read(diary) if what == "built"}
    closings = {name: (what, thread) for what, name, _, thread in read(diary) if what.startswith("closed")}
    assert closings == {name: ("closed", thread) for name, thread in threads.items()}
    assert len(set(threads.values())) == 3


async def test_an_io_env_that_was_given_up_while_it_was_made_is_closed(tmp_path: Path) -> None:
    diary, hold = tmp_path / "diary", tmp_path / "hold"
    hold.touch()
    async with EnvPool(backend="inline") as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.open(replace(HELD, runs="io"), diary=str(diary), build_hold=str(hold)).__aenter__)
            await until(lambda: words(diary)["building"] == 1)
            tasks.cancel_scope.cancel()
        hold.unlink()
        await until(lambda: words(diary)["closed"] == 1)


async def test_each_env_of_a_worker_has_its_own_time_to_close(tmp_path: Path, short_grace: None) -> None:
    diary = tmp_path / "diary"
    async with EnvPool(workers=1) as pool:
        for _ in range(8):
            await pool.open(LENGTHY, diary=str(diary), close=0.1)
    assert words(diary)["closed"] == 8


# Limits of time


@uvloop_only
@pytest.mark.parametrize("spec", [ASYNC, replace(LENGTHY, runs="io"), LENGTHY])
async def test_each_part_of_a_replay_has_its_own_time(tmp_path: Path, spec: EnvSpec, options: dict[str, Any]) -> None:
    kwargs: dict[str, Any] = {"step": 0.1} | ({} if spec is ASYNC else {"diary": str(tmp_path / "diary")})
    is_interruptible = spec.runs == "io" or "workers" in options
    limits: dict[str, Any] = {"step_timeout": 0.5, "reset_timeout": 0.5} if is_interruptible else {}
    async with EnvPool(**options, **limits) as pool, pool.open(spec, **kwargs) as env:
        await env.reset(seed=3)
        for action in ACTIONS:
            await env.step(action)
        twin = await env.fork()
        assert same(await twin.step(1), await env.step(1))


@uvloop_only
async def test_a_step_of_a_replay_has_the_time_of_a_step_where_resets_have_less(tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"step": 1.5, "diary": str(tmp_path / "diary")}
    async with EnvPool(workers=1, step_timeout=PATIENCE, reset_timeout=1) as pool, pool.open(LENGTHY, **kwargs) as env:
        await env.reset(seed=3)
        await env.step(1)
        before = await env.call("total")
        os.kill(pid_of(pool, env), signal.SIGKILL)
        assert await env.call("total") == before
    assert words(tmp_path / "diary")["stepped"] == 2
