"""An env that is made anew is what the old one was, or there is an error: calls, snapshots, forks, deaths."""

import copy
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from asyncrollout import (
    EnvCrashed,
    EnvDiverged,
    EnvError,
    EnvHandle,
    EnvPool,
    EnvSpec,
    Observation,
    Outcome,
    UnknownEnvError,
    UsageError,
    registry,
)
from asyncrollout.pool.wire import codec
from asyncrollout.service.allowed_envs import Admission
from asyncrollout.service.remote import RemoteEnvPool
from asyncrollout.testing import same
from tests.envs.recovery import Changing, Framed, Saving
from tests.playing import PATIENCE, Gate, kill_worker_of
from tests.test_remote_pool import Leaving, remote
from tests.waiting import all_tasks_blocked, cancelled

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # many processes are killed here

ENVS = "tests.envs.recovery"
CHANGING = EnvSpec(name="changing", factory=f"{ENVS}:Changing")
SAVING = EnvSpec(name="saving", factory=f"{ENVS}:Saving")
LONG = SAVING.with_kwargs(length=50)
MENU = EnvSpec(name="menu", factory=f"{ENVS}:Saving", text=f"{ENVS}:Menu", kwargs={"length": 50})
LIGHT = replace(CHANGING, runs="light")

PLACES: dict[str, tuple[dict[str, Any], Any]] = {
    "inline": ({"backend": "inline"}, "cpu"),
    "light": ({"workers": 1}, "light"),
    "process": ({"workers": 1}, "cpu"),
    "process by snapshots": ({"workers": 1, "recover": "snapshot"}, "cpu"),
}


@asynccontextmanager
async def opened(place: str, spec: EnvSpec = CHANGING, **kwargs: Any) -> AsyncIterator[tuple[EnvPool, EnvHandle]]:
    options, runs = PLACES[place]
    with anyio.fail_after(PATIENCE):
        async with EnvPool(**options) as pool, pool.open(replace(spec, runs=runs), **kwargs) as env:
            yield pool, env


KNOWN = {
    spec.name: spec
    for spec in (
        EnvSpec(name="recovery_raw", factory=f"{ENVS}:Saving"),
        EnvSpec(name="recovery_text", factory=f"{ENVS}:Saving", text=f"{ENVS}:PlainText"),
    )
}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in KNOWN.values():
        monkeypatch.setitem(registry._registered, spec.name, spec)


places = pytest.mark.parametrize("place", PLACES)


# Calls


async def play(env: EnvHandle, seed: int, *actions: Any) -> Outcome:
    outcome = await env.reset(seed=seed)
    for action in actions:
        outcome = await env.step(action)
    return outcome


async def disturb(pool: EnvPool, env: EnvHandle) -> None:
    """Have the env made anew: by its worker's death, or where there is none by a failure."""
    if env.worker != -1:
        kill_worker_of(pool, env)
    else:
        await env.reset(seed=0)
        with pytest.raises(EnvError):
            await env.step("x")


@places
async def test_a_call_after_the_end_poisons_no_later_episode(place: str) -> None:
    async with opened(place) as (pool, env):
        for seed in range(3):
            await play(env, seed, 1, 1, 1, 1)
            await env.call("score")
        await disturb(pool, env)
        assert "asked 3" in (await play(env, 1, 1)).observation
        kept = await env.snapshot()
        await env.restore(kept)
        assert "asked 3" in (await env.step(1)).observation


@places
async def test_calls_are_not_piled_up(place: str) -> None:
    """Those that leave nothing add nothing, those that are kept add themselves, each time."""
    async with opened(place) as (pool, env):
        for seed in range(300):
            await play(env, seed, 1)
            await env.call("score", keep=False)
            await env.call("level")  # an attribute, which is only read
            if seed % 100 == 0:
                await env.call("add", 1, keep=True)
        assert [called.method for called in env._calls.binding.history.life] == ["add"] * 3  # type: ignore[union-attr]
        await disturb(pool, env)
        assert "3 extra, asked 0" in (await play(env, 1)).observation


@places
async def test_a_level_set_after_the_end_is_not_that_of_the_ended_episode(place: str) -> None:
    async with opened(place) as (_, env):
        ended = await play(env, 7, 1, 2, 3, 1)
        await env.call("set_level", 3)
        twin = await env.fork()
        assert twin.outcome == ended
        with pytest.raises(UsageError, match="its episode ended"):
            await twin.step(1)
        for one in (twin, env):
            assert "at level 3" in (await play(one, 7, 1)).observation
        await twin.close()


@places
@pytest.mark.parametrize("keep", [None, True])
async def test_a_change_made_in_an_earlier_episode_is_there_after_a_death(place: str, keep: bool | None) -> None:
    async with opened(place) as (pool, env):
        await play(env, 1, 1)
        await env.call("add", 7, keep=keep)
        await env.step(1)
        await play(env, 2, 1)
        await disturb(pool, env)
        if env.worker != -1:
            assert "7 extra" in (await env.step(1)).observation
        assert "7 extra" in (await play(env, 3, 1)).observation


@places
async def test_setup_is_made_once(place: str) -> None:
    """By a restore, in place or not, a fork, a death, and a restore that dies."""
    async with opened(place) as (pool, env):
        await env.call("add", 1)
        await play(env, 1, 1)
        kept = await env.snapshot()
        twin = await env.fork()
        for one in (env, twin):
            await one.restore(kept)
            assert "1 extra" in (await one.step(1)).observation
            if one.worker != -1:
                kill_worker_of(pool, one)
            await one.restore(kept)
            assert "1 extra" in (await one.step(1)).observation
        await twin.close()
        async with pool.open(env._calls.binding.opening.spec) as fresh:
            await fresh.call("add", 100)
            await fresh.restore(kept)
            assert "1 extra" in (await fresh.step(1)).observation


@places
async def test_an_env_with_the_same_life_is_restored_in_place(place: str) -> None:
    async with opened(place, LONG) as (_, env):
        await env.call("add", 1)
        await play(env, 1, 1)
        kept, where = await env.snapshot(), env._calls.binding.id
        for keep in (False, True):
            await env.step(1)
            await env.call("add" if keep else "score", *([5] if keep else []), keep=keep)
            await env.restore(kept)
            assert (env._calls.binding.id == where) is not keep
            assert "1 extra" in (await env.step(1)).observation


@places
async def test_a_call_that_raised_is_repeated_and_must_raise_again(place: str, tmp_path: Path) -> None:
    async with opened(place) as (pool, env):
        await play(env, 1, 1)
        with pytest.raises(EnvError, match="changed all the same"):
            await env.call("change_then_raise", keep=True)
        twin = await env.fork()
        assert "1000 extra" in (await twin.step(1)).observation
        await twin.close()
        await disturb(pool, env)
        assert "1000 extra" in (await play(env, 1, 1)).observation
        with pytest.raises(EnvError, match="only the first time"):
            await env.call("raise_once", str(tmp_path / "once"))
        with pytest.raises(EnvDiverged, match=r"raise_once\(\), repeated at action 2, did not raise, where it had"):
            await env.fork()


@places
async def test_a_call_that_the_env_never_saw_leaves_nothing(place: str) -> None:
    async with opened(place) as (_, env):
        await play(env, 1, 1)
        for method, args in (("_show", ()), ("ad", (1,)), ("add", (threading.Lock(),))):
            with pytest.raises(UsageError):
                await env.call(method, *args)
        with pytest.raises(UsageError, match="keep='yes' is neither True nor False"):
            await env.call("add", 1, keep="yes")  # type: ignore[arg-type]
        assert not env._calls.binding.history.was_called


@places
async def test_a_call_whose_result_cannot_travel_was_made(place: str) -> None:
    async with opened(place) as (_, env):
        await play(env, 1, 1)
        with pytest.raises(EnvError):
            await env.call("give_odd")
        twin = await env.fork()
        assert "1 extra" in (await twin.step(1)).observation
        await twin.close()


@places
async def test_too_many_episodes_with_calls_are_an_error_and_no_loss(place: str) -> None:
    async with opened(place) as (pool, env):
        for seed in range(200):
            await play(env, seed, 1)
            await env.call("score")
        assert not env._calls.binding.history.life
        with pytest.raises(UsageError, match=r"cannot fork: its call of score\(\) lies more than 500 .* keep=False if"):
            await env.fork()
        with pytest.raises(EnvError):
            await env.step("x")
        assert "asked 200" in (await play(env, 1)).observation  # in place
        if env.worker != -1:
            kill_worker_of(pool, env)
            for _ in range(2):
                with pytest.raises(EnvCrashed, match=r"cannot be made again, as its call of score\(\) .*keep=True"):
                    await env.reset(seed=1)


@places
async def test_an_env_that_is_not_replayable_is_never_replayed(place: str) -> None:
    async with opened(place, replace(CHANGING, replayable=False)) as (pool, env):
        await env.call("add", 1)
        await play(env, 1, 1)
        await env.call("add", 10, keep=True)
        await disturb(pool, env)
        if env.worker != -1:
            with pytest.raises(EnvCrashed, match="not replayable"):
                await env.step(1)
        assert "11 extra" in (await play(env, 1, 1)).observation
        await env.call("add", 100)
        assert "111 extra" in (await play(env, 1, 1)).observation
        if env.worker != -1:
            kill_worker_of(pool, env)
            with pytest.raises(EnvCrashed, match=r"its call of add\(\) was made in an episode that cannot be replayed"):
                await env.reset(seed=1)


@places
async def test_calls_after_a_failure(place: str) -> None:
    async with opened(place) as (pool, env):
        await env.reset(seed=1)
        with pytest.raises(EnvError):
            await env.step("x")
        await env.call("add", 1, keep=True)
        assert await env.call("score", keep=False) == 0
        assert "1 extra, asked 0" in (await play(env, 1)).observation  # in a new env
        with pytest.raises(EnvError):
            await env.step("x")
        await env.call("add", 10)
        assert "11 extra" in (await play(env, 1)).observation  # in the same one
        if env.worker != -1:
            kill_worker_of(pool, env)
            with pytest.raises(EnvCrashed, match=r"its call of add\(\) came after a failure"):
                await env.step(1)


@places
async def test_a_kept_call_that_needs_an_episode_is_reported(place: str) -> None:
    async with opened(place) as (pool, env):
        await play(env, 1, 1)
        await env.call("score", keep=True)
        await env.reset(seed=2)
        await disturb(pool, env)
        with pytest.raises(
            EnvDiverged, match=r"score\(\), repeated in a new env, raised.*keep=True must work in a new"
        ):
            await env.reset(seed=2)


async def test_an_earlier_episode_that_goes_another_way_is_reported(tmp_path: Path) -> None:
    spec = EnvSpec(name="drifting", factory=f"{ENVS}:Drifting", kwargs={"path": str(tmp_path / "count")})
    for options in ({"backend": "inline"}, {"workers": 1}):
        async with EnvPool(**options) as pool, pool.open(spec) as env:
            await play(env, 1, 1)
            await env.call("add", 1)
            await env.reset(seed=2)
            await disturb(pool, env)
            message = r"another outcome after .* of an earlier episode"
            with pytest.raises(EnvDiverged, match=message):
                await env.reset(seed=2)
            with pytest.raises(EnvDiverged, match=message):  # no env is left that could say what it offers
                await env.call("no_such_method")


# Snapshots


@pytest.mark.parametrize("interface", ["Menu", "SavedMenu", "SlottedMenu"])
@places
async def test_a_text_interface_that_remembers_is_part_of_a_fork(place: str, interface: str) -> None:
    spec = replace(MENU, text=f"{ENVS}:{interface}")
    async with opened(place, spec) as (pool, env):
        await env.reset(seed=1)
        await env.step("choice 1")
        reply = env.outcome.observation.text.rpartition(", ")[2]
        kept, twin = await env.snapshot(), await env.fork()
        wanted = await env.step(reply)
        assert wanted.info["action_is_valid"]
        assert same(await twin.step(reply), wanted)
        await env.step("choice 0")
        for one in (env, twin):
            await one.restore(kept)
            assert same(await one.step(reply), wanted)
        if env.worker != -1:
            await env.restore(kept)
            kill_worker_of(pool, env)
            assert same(await env.step(reply), wanted)
        await twin.close()


@places
async def test_an_interface_that_cannot_be_saved_is_named(place: str) -> None:
    async with opened(place, replace(MENU, replayable=False)) as (_, env):
        await env.reset(seed=1)
        with pytest.raises(UsageError, match=r"not replayable, and Menu keeps state of its own: give it `snapshot\(\)"):
            await env.fork()
    async with opened(place, replace(MENU, text=f"{ENVS}:SavedMenu", replayable=False)) as (_, env):
        await env.reset(seed=1)
        await (await env.fork()).close()


@places
async def test_the_interface_for_any_env_is_part_of_a_snapshot(place: str) -> None:
    async with opened(place, replace(LONG, replayable=False), text=True) as (_, env):
        await play(env, 1, "<answer>1</answer>")
        anchor = await env.call("anchor", keep=False)
        kept, twin = await env.snapshot(), await env.fork()
        assert await twin.call("anchor", keep=False) == anchor
        wanted = await env.step("<answer>2</answer>")
        assert await env.call("anchor", keep=False) != anchor
        assert same(await twin.step("<answer>2</answer>"), wanted)
        await env.restore(kept)
        assert await env.call("anchor", keep=False) == anchor
        await twin.close()


@pytest.mark.parametrize("options", [{"backend": "inline"}, {"workers": 1}], ids=str)
async def test_coroutines_that_save_and_restore_are_awaited(options: dict[str, Any]) -> None:
    spec = EnvSpec(name="async", factory=f"{ENVS}:AsyncSaving", runs="io")
    async with EnvPool(**options) as pool, pool.open(spec) as env:
        await play(env, 1, 1)
        kept, twin = await env.snapshot(), await env.fork()
        wanted = await env.step(2)
        assert same(await twin.step(2), wanted)
        await env.restore(kept)
        assert same(await env.step(2), wanted)


async def test_snapshots_of_format_1_are_read() -> None:
    setup, done = [["add", (5,), {}]], [[0, 1], [1, ["nudge", (2,), {}]], [0, 2]]
    plain = Changing()
    plain.add(5)
    plain.reset(seed=1)
    plain.step(1)
    plain.nudge(2)
    last = [*plain.step(2)]
    old = codec.encode_exact([1, "changing", setup, [1, None, 0], None, 0, done, [None] * 4, last])
    async with EnvPool(backend="inline") as pool, pool.open(CHANGING) as env:
        assert (await env.restore(old)).observation == last[0]
        assert (await env.step(1)).observation == plain.step(1)[0]


# What is whose


@pytest.mark.parametrize("place", ["inline", "light", "process"])
async def test_keyword_arguments_are_each_envs_own(place: str) -> None:
    items = [1]
    spec = EnvSpec(name="listing", factory=f"{ENVS}:Listing")
    async with opened(place, spec, items=items) as (pool, env):
        items.append(99)
        assert (await play(env, 1, 2)).observation == [1, 2]
        twin = await env.fork()
        assert (await twin.step(3)).observation == [1, 2, 3]
        assert (await env.step(4)).observation == [1, 2, 4]
        with pytest.raises(EnvError):
            await env.step("x")
        assert (await play(env, 1)).observation == [1]  # made anew
        await twin.close()
        async with pool.open(replace(spec, runs=env._calls.binding.opening.spec.runs), items=[5]) as other:
            assert (await play(other, 1)).observation == [5]
    assert items == [1, 99]


async def test_what_cannot_be_copied_is_passed_on() -> None:
    lock = threading.Lock()
    async with opened("light", EnvSpec(name="listing", factory=f"{ENVS}:Listing"), items=lock) as (_, env):
        assert env._calls.binding.opening.spec.kwargs["items"] is lock


@places
@pytest.mark.parametrize("factory", ["Framed", "FramedSaving"])
async def test_what_a_user_does_to_an_outcome_stays_with_the_user(place: str, factory: str) -> None:
    async with opened(place, EnvSpec(name="framed", factory=f"{ENVS}:{factory}", kwargs={"length": 50})) as (pool, env):
        wanted = copy.deepcopy(await play(env, 1, 1))

        async def spoil() -> None:
            env.outcome.observation[:] = 99
            env.outcome.info["kept"].append("spoilt")
            env.outcome.info["more"] = 1

        await spoil()
        twin = await env.fork()
        kept = await env.snapshot()
        assert same(twin.outcome, wanted)
        assert same(await env.restore(kept), wanted)
        await spoil()
        again = await env.fork()
        assert same(again.outcome, wanted)
        if env.worker != -1:
            await env.step(0)
            wanted = copy.deepcopy(env.outcome)
            await spoil()
            kill_worker_of(pool, env)
            assert same((await env.fork()).outcome, wanted)


@places
async def test_an_observation_that_a_call_changed_is_taken_from_its_user(place: str) -> None:
    async with opened(place, EnvSpec(name="framed", factory=f"{ENVS}:FramedSaving", kwargs={"length": 50})) as (_, env):
        wanted = copy.deepcopy(await play(env, 1, 1))
        await env.call("smear", keep=False)
        twin = await env.fork()
        assert same(twin.outcome, wanted)
        env.outcome.observation[:] = 99
        with pytest.raises(EnvError, match="was changed by a call of the env and by its user"):
            await env.fork()
        await twin.close()
        env_alone = Framed()
        env_alone.reset(seed=1)
        assert np.array_equal(wanted.observation, env_alone.step(1)[0])


# Other pools


@asynccontextmanager
async def known_here_and_there() -> AsyncIterator[tuple[EnvPool, EnvPool]]:
    there = {**KNOWN, "only_there": replace(KNOWN["recovery_raw"], name="only_there")}
    async with remote(workers=1, admission=Admission(find=there.__getitem__)) as (_, pool), EnvPool(workers=2) as here:
        yield here, pool


async def test_forks_between_here_and_there_keep_all_options() -> None:
    async with known_here_and_there() as (here, there):
        for first, second in ((here, there), (there, here), (there, there), (here, here)):
            async with first.open("recovery_text", length=50, format_penalty=0.7, expert=True, action_history=2) as env:
                await env.call("add", 1)
                await play(env, 1, "1", "nonsense")
                twin = await env.fork(second)
                assert same(twin.outcome, env.outcome)
                for reply in ("nonsense", "2"):
                    assert same(await twin.step(reply), await env.step(reply))
                assert isinstance(env.outcome.observation, Observation)
                assert (twin.outcome.info["expert"], env.outcome.observation.text.count("last actions")) == ("1", 1)
                again = await twin.fork(first)
                assert same(await again.step("3"), await env.step("3"))
                for one in (twin, again):
                    await one.close()
            async with first.open("recovery_text", text=False, length=50) as env:
                await play(env, 1, 1)
                twin = await env.fork(second)
                assert same(await twin.step(2), await env.step(2))
                await twin.close()


async def test_an_env_that_only_the_server_knows_cannot_be_forked_here() -> None:
    async with known_here_and_there() as (here, there), there.open("only_there") as env:
        await env.reset(seed=1)
        with pytest.raises(UnknownEnvError, match="only_there"):
            await env.fork(here)
        assert (await env.step(1)).reward


async def test_an_episode_with_snapshots_is_replayed_at_a_server() -> None:
    async with known_here_and_there() as (_, there), EnvPool(workers=1, recover="snapshot") as here:
        env = await here.open("recovery_raw", length=50)
        await play(env, 1, 1, 2)
        twin = await env.fork()
        for one in (env, twin):
            far = await one.fork(there)
            assert same(await far.step(3), await one.step(3))
        kept = await env.snapshot()
        await env.restore(kept)
        with pytest.raises(UsageError, match="it was itself restored from its own snapshot"):
            await env.fork(there)


async def test_a_pin_goes_with_a_fork_where_it_can() -> None:
    async with EnvPool(workers=2) as two, EnvPool(workers=1) as one, EnvPool(backend="inline") as inline:
        env = await two.open(CHANGING, worker=1)
        await env.reset(seed=1)
        assert (await env.fork()).worker == 1
        assert (await env.fork(inline)).worker == -1
        with pytest.raises(UsageError, match="pinned to worker 1, and the pool that it is to continue in has 1"):
            await env.fork(one)


async def test_an_ended_episode_is_ended_at_the_server_too() -> None:
    async with known_here_and_there() as (here, there), there.open("recovery_raw", length=2) as env:
        await play(env, 1, 1, 1)
        twins = [await env.fork(), await env.fork(here)]
        for one in twins:
            assert one.outcome.terminated
            with pytest.raises(UsageError, match="its episode ended"):
                await one.step(1)
        assert await twins[0].call("score") == await env.call("score")


async def test_calls_at_a_server_that_starts_anew() -> None:
    first = Leaving()
    async with anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        async with RemoteEnvPool(first.url) as pool:
            env = await pool.open("recovery_raw", length=3)
            await env.call("add", 1)
            await play(env, 1, 1, 1, 1)
            await env.call("score")
            with pytest.raises(EnvError, match="changed all the same"):
                await env.call("change_then_raise")
            await play(env, 2, 1)
            await env.call("add", 10, keep=True)
            await env.call("nudge", 5, keep=False)
            await first.stop()
            second = Leaving(int(first.url.rpartition(":")[2]))
            await tasks.start(second.run)
            plain = Saving(length=3)
            plain.extras, plain.asked = 1011, 1
            plain.reset(seed=2)
            plain.step(1)
            plain.nudge(5)
            assert (await env.step(1)).observation == plain.step(1)[0]
            assert (await play(env, 3, 1)).observation == (plain.reset(seed=3), plain.step(1))[1][0]
        await second.stop()


# Reads that are cancelled, envs that cannot be pinned


@pytest.mark.parametrize(
    ("options", "runs"), [({"workers": 1}, "cpu"), ({"workers": 1}, "io"), ({"backend": "inline"}, "io")], ids=str
)
async def test_a_cancelled_render_or_snapshot_leaves_the_episode(
    options: dict[str, Any], runs: Any, tmp_path: Path
) -> None:
    for factory in ("Gatekeeper", "SlowSnapshot"):
        (tmp_path / factory).mkdir()
        gate = Gate(tmp_path / factory)
        spec = EnvSpec(name="gated", factory=f"{ENVS}:{factory}", runs=runs, kwargs={"pipe": gate.pipe, "length": 9})
        with anyio.fail_after(PATIENCE):
            async with EnvPool(**options) as pool, pool.open(spec) as env:
                await play(env, 1, 1)
                read = env.render if factory == "Gatekeeper" else env.snapshot
                await cancelled(read, gate.begun)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(gate.open)
                    plain = Changing(length=9)
                    plain.reset(seed=1)
                    plain.step(1)
                    assert (await env.step(2)).observation == plain.step(2)[0]


async def test_a_cancelled_render_of_an_async_env_leaves_the_episode() -> None:
    spec = EnvSpec(name="async", factory=f"{ENVS}:AsyncSaving", runs="io")
    async with EnvPool(backend="inline") as pool, pool.open(spec) as env:
        await play(env, 1, 1)
        await cancelled(env.render, all_tasks_blocked)
        plain = Changing(length=8)
        plain.reset(seed=1)
        plain.step(1)
        assert (await env.step(2)).observation == plain.step(2)[0]


async def test_a_cancelled_call_is_still_there_or_an_error(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    spec = EnvSpec(name="gated", factory=f"{ENVS}:Gatekeeper", kwargs={"pipe": gate.pipe})
    with anyio.fail_after(PATIENCE):
        async with EnvPool(workers=1) as pool, pool.open(spec) as env:
            await play(env, 1, 1)
            await cancelled(lambda: env.call("wait_then_add", 5), gate.begun)
            with pytest.raises(UsageError, match="cancelled half-way"):
                await env.step(1)
            await gate.open()
            assert "5 extra" in (await play(env, 1)).observation
            kill_worker_of(pool, env)
            with pytest.raises(EnvCrashed, match=r"its call of wait_then_add\(\) was cancelled half-way"):
                await env.step(1)


async def test_an_async_env_cannot_be_pinned() -> None:
    spec = EnvSpec(name="async", factory=f"{ENVS}:AsyncSaving", runs="io")
    async with EnvPool(workers=1) as pool:
        with pytest.raises(UsageError, match="worker=0: async envs run on the event loop and cannot be pinned"):
            pool.open(spec, worker=0)


async def test_a_restore_while_a_call_is_under_way_is_refused(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    spec = EnvSpec(name="gated", factory=f"{ENVS}:Gatekeeper", kwargs={"pipe": gate.pipe})
    with anyio.fail_after(PATIENCE):
        async with EnvPool(workers=1) as pool, pool.open(spec) as env:
            await play(env, 1, 1)
            kept = await env.snapshot()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(env.render)
                await gate.begun()
                with pytest.raises(UsageError, match="still in flight"):
                    await env.restore(kept)
                await gate.open()
            assert (await env.step(1)).reward
