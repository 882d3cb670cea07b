"""What crosses the pool comes back equal and of the same type, and belongs to whoever receives it."""

import datetime
import decimal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from asyncrollout import (
    EnvPool,
    EnvSpec,
    Observation,
    RolloutError,
)
from asyncrollout.pool.wire import codec
from asyncrollout.testing import same
from tests.envs.tiny import Point
from tests.playing import ECHO, ENVS, EPISODES, expected, kill_worker_of, play

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


async def test_a_megabyte_of_observation_takes_no_bytes_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[int] = []
    feed = codec.FrameReader.feed

    def counted(reader: codec.FrameReader, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        received.append(len(data))
        return feed(reader, data)

    big = EnvSpec(name="big", factory=f"{ENVS}:BigArray")
    async with EnvPool(workers=1) as pool, pool.open(big) as env:
        await env.reset(seed=1)
        monkeypatch.setattr(codec.FrameReader, "feed", counted)
        outcomes = [await env.step(0) for _ in range(4)]
    assert [outcome.observation.nbytes for outcome in outcomes] == [1 << 20] * 4
    assert 0 < sum(received) < 4_000


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
