"""What is left of an episode when the next one cannot be begun; snapshots that are old, foreign or broken."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from asyncrollout import EnvCrashed, EnvDiverged, EnvError, EnvHandle, EnvPool, EnvSpec, UsageError
from asyncrollout.pool.wire import codec
from asyncrollout.service.allowed_envs import Admission
from asyncrollout.testing import same
from tests.envs.recovery import Changing
from tests.playing import PATIENCE, Gate, kill_worker_of
from tests.test_pool_recovery import CHANGING, LONG, MENU, opened, places, play
from tests.test_remote_pool import remote
from tests.waiting import all_tasks_blocked, cancelled

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

ENVS = "tests.envs.episode"


def show_nothing(env: EnvHandle) -> None:
    with pytest.raises(UsageError, match=r"cannot show an outcome: .* call reset\(\) first"):
        _ = env.outcome


@places
async def test_after_a_failed_reset_there_is_no_outcome(place: str) -> None:
    async with opened(place, EnvSpec(name="picky", factory=f"{ENVS}:Picky")) as (_, env):
        await play(env, 1, 1)
        with pytest.raises(EnvError, match="no tasks here") as raised:
            await env.reset(seed=2, task="any")
        assert (raised.value.seed, raised.value.turn) == (2, 0)
        show_nothing(env)
        assert (await env.reset(seed=1)) is env.outcome


async def test_a_cancelled_restore_leaves_the_env_its_own_life(tmp_path: Path) -> None:
    path = tmp_path / "stuck"
    spec = EnvSpec(name="stuck", factory=f"{ENVS}:Stuck", runs="io", kwargs={"path": str(path)})
    with anyio.fail_after(PATIENCE):
        async with EnvPool(backend="inline") as pool, pool.open(spec) as env:
            await play(env, 1, 1)
            kept = await env.snapshot()
            await env.call("set_level", 3, keep=True)
            path.touch()
            await cancelled(lambda: env.restore(kept), all_tasks_blocked)
            show_nothing(env)
            path.unlink()
            assert "level 3" in (await env.reset(seed=1)).observation


@pytest.mark.parametrize("place", ["inline", "process"])
async def test_after_a_failed_restore_the_env_has_its_own_life(place: str, tmp_path: Path) -> None:
    kwargs = {"path": str(tmp_path / "count"), "length": 50}
    async with opened(place, EnvSpec(name="drifting", factory="tests.envs.recovery:Drifting", kwargs=kwargs)) as (
        _,
        env,
    ):
        await play(env, 7, 1)
        kept = await env.snapshot()
        await play(env, 8, 1, 1)
        await env.call("add", 5, keep=True)
        with pytest.raises(EnvDiverged) as raised:
            await env.restore(kept)
        assert raised.value.seed == 7
        show_nothing(env)
        assert await env.call("extras") == 5
        assert "5 extra" in (await env.reset(seed=1)).observation


@pytest.mark.parametrize("place", ["inline", "process"])
async def test_after_a_failed_restore_a_call_that_cannot_be_repeated_is_named(place: str, tmp_path: Path) -> None:
    count = tmp_path / "count"
    spec = EnvSpec(name="drifting", factory="tests.envs.recovery:Drifting", kwargs={"path": str(count), "length": 50})
    async with opened(place, spec) as (_, env):
        outcome = await play(env, 7, 1)
        kept = await env.snapshot()
        with pytest.raises(EnvError):
            await env.step("x")
        await env.call("add", 5)
        with pytest.raises(EnvDiverged):
            await env.restore(kept)
        gone = r"it is gone and cannot be made again, as its call of add\(\) came after a failure.*keep=True"
        with pytest.raises(EnvCrashed, match=gone):
            await env.call("extras")
        with pytest.raises(EnvCrashed, match=gone):
            await env.reset(seed=1)
        count.unlink()  # the next object is as the first one was
        assert same(await env.restore(kept), outcome)


async def test_crashes_are_counted_in_each_episode_also_if_it_is_restored(tmp_path: Path) -> None:
    faulty = EnvSpec(name="faulty", factory="tests.envs.fault:Faulty")
    with anyio.fail_after(PATIENCE):
        async with EnvPool(workers=1, max_restarts=1) as pool, pool.open(faulty) as env:
            await play(env, 1, 1)
            kept = await env.snapshot()
            wanted = await env.step(1)
            for number in range(3):
                await env.restore(kept)
                assert same(await env.step(["once", str(tmp_path / str(number)), "exit", 3]), wanted)
            assert pool.stats().restarts == 3


async def test_without_recovery_an_episode_that_was_not_begun_does_not_fail() -> None:
    with anyio.fail_after(PATIENCE):
        async with EnvPool(workers=1, recover="none") as pool, pool.open(CHANGING) as env:
            await play(env, 1, 1)
            kill_worker_of(pool, env)
            assert (await play(env, 1, 1)).reward


async def test_a_reset_that_cannot_be_sent_ends_the_episode() -> None:
    known = {CHANGING.name: CHANGING}
    async with (
        remote(workers=1, admission=Admission(find=known.__getitem__)) as (_, pool),
        pool.open("changing") as env,
    ):
        await play(env, 1, 1)
        with pytest.raises(UsageError, match="cannot be sent over a network"):
            await env.reset(seed=2, task=object())
        show_nothing(env)
        for call in (lambda: env.step(1), env.snapshot, env.fork):
            with pytest.raises(UsageError, match=r"call reset\(\) first"):
                await call()
        assert (await play(env, 1, 1)).reward


async def test_a_foreign_state_that_no_server_takes_changes_nothing() -> None:
    known = {LONG.name: LONG}
    async with (
        remote(workers=1, admission=Admission(find=known.__getitem__)) as (_, pool),
        EnvPool(backend="inline") as here,
        here.open(LONG) as local,
        pool.open("saving") as env,
    ):
        await local.call("add", 1)
        await play(local, 1, 1)
        await play(env, 1, 1)
        with pytest.raises(UsageError, match="it was not made by a remote pool"):
            await env.restore(await local.snapshot())
        plain = Changing(length=50)
        plain.reset(seed=1)
        plain.step(1)
        assert (await env.step(1)).observation == plain.step(1)[0]


async def test_reads_at_a_server_that_were_cancelled_cost_nothing(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    spec = EnvSpec(name="gated", factory=f"{ENVS}:Counted", kwargs={"pipe": gate.pipe, "length": 9})
    with anyio.fail_after(PATIENCE):
        async with remote(workers=1, admission=Admission(find={spec.name: spec}.__getitem__)) as (_, pool):
            env = await pool.open("gated")
            await play(env, 1, 1)
            await cancelled(env.render, gate.begun)
            for _ in range(3):
                await cancelled(env.render, anyio.lowlevel.checkpoint)
            plain = Changing(length=9)
            plain.reset(seed=1)
            plain.step(1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gate.open)
                assert (await env.step(2)).observation == plain.step(2)[0]


# Calls


@places
async def test_properties_are_read_once_and_attributes_take_no_arguments(place: str) -> None:
    async with opened(place, EnvSpec(name="counted", factory=f"{ENVS}:Counted", kwargs={"pipe": ""})) as (_, env):
        assert [await env.call("read"), await env.call("read")] == [1, 2]
        with pytest.raises(UsageError, match="'level' of env 'counted' is an attribute, and takes no arguments"):
            await env.call("level", 5)


@places
async def test_an_error_that_is_only_called_like_one_of_ours_costs_no_env(place: str) -> None:
    async with opened(place, EnvSpec(name="counted", factory=f"{ENVS}:Counted", kwargs={"pipe": ""})) as (pool, env):
        await play(env, 1, 1)
        with pytest.raises(EnvError, match="EnvTimeout: not the pool's"):
            await env.call("time_out")
        if env.worker != -1:
            kill_worker_of(pool, env)
        assert "1 extra" in (await env.step(1)).observation


# Snapshots


@places
async def test_a_wrapper_that_passes_on_what_it_lacks_has_no_snapshots(place: str) -> None:
    async with opened(place, EnvSpec(name="forwarding", factory=f"{ENVS}:Forwarding")) as (_, env):
        await play(env, 1, 1)
        kept, twin = await env.snapshot(), await env.fork()
        assert (await twin.step(1)).observation == 2
        await env.step(1)
        await env.restore(kept)
        assert (await env.step(1)).observation == 2
        await twin.close()


@places
async def test_observations_without_a_file_form_are_replayed_from_a_file(place: str) -> None:
    spec = EnvSpec(name="boxed", factory=f"{ENVS}:Boxed", text=f"{ENVS}:BoxText", kwargs={"length": 50})
    async with opened(place, spec) as (_, env):
        await play(env, 1, "1", "2")
        await env.call("nudge", 1)
        kept = await env.snapshot()
        wanted = await env.step("1")
        await env.restore(kept)
        assert same(await env.step("1"), wanted)


@places
async def test_a_snapshot_with_text_is_not_one_without(place: str) -> None:
    spec = replace(MENU, text="tests.envs.recovery:SavedMenu")
    async with opened(place, spec) as (pool, env), pool.open(env._calls.binding.opening.spec, text=False) as raw:
        for one, other, match in ((env, raw, "with the text"), (raw, env, "without the text")):
            await one.reset(seed=1)
            kept = await one.snapshot()
            with pytest.raises(UsageError, match=f"this snapshot was taken {match} interface"):
                await other.restore(kept)
            await other.reset(seed=1)


def as_file(*record: Any) -> bytes:
    return codec.encode_exact([*record])


CALL: list[Any] = ["add", (5,), {}, None, False]
START: list[Any] = [1, None, 0, None, 0]

BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "no list": as_file(),
    "a type that numpy parses": codec.encode_exact([2, "changing", np.zeros(1)]).replace(b"<f8", b"<,8"),
    "an empty number": as_file(2, "changing").replace(b"\x92", b"\x93") + b"\xc7\x07\x03\x92\xa3<f8\xc4\x00",
    "no method": as_file(2, "changing", [[1, [5, (), {}, None, False]]], None, False),
    "no arguments": as_file(2, "changing", [[1, ["add", 5, {}, None, False]]], None, False),
    "no keyword": as_file(2, "changing", [[1, ["add", (), {5: 5}, None, False]]], None, False),
    "no keep": as_file(2, "changing", [[1, ["add", (5,), {}, "yes", False]]], None, False),
    "no seed": as_file(2, "changing", [], ["x", None, 0, None, 0, [], [1], None], False),
    "a negative seed": as_file(2, "changing", [], [-1, None, 0, None, 0, [], [1], None], False),
    "too few digests": as_file(2, "changing", [], [*START, [[0, 1]], [1], None], False),
    "digests of text": as_file(2, "changing", [], [*START, [], ["x"], None], False),
    "a state without outcome": as_file(2, "changing", [], [1, None, 0, b"x", 0, [], [], None], False),
    "half an outcome": as_file(2, "changing", [], [1, None, 0, b"x", 0, [], [], ["x", 0.0]], False),
    "a state of numbers": as_file(2, "changing", [], [1, None, 0, 5, 0, [], [], ["x", 0.0, False, False, {}]], False),
    "half of format 1": as_file(1, "changing", [CALL[:3]], [1, None, 0]),
}


@pytest.mark.parametrize("snapshot", BROKEN.values(), ids=BROKEN)
async def test_broken_snapshots_are_refused_and_change_nothing(snapshot: bytes) -> None:
    async with EnvPool(backend="inline") as pool, pool.open(CHANGING) as env:
        await play(env, 1, 1)
        plain = Changing()
        plain.reset(seed=1)
        plain.step(1)
        with pytest.raises(UsageError, match="this is not a snapshot of ours"):
            await env.restore(snapshot)
        assert (await env.step(1)).observation == plain.step(1)[0]


@pytest.mark.parametrize("spec", [LONG, CHANGING], ids=["by its state", "by its actions"])
async def test_a_snapshot_with_any_bit_changed_is_refused(spec: EnvSpec) -> None:
    async with EnvPool(backend="inline") as pool, pool.open(spec) as env:
        wanted = await play(env, 1, 1)
        kept = await env.snapshot()
        for place in range(8 * len(kept)):
            changed = bytearray(kept)
            changed[place // 8] ^= 1 << place % 8
            with pytest.raises(UsageError):
                await env.restore(bytes(changed))
        for length in range(len(kept)):
            with pytest.raises(UsageError, match="this is not a snapshot of ours"):
                await env.restore(kept[:length])
        assert same(await env.restore(kept), wanted)


@places
async def test_a_state_that_is_no_state_is_reported(place: str) -> None:
    async with opened(place, LONG) as (_, env):
        last = ["x", 0.0, False, False, {}]
        with pytest.raises(UsageError, match="this is not a snapshot of ours"):
            await env.restore(as_file(2, "saving", [], [1, None, 0, b"\xc1", 0, [], [], last], False))
        assert (await play(env, 1, 1)).reward


async def test_snapshots_of_format_2_can_be_read() -> None:
    async with EnvPool(backend="inline") as pool, pool.open(CHANGING) as env:
        wanted = await play(env, 1, 1)
        old = as_file(2, "changing", [], [*START, [[0, 1]], [None, None], None], False)
        assert same(await env.restore(old), wanted)


async def test_snapshots_of_format_1_are_checked_by_their_outcome() -> None:
    """The digests of large arrays were others then."""
    async with EnvPool(backend="inline") as pool, pool.open("tests.envs.tiny:BigArray") as env:
        wanted = await play(env, 1, 0)
        fields = [wanted.observation, wanted.reward, wanted.terminated, wanted.truncated, wanted.info]
        old = [1, env.name, [], [1, None, 0], None, 0, [[0, 0]], [123, 456]]
        assert same(await env.restore(as_file(*old, fields)), wanted)
        with pytest.raises(EnvDiverged):
            await env.restore(as_file(*old, [wanted.observation, 9.0, *fields[2:]]))
