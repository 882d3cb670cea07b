"""The pool's contract: the same from every backend and any number of workers, and clear errors for wrong use."""

import copy
import datetime
import decimal
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
import numpy as np
import psutil
import pytest

from asyncrollout import (
    ClosedError,
    EnvBuildError,
    EnvError,
    EnvHandle,
    EnvPool,
    EnvSpec,
    Observation,
    Outcome,
    Parsed,
    RolloutError,
    UnknownEnvError,
    UsageError,
    find_env,
)
from asyncrollout.registry import load_factory
from asyncrollout.testing import same
from tests import tiny_envs
from tests.tiny_envs import Point

ENVS = "tests.tiny_envs"
COUNTER = EnvSpec(name="counter", factory=f"{ENVS}:Counter")
TEXT = EnvSpec(name="text", factory=f"{ENVS}:Counter", text=f"{ENVS}:CounterText")
SNAPSHOT = EnvSpec(name="snapshot", factory=f"{ENVS}:SnapshotCounter")
ECHO = EnvSpec(name="echo", factory=f"{ENVS}:Echo")
MISSHAPEN = EnvSpec(name="misshapen", factory=f"{ENVS}:Misshapen")
ACTIONS = [1, 2, 3, 4, 5, 6]
REPLIES = ["add 1", "jump", "add 2 || add 3", "", "add 4"]
PATIENCE = 60.0  # seconds, a guard against hanging; nothing is timed

BACKENDS: dict[str, dict[str, Any]] = {"inline": {"backend": "inline"}, "process": {"workers": 1}}


@pytest.fixture(params=BACKENDS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What makes a pool of each backend."""
    return BACKENDS[request.param]


async def play(env: EnvHandle, seed: int | None, actions: Iterable[Any], task: Any = None) -> list[Outcome]:
    outcomes = [await env.reset(seed=seed, task=task)]
    for action in actions:
        if outcomes[-1].done:
            break
        outcomes.append(await env.step(action))
    return outcomes


def expected(spec: EnvSpec, seed: int, actions: Iterable[Any], task: Any = None) -> list[Outcome]:
    """The same episode on the plain object, without any of our code."""
    env = load_factory(spec.factory)(**spec.kwargs)
    outcomes = [Outcome(*_reset(copy.deepcopy(env.reset(seed=seed, options=None if task is None else {"task": task}))))]
    for action in actions:
        if outcomes[-1].done:
            break
        observation, reward, terminated, truncated, info = copy.deepcopy(env.step(action))
        outcomes.append(Outcome(observation, float(reward), bool(terminated), bool(truncated), info))
    return outcomes


def _reset(result: tuple[Any, dict[str, Any]]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    return result[0], 0.0, False, False, result[1]


def pid_of(pool: EnvPool, env: EnvHandle) -> int:
    (pid,) = (worker.pid for worker in pool.stats().workers if worker.rank == env.worker)
    assert pid is not None
    return pid


def kill_worker_of(pool: EnvPool, env: EnvHandle) -> None:
    os.kill(pid_of(pool, env), signal.SIGKILL)


class Gate:
    """The outer side of a `Gated` env's pipe."""

    def __init__(self, directory: Path) -> None:
        self.pipe = str(directory / "gate")
        os.mkfifo(self.pipe)
        self._file: BinaryIO | None = None

    async def begun(self) -> None:
        """Wait until the env stands at the gate."""
        self._file = await anyio.to_thread.run_sync(Path(self.pipe).open, "rb")
        assert await anyio.to_thread.run_sync(self._file.read, 5) == b"begun"

    async def open(self) -> None:
        assert self._file is not None
        with self._file:
            await anyio.to_thread.run_sync(self._file.read)


# The same everywhere


PLACES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "inline": ({"backend": "inline"}, {}),
    "one worker": ({"workers": 1}, {}),
    "two workers": ({"workers": 2}, {}),
    "three workers": ({"workers": 3}, {}),
    "light": ({"workers": 1}, {"runs": "light"}),
    "io in a worker": ({"workers": 1}, {"runs": "io"}),
    "io inline": ({"backend": "inline"}, {"runs": "io"}),
    "restored by snapshots": ({"workers": 1, "recover": "snapshot"}, {}),
}
EPISODES: list[tuple[EnvSpec, list[Any]]] = [
    (COUNTER, ACTIONS),
    (COUNTER.with_kwargs(limit=12), ACTIONS),
    (SNAPSHOT, ACTIONS),
    (ECHO, ["a", (1, [2.5, None]), {"x": np.arange(3)}, {1, 2}]),
    (EnvSpec(name="big", factory=f"{ENVS}:BigArray"), [0, 0, 0]),
    (EnvSpec(name="bigs", factory=f"{ENVS}:BigArray", kwargs={"kind": "dict"}), [0, 0, 0]),
    (EnvSpec(name="growing", factory=f"{ENVS}:Growing"), [0, 0, 0, 0]),
    (find_env("gymnasium:CartPole-v1"), [0, 1, 0, 1]),
]


@pytest.mark.parametrize("place", PLACES)
async def test_same_transcripts_everywhere(place: str) -> None:
    pool_options, fields = PLACES[place]
    seen: dict[tuple[int, int], list[Outcome]] = {}

    async def run(pool: EnvPool, kind: int) -> None:
        spec, actions = EPISODES[kind]
        async with pool.open(replace(spec, **fields)) as env:
            for seed in (3, 8, 3):
                seen[kind, seed] = await play(env, seed, actions)

    async with EnvPool(**pool_options) as pool:
        async with anyio.create_task_group() as tasks:
            for kind in range(len(EPISODES)):
                tasks.start_soon(run, pool, kind)
        async with pool.open(replace(TEXT, **fields)) as env:
            replies = await play(env, 5, REPLIES)
    for (kind, seed), outcomes in seen.items():
        spec, actions = EPISODES[kind]
        assert same(outcomes, expected(spec, seed, actions)), (spec.name, seed)
    async with EnvPool(backend="inline") as pool, pool.open(TEXT) as env:
        assert same(replies, await play(env, 5, REPLIES))


@pytest.mark.parametrize("place", ["inline", "two workers"])
async def test_async_env_plays_on_the_loop(place: str) -> None:
    spec = EnvSpec(name="async", factory=f"{ENVS}:AsyncCounter", runs="io")
    async with EnvPool(**PLACES[place][0]) as pool, pool.open(spec) as env:
        assert same(await play(env, 5, ACTIONS), expected(COUNTER, 5, ACTIONS))
        assert env.worker == -1


async def test_many_envs_at_their_own_pace() -> None:
    """Interleaved in any way, no env sees another's calls."""
    seen: dict[int, list[Outcome]] = {}

    async def run(pool: EnvPool, number: int) -> None:
        async with pool.open(COUNTER) as env:
            seen[number] = await play(env, number, range(number % 7 + 3))

    async with EnvPool(workers=3) as pool, anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(run, pool, number)
    for number, outcomes in seen.items():
        assert same(outcomes, expected(COUNTER, number, range(number % 7 + 3)))
    assert len(seen) == 60


# Seeds and tasks


async def test_seeds_and_tasks_reach_the_env(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(COUNTER) as env:
        for seed, task in ((1, 40), (1, None), (2**100, 7)):
            assert same(await play(env, seed, ACTIONS, task), expected(COUNTER, seed, ACTIONS, task))
            assert env.seed == seed


async def test_drawn_seed_can_be_played_again(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(COUNTER) as env, pool.open(COUNTER) as other:
        first = await play(env, None, ACTIONS)
        seed = env.seed
        await other.reset()
        assert seed is not None
        assert other.seed != seed
        assert same(await play(other, seed, ACTIONS), first)


# Calls


async def test_calls(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(TEXT) as env:
        assert await env.call("limit") == 1000
        await env.reset(seed=1)
        assert await env.call("add", 5) == 5
        assert await env.call("set_bonus", bonus=0.5) == 0.5
        assert await env.call("anchor") == ("total", 5)
        assert await env.call("parse", "add 7") == Parsed([7])
        assert (await env.render()).tolist() == np.full((4, 4, 3), 5, dtype=np.uint8).tolist()
        with pytest.raises(UsageError, match="'_show' is private to env 'text'"):
            await env.call("_show")
        with pytest.raises(UsageError, match="env 'text' offers no 'set_bonsu': did you mean 'set_bonus'"):
            await env.call("set_bonsu", 1)
        with pytest.raises(EnvError, match=r"env 'text' \(seed 1.*TypeError: .*unexpected keyword argument"):
            await env.call("add", number=1)
        assert (await env.step("add 1")).reward > 0.5  # none of this has hurt the episode


async def test_turns_are_counted_in_steps(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(COUNTER) as env:
        await env.reset(seed=1)
        await env.step(1)
        await env.call("add", 5)
        await env.call("total")
        with pytest.raises(EnvError) as caught:
            await env.step("x")
        assert caught.value.turn == 1


async def test_setup_calls_survive_resets_and_forks(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(COUNTER) as env:
        await env.call("set_bonus", 100.0)
        wanted = [outcome.reward + 100 for outcome in expected(COUNTER, 1, [1, 2])[1:]]
        for _ in range(2):
            assert [outcome.reward for outcome in (await play(env, 1, [1, 2]))[1:]] == wanted
        await env.reset(seed=1)
        twin = await env.fork()
        assert [(await twin.step(action)).reward for action in (1, 2)] == wanted
        await twin.close()


async def test_calls_survive_a_killed_worker() -> None:
    async with EnvPool(backend="inline") as pool, pool.open(COUNTER) as env:
        reference = await _with_calls(env)
    async with EnvPool(workers=1) as pool, pool.open(COUNTER) as env:
        kills = 0

        def kill() -> None:
            nonlocal kills
            kills += 1
            kill_worker_of(pool, env)

        assert same(await _with_calls(env, kill), reference)
        assert pool.stats().restarts == kills == 3


async def _with_calls(env: EnvHandle, disturb: Callable[[], None] = lambda: None) -> list[Any]:
    seen: list[Any] = [await env.call("set_bonus", 7.0)]
    disturb()
    seen.append(await env.reset(seed=3))
    seen.append(await env.step(2))
    seen.append(await env.call("add", 5))
    disturb()
    seen.append(await env.step(3))
    disturb()
    seen.append(await env.call("total"))
    return seen


# Snapshots and forks


async def test_snapshot_restores_anywhere(options: dict[str, Any]) -> None:
    async with EnvPool(backend="inline") as home, EnvPool(**options) as away:
        for spec, actions in ((COUNTER, ACTIONS), (SNAPSHOT, ACTIONS), (TEXT, REPLIES)):
            async with home.open(spec) as env, away.open(spec) as other:
                whole = await play(env, 4, actions)
                await play(env, 4, actions[:3])
                kept = await env.snapshot()
                await env.step(actions[3])
                for which in (env, other):
                    assert same(await which.restore(kept), whole[3])
                    assert which.seed == 4
                    assert same([await which.step(action) for action in actions[3:]], whole[4:])


async def test_snapshot_of_an_ended_episode(options: dict[str, Any]) -> None:
    spec = COUNTER.with_kwargs(limit=1)
    async with EnvPool(**options) as pool, pool.open(spec) as env:
        *_, last = await play(env, 1, [1])
        kept = await env.snapshot()
        await env.reset(seed=2)
        assert same(await env.restore(kept), last)
        with pytest.raises(UsageError, match="its episode ended"):
            await env.step(1)


@pytest.mark.parametrize("options", [{"backend": "inline"}, {"workers": 2}], ids=str)
async def test_fork_goes_its_own_way(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        for spec in (COUNTER, SNAPSHOT):
            async with pool.open(spec) as env:
                await play(env, 6, [1, 2])
                twin = await env.fork()
                assert same(twin.outcome, env.outcome)
                mine = [await env.step(action) for action in (3, 4)]
                others = [await twin.step(action) for action in (8, 9)]
                third = await twin.fork()
                assert same(mine, expected(spec, 6, [1, 2, 3, 4])[3:])
                assert same(others, expected(spec, 6, [1, 2, 8, 9])[3:])
                assert same(await third.step(1), expected(spec, 6, [1, 2, 8, 9, 1])[-1])
                assert same(await play(twin, 9, ACTIONS), expected(spec, 9, ACTIONS))
                assert pool.stats().envs == 3
                await twin.close()
                await third.close()
                assert pool.stats().envs == 1


async def test_fork_of_an_env_with_effects_is_refused(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(replace(COUNTER, replayable=False)) as env:
        await env.reset(seed=1)
        with pytest.raises(
            UsageError, match=r"env 'counter' cannot fork: it has no snapshot\(\) and is not replayable"
        ):
            await env.fork()
        assert (await env.step(1)).reward > 0


# Many at once


async def test_many_at_once_with_errors_in_their_places(options: dict[str, Any]) -> None:
    failing = EnvSpec(name="failing", factory=f"{ENVS}:Crasher", kwargs={"at": 2, "how": "raise"})
    async with EnvPool(**options) as pool:
        envs = [await pool.open(spec) for spec in (COUNTER, failing, COUNTER)]
        first = await pool.reset_many(envs, seeds=[1, 2, 3], tasks=[None, None, 10])
        second = await pool.step_many(envs, [1, 1, 1])
        third = await pool.step_many(envs, [2, 2, 2])
        for place, task in ((0, None), (2, 10)):
            wanted = expected(COUNTER, place + 1, [1, 2], task)
            assert same([first[place], second[place], third[place]], wanted)
        assert isinstance(second[1], Outcome)
        error = third[1]
        assert isinstance(error, EnvError)
        assert "the env's own mistake" in str(error)
        assert (error.env, error.seed, error.turn) == ("failing", 2, 1)
        fourth = await pool.step_many(envs, [1, 1, 1])
        assert [type(result) for result in fourth] == [Outcome, UsageError, Outcome]
        assert same((await pool.reset_many(envs[1:2], seeds=[2]))[0], expected(COUNTER, 2, [])[0])


async def test_many_at_once_needs_equal_lengths(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(COUNTER) as env:
        with pytest.raises(UsageError, match="1 handles, but 2 actions"):
            await pool.step_many([env], [1, 2])
        with pytest.raises(UsageError, match="1 handles, but 2 seeds and 1 tasks"):
            await pool.reset_many([env], seeds=[1, 2])
        with pytest.raises(UsageError, match="1 handles, but 1 seeds and 0 tasks"):
            await pool.reset_many([env], tasks=[])
        assert await pool.step_many([], []) == []


# Text envs


async def test_text_env(options: dict[str, Any]) -> None:
    """Parsing itself is in test_hosted; here it crosses the pool."""
    async with (
        EnvPool(**options) as pool,
        pool.open(TEXT, expert=True, format_penalty=0.5, max_actions_per_traj=3) as env,
    ):
        first = await env.reset(seed=1)
        assert first.info == {"seed": 1, "system_prompt": "Add numbers.", "expert": "add 9"}
        assert isinstance(first.observation, Observation)
        assert first.observation.text == "You are at total 0............."
        assert first.observation.data == "total 0............."
        assert first.observation.anchor == ("total", 0)
        assert same(first.observation.images, (np.zeros((4, 4, 3), dtype=np.uint8),))
        invalid = await env.step("jump")
        assert (invalid.reward, invalid.info["action_is_valid"], invalid.done) == (-0.5, False, False)
        assert invalid.info["invalid_reason"] == "not an addition: 'jump'"
        assert same(invalid.observation, first.observation)
        raw = await env.step(2)
        assert raw.reward == expected(COUNTER, 1, [2])[1].reward
        last = await env.step("add 1 || add 1 || add 1")
        assert (last.truncated, last.terminated, last.info["expert"]) == (True, False, "add 9")
        assert last.reward == sum(outcome.reward for outcome in expected(COUNTER, 1, [2, 1, 1])[2:])


async def test_text_interface_can_be_left_off(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(TEXT, text=False) as env:
        assert same(await play(env, 1, ACTIONS), expected(COUNTER, 1, ACTIONS))


# Values


VALUES: list[Any] = [
    None,
    (1, "a", [2.5, {"x": (None,)}]),
    {"a": 1, 2: "b", (3, 4): [5]},
    {"nested": {"list": [(), [], {}]}},
    {1, 2, 3},
    frozenset({"a"}),
    2**100,
    -(2**63) - 1,
    "\ud800 alone",
    "\u05d0\u0645 \u4f60\u597d \U0001f600\x00",
    b"\x00\xff",
    bytearray(b"abc"),
    float("nan"),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 1),
    decimal.Decimal("1.10"),
    1 + 2j,
    Point(1, "p"),
    Observation("seen", (np.zeros((2, 2, 3), dtype=np.uint8),), {"data": 1}, ("anchor", 1)),
    np.float32(1.5),
    np.int64(7),
    np.bool_(True),
    np.datetime64("2026-01-01"),
    np.str_(""),
    np.arange(6).reshape(2, 3)[:, ::2],
    np.zeros((0, 3)),
    np.array(["NaT", "2026-01-01"], dtype="M8[D]"),
    np.array([{"a": 1}, None], dtype=object),
    np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    np.array((1, 2.0), dtype=[("a", "i4"), ("b", "f8")])[()],
    {"large": np.arange(100_000), "odd": {1, 2}},
]


async def test_values_come_back_equal_and_of_the_same_type(options: dict[str, Any]) -> None:
    changed: dict[str, Any] = {}
    async with EnvPool(**options) as pool, pool.open(ECHO) as env:
        for value in VALUES:
            try:
                seen = [(await env.reset(seed=1, task=(value,))).observation[0]]
                outcome = await env.step(value)
                seen += [outcome.observation, outcome.info["said"], await env.call("step", value)]
            except RolloutError as error:
                changed[repr(value)] = error
                continue
            if not same(seen[:3], [value] * 3) or not same(seen[3][0], value):
                changed[repr(value)] = seen
    assert changed == {}


async def test_outcomes_are_the_callers_own(options: dict[str, Any]) -> None:
    """What a caller does with what it sent or was given changes nothing in the env."""
    async with EnvPool(**options) as pool, pool.open(ECHO) as env:
        await env.reset(seed=1)
        action: dict[str, Any] = {"list": [1], "array": np.zeros(3)}
        first = await env.step(action)
        action["array"][:] = 8
        first.observation["list"].append(3)
        first.observation["array"][:] = 9
        assert same(first.info["said"], {"list": [1], "array": np.zeros(3)})
        assert same((await env.step(None)).observation, None)


async def test_action_array_can_be_used_again(options: dict[str, Any]) -> None:
    """An agent that writes each action into the same array must not change what a replay plays."""
    async with EnvPool(**options) as pool, pool.open(f"{ENVS}:Diary") as env:
        await env.reset(seed=1)
        action = np.zeros(3)
        for number in range(3):
            action[:] = number
            await env.step(action)
        written = [np.zeros(3), np.ones(3), np.full(3, 2.0), "on"]
        twin = await env.fork()
        assert same((await twin.step("on")).observation, written)
        await twin.close()
        if "workers" in options:
            kill_worker_of(pool, env)
        assert same((await env.step("on")).observation, written)


async def test_changed_observation_does_not_hinder_a_fork(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(ECHO) as env:
        await env.reset(seed=1)
        outcome = await env.step(np.zeros(3))
        outcome.observation[:] = 5  # a caller that normalises in place
        twin = await env.fork()
        assert same((await twin.step("on")).observation, "on")
        await twin.close()


async def test_large_arrays_last_and_can_be_written(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        for spec in (spec for spec, _ in EPISODES if spec.name in ("big", "bigs", "growing")):
            async with pool.open(spec) as env, pool.open(spec) as other:
                outcomes = await play(env, 250, [0] * 4)
                await play(other, 7, [0] * 4)
                assert same(outcomes, expected(spec, 250, [0] * 4))
                for outcome in outcomes:
                    array = outcome.observation["head"] if spec.name == "bigs" else outcome.observation
                    array[:] = 0
                assert same(await env.step(0), expected(spec, 250, [0] * 5)[-1])


async def test_large_arrays_travel_without_room_for_them() -> None:
    async with EnvPool(workers=1) as pool:
        for kind in ("array", "dict"):
            roomy = EnvSpec(name="big", factory=f"{ENVS}:BigArray", kwargs={"kind": kind})
            spec = EnvSpec(name="no room", factory=f"{ENVS}:NoRoom", kwargs={"kind": kind})
            async with pool.open(roomy) as neighbour, pool.open(spec) as env:
                assert same(await play(env, 5, [0, 0]), expected(roomy, 5, [0, 0]))
                assert same(await play(neighbour, 5, [0, 0]), expected(roomy, 5, [0, 0]))
        assert pool.stats().restarts == 0


async def test_observation_with_a_set_survives_a_killed_worker() -> None:
    """Sets have another order in every process; that is no divergence."""
    spec = EnvSpec(name="bag", factory=f"{ENVS}:BagEnv")
    async with EnvPool(workers=1) as pool, pool.open(spec) as env:
        await play(env, 1, [1, 2])
        for _ in range(3):
            kill_worker_of(pool, env)
            await env.step(3)
        assert same(env.outcome.observation, expected(spec, 1, [1, 2, 3, 3, 3])[-1].observation)


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
            await (anyio.wait_all_tasks_blocked() if spec is hanging else gate.begun())
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
        await second.call("set_bonus", 3.0)
        for env in (first, second, quick):
            await play(env, 1, ACTIONS)
        await second.reset(seed=2)
        assert (first.worker, second.worker) == (0, 1)
        assert pool.stats().moved == 1
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


def _grown(process: psutil.Process, before: int) -> float:
    gc.collect()
    return (process.memory_info().rss - before) / 2**20


async def test_pools_one_after_the_other_leave_nothing() -> None:
    me = psutil.Process()
    before = fds = 0
    for number in range(11):
        async with EnvPool(workers=1) as pool, pool.open(COUNTER) as env:
            assert same(await play(env, 1, ACTIONS), expected(COUNTER, 1, ACTIONS))
        if number == 0:  # warmed up
            gc.collect()
            before, fds = me.memory_info().rss, me.num_fds()
    assert _grown(me, before) < 20
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
    envs = [await pool.open("tests.tiny_envs:BigArray", size=1 << 17) for _ in range(512)]
    await pool.reset_many(envs, seeds=list(range(512)))
    for step in (1, 2):
        outcomes = await pool.step_many(envs, [0] * 512)
        assert [outcome.reward for outcome in outcomes] == [(seed + step) % 256 for seed in range(512)]
    stats = pool.stats()
    print(stats.envs, stats.restarts, sorted(worker.envs for worker in stats.workers))
""",
    )
    assert output == "512 0 [256, 256]\n"


def test_too_few_descriptors_are_told_before_the_start() -> None:
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


# Wrong use


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backend": "thread"}, "backend='thread' is not one of process, inline"),
        ({"backend": "Process"}, "did you mean 'process'"),
        ({"backend": None}, "backend=None is not one of"),
        ({"workers": 0}, "workers=0 is not a whole number from 1"),
        ({"workers": -1}, "workers=-1"),
        ({"workers": True}, "workers=True"),
        ({"workers": 1.5}, "workers=1.5"),
        ({"workers": "2"}, "workers='2'"),
        ({"step_timeout": -1}, "step_timeout=-1 is not a number of seconds above 0"),
        ({"step_timeout": 0}, "step_timeout=0"),
        ({"step_timeout": float("nan")}, "step_timeout=nan"),
        ({"step_timeout": "5"}, "step_timeout='5'"),
        ({"reset_timeout": -0.5}, "reset_timeout=-0.5"),
        ({"reset_timeout": None}, "reset_timeout=None"),
        ({"memory_limit": 0}, "memory_limit=0"),
        ({"memory_limit": 1.5}, "memory_limit=1.5"),
        ({"recover": "restart"}, "recover='restart' is not one of replay, snapshot, none"),
        ({"max_restarts": -1}, "max_restarts=-1 is not a whole number from 0"),
    ],
    ids=str,
)
def test_wrong_options_of_a_pool(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        EnvPool(**options)
    assert told in str(caught.value)


async def test_pool_must_be_entered_and_not_left(options: dict[str, Any]) -> None:
    pool = EnvPool(**options)
    with pytest.raises(ClosedError, match="use `async with EnvPool"):
        pool.open(COUNTER)
    async with pool:
        env = await pool.open(COUNTER)
        unopened = pool.open(COUNTER)
        await env.reset(seed=1)
    with pytest.raises(ClosedError):
        pool.open(COUNTER)
    with pytest.raises(RolloutError):
        await unopened
    for call in (lambda: env.reset(seed=1), lambda: env.step(1), lambda: env.call("total"), env.fork, env.snapshot):
        with pytest.raises(ClosedError):
            await call()
    await env.close()
    with pytest.raises(UsageError, match="make another one"):
        await pool.__aenter__()


Use = Callable[[EnvPool], Awaitable[Any]]


def opening(spec: EnvSpec | str, **kwargs: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(spec, **kwargs):
            pass

    return use


def resetting(spec: EnvSpec | str, *, seed: Any = 1, task: Any = None, **kwargs: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(spec, **kwargs) as env:
            await env.reset(seed=seed, task=task)

    return use


def stepping(spec: EnvSpec | str, *actions: Any, **kwargs: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(spec, **kwargs) as env:
            await env.reset(seed=1)
            for action in actions:
                await env.step(action)

    return use


def asking(method: str, *args: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(COUNTER) as env:
            await getattr(env, method)(*args)

    return use


def closed(method: str, *args: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(COUNTER) as env:
            await env.reset(seed=1)
        await env.close()
        await getattr(env, method)(*args)

    return use


async def step_unopened(pool: EnvPool) -> None:
    await pool.open(COUNTER).step(1)


async def open_twice(pool: EnvPool) -> None:
    async with pool.open(COUNTER) as env, env:
        pass


async def step_after_failure(pool: EnvPool) -> None:
    async with pool.open(COUNTER) as env:
        await env.reset(seed=1)
        with pytest.raises(EnvError):
            await env.step("x")
        await env.step(1)


async def render_nothing(pool: EnvPool) -> None:
    async with pool.open(ECHO) as env:
        await env.reset(seed=1)
        await env.render()


async def restore_anothers(pool: EnvPool) -> None:
    async with pool.open(COUNTER) as env, pool.open(ECHO) as other:
        await env.reset(seed=1)
        await other.restore(await env.snapshot())


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


UNSOLVED = EnvSpec(name="unsolved", factory=f"{ENVS}:Counter", text=f"{ENVS}:UnsolvedText")
WRONG_USES: dict[str, tuple[Use, type[RolloutError], list[str]]] = {
    "factory fails": (opening(f"{ENVS}:Refuses"), EnvBuildError, [f"{ENVS}:Refuses", "no licence for this simulator"]),
    "unknown keyword": (opening(COUNTER, colour="red"), EnvBuildError, ["env 'counter'", "colour"]),
    "unknown class": (opening(f"{ENVS}:Countr"), UsageError, ["Countr", "did you mean 'Counter'"]),
    "unknown module": (opening("no_such:Env"), RolloutError, ["env 'no_such:Env'", "no_such"]),
    "unknown gymnasium id": (opening("gymnasium:CartPol-v1"), RolloutError, ["gymnasium:CartPol-v1", "CartPole"]),
    "not an env": (opening("builtins:dict"), UsageError, ["env 'builtins:dict'", "dict has no reset()"]),
    "coroutines without io": (opening(f"{ENVS}:AsyncCounter"), UsageError, ["AsyncCounter", "runs='io'"]),
    "unknown name": (opening("countr"), UnknownEnvError, ["no env is called 'countr'"]),
    "not a name": (opening(5), UsageError, ["a string or an EnvSpec"]),  # type: ignore[arg-type]
    "no text interface": (opening(COUNTER, text=True), UsageError, ["env 'counter' has no text interface", "EnvSpec("]),
    "expert of a raw env": (opening(COUNTER, expert=True), UsageError, ["env 'counter'", "expert=True"]),
    "expert without a solver": (
        resetting(UNSOLVED, expert=True),
        UsageError,
        ["env 'unsolved' has no solve()", "without expert=True"],
    ),
    "wrong text option": (opening(TEXT, max_actions_per_turn="x"), UsageError, ["env 'text'", "max_actions_per_turn"]),
    "no such rank": (opening(COUNTER, worker=7), UsageError, ["env 'counter'", "worker=7"]),
    "negative rank": (opening(COUNTER, worker=-1), UsageError, ["env 'counter'", "worker=-1"]),
    "negative seed": (resetting(COUNTER, seed=-1), UsageError, ["env 'counter'", "a seed is", "-1"]),
    "seed is no number": (resetting(COUNTER, seed="7"), UsageError, ["env 'counter'", "'7'"]),
    "seed is a fraction": (resetting(COUNTER, seed=1.5), UsageError, ["env 'counter'", "1.5"]),
    "seed is a bool": (resetting(COUNTER, seed=True), UsageError, ["env 'counter'", "True"]),
    "task cannot be sent": (resetting(COUNTER, task=lambda: 1), UsageError, ["env 'counter'", "cannot be sent"]),
    "action cannot be sent": (stepping(COUNTER, lambda: 1), UsageError, ["env 'counter'", "cannot be sent"]),
    "action is too deep": (stepping(COUNTER, nested(100_000)), UsageError, ["env 'counter'", "cannot be sent"]),
    "action of the wrong type": (stepping(COUNTER, "x"), EnvError, ["env 'counter'", "ValueError: invalid literal"]),
    "action outside the space": (
        stepping("gymnasium:CartPole-v1", 7),
        EnvError,
        ["gymnasium:CartPole-v1", "7", "Discrete(2)"],
    ),
    "step before reset": (asking("step", 1), UsageError, ["env 'counter' cannot step", "call reset() first"]),
    "fork before reset": (asking("fork"), UsageError, ["env 'counter' cannot fork", "call reset() first"]),
    "snapshot before reset": (asking("snapshot"), UsageError, ["env 'counter' cannot take", "call reset() first"]),
    "step after the end": (
        stepping(COUNTER.with_kwargs(limit=1), 1, 1),
        UsageError,
        ["env 'counter' cannot step", "ended", "call reset() first"],
    ),
    "step after a failure": (step_after_failure, UsageError, ["env 'counter' cannot step", "failed", "call reset()"]),
    "no such method": (asking("call", "ad"), UsageError, ["env 'counter' offers no 'ad'", "did you mean 'add'"]),
    "private method": (asking("call", "_show"), UsageError, ["'_show' is private"]),
    "restored from nothing": (asking("restore", b"junk"), UsageError, ["env 'counter'", "no snapshot"]),
    "restored from another": (restore_anothers, UsageError, ["env 'echo'", "'counter'"]),
    "closed: reset": (closed("reset"), ClosedError, ["env 'counter' cannot reset", "closed"]),
    "closed: step": (closed("step", 1), ClosedError, ["env 'counter' cannot step", "closed"]),
    "closed: call": (closed("call", "total"), ClosedError, ["env 'counter'", "closed"]),
    "closed: render": (closed("render"), ClosedError, ["env 'counter' cannot render", "closed"]),
    "closed: fork": (closed("fork"), ClosedError, ["env 'counter' cannot fork", "closed"]),
    "never opened": (step_unopened, UsageError, ["env 'counter'", "async with pool.open(...)"]),
    "opened twice": (open_twice, UsageError, ["env 'counter'"]),
    "no render": (render_nothing, UsageError, ["env 'echo' has no render()"]),
}
for _how, _words in {
    "reset gives one": ["reset() must return (observation, info)"],
    "reset gives three": ["reset() must return (observation, info)"],
    "reset info is a list": ["info must be a dict, not list"],
    "reset gives what cannot be sent": ["lock", "cannot be sent"],
    "step gives four": ["step() must return (observation, reward, terminated, truncated, info)"],
    "step info is a list": ["info must be a dict, not list"],
    "reward is text": ["reward", "'much'"],
    "reward is None": ["reward", "None"],
    "step gives what cannot be sent": ["lock", "cannot be sent"],
    "step info cannot be sent": ["lock", "cannot be sent"],
}.items():
    WRONG_USES[_how] = (stepping(MISSHAPEN, 1, how=_how), EnvError, ["env 'misshapen' (seed 1, turn 0", *_words])


@pytest.mark.parametrize("options", [{"backend": "inline"}, {"workers": 1}], ids=str)
async def test_wrong_uses_are_told_and_hurt_nobody_else(options: dict[str, Any]) -> None:
    problems: dict[str, Any] = {}
    async with EnvPool(**options) as pool, pool.open(COUNTER.with_kwargs(limit=10**6)) as neighbour:
        wanted = expected(COUNTER.with_kwargs(limit=10**6), 1, range(len(WRONG_USES)))
        await neighbour.reset(seed=1)
        for number, (label, (use, kind, words)) in enumerate(WRONG_USES.items()):
            try:
                with anyio.fail_after(PATIENCE):
                    await use(pool)
                problems[label] = "nothing was raised"
            except kind as error:
                missing = [word for word in words if word not in str(error)]
                if missing:
                    problems[label] = missing, str(error)
            except Exception as error:
                problems[label] = error
            assert same(await neighbour.step(number), wanted[number + 1]), label
        stats = pool.stats()
        assert [worker.envs for worker in stats.workers] == [1]
        assert stats.restarts == 0
    assert problems == {}


async def test_what_cannot_be_pickled_runs_inline_alone() -> None:
    local = EnvSpec(name="local", factory=lambda: tiny_envs.Counter())
    async with EnvPool(backend="inline") as pool, pool.open(local) as env:
        assert same(await play(env, 1, ACTIONS), expected(COUNTER, 1, ACTIONS))
    async with EnvPool(workers=1) as pool:
        for spec in (local, COUNTER.with_kwargs(limit=lambda: 1)):
            with pytest.raises(UsageError, match=f"env '{spec.name}' cannot be sent.*'module:Class'.*backend='inline'"):
                pool.open(spec)
        async with pool.open(replace(local, runs="light")) as env:
            assert same(await play(env, 1, ACTIONS), expected(COUNTER, 1, ACTIONS))


async def test_env_that_failed_plays_again_after_a_reset(options: dict[str, Any]) -> None:
    """It is made anew, as nobody knows what a failure has left behind."""
    sticky = EnvSpec(name="counter", factory=f"{ENVS}:Sticky")
    async with EnvPool(**options) as pool, pool.open(sticky) as env:
        await env.call("set_bonus", 2.0)
        for _ in range(2):
            await env.reset(seed=1)
            with pytest.raises(EnvError, match="invalid literal") as caught:
                await env.step("x")
            assert "tiny_envs.py" in str(caught.value.remote_traceback)
            assert (caught.value.env, caught.value.seed, caught.value.turn) == ("counter", 1, 0)
        rewards = [outcome.reward for outcome in (await play(env, 1, [1, 2]))[1:]]
        assert rewards == [outcome.reward + 2 for outcome in expected(COUNTER, 1, [1, 2])[1:]]
