"""What one env's user may do at awkward moments."""

import os
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from asyncrollout import ClosedError, EnvHandle, EnvPool, EnvSpec, Outcome, UsageError
from tests.envs.tiny import Counter, Step
from tests.playing import COUNTER, ENVS, PATIENCE, Gate, expected, kill_worker_of, play

GATED = EnvSpec(name="gated", factory=f"{ENVS}:Gated")
HERE = "tests.test_handle"


class Forking(Counter):
    """Its step comes back twice: in the worker, and in a child of it."""

    def step(self, action: Any) -> Step:
        os.fork()
        return super().step(action)


class Named(NamedTuple):
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Tupled(Counter):
    def step(self, action: Any) -> Any:
        return Named(*super().step(action))


class Closing(Counter):
    """Leaves a file for each env that is closed."""

    def __init__(self, directory: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.directory = Path(directory)

    def close(self) -> None:
        (self.directory / uuid4().hex).touch()


async def test_call_after_the_end_of_an_episode_holds_when_the_env_is_made_anew() -> None:
    async with EnvPool(workers=1) as pool, pool.open(COUNTER, limit=1) as env:
        assert (await play(env, 1, [1]))[-1].done
        await env.call("set_bonus", 100.0)
        kill_worker_of(pool, env)
        assert (await play(env, 1, [1]))[-1].reward > 100


async def test_reset_that_is_refused_leaves_the_episode_as_it_was() -> None:
    async with EnvPool(workers=1) as pool, pool.open(COUNTER) as env:
        await play(env, 5, [1, 2])
        for bad in ({"task": lambda: 0}, {"seed": -1}, {"seed": np.array([1, 2])}, {"seed": 1.5}):
            with pytest.raises(UsageError):
                await env.reset(**bad)
        assert env.seed == 5
        kill_worker_of(pool, env)
        assert await env.step(3) == expected(COUNTER, 5, [1, 2, 3])[-1]


async def test_forked_child_does_not_answer_in_the_name_of_its_worker() -> None:
    forking = EnvSpec(name="forking", factory=f"{HERE}:Forking")
    async with EnvPool(workers=1) as pool, pool.open(forking) as env, pool.open(COUNTER) as neighbour:
        await play(env, 1, [1, 2, 3])
        assert await play(neighbour, 2, [1] * 6) == expected(COUNTER, 2, [1] * 6)
        assert pool.stats().restarts == 0


async def test_closed_during_a_step_stays_closed(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    reported: list[Exception] = []

    async def step(env: EnvHandle) -> None:
        with pytest.raises(ClosedError) as caught:
            await env.step("wait")
        reported.append(caught.value)

    with anyio.fail_after(PATIENCE):
        async with EnvPool(workers=1) as pool, anyio.create_task_group() as tasks:
            env = await pool.open(GATED, pipe=gate.pipe)
            await env.reset(seed=1)
            tasks.start_soon(step, env)
            await gate.begun()
            with pytest.raises(UsageError, match="still in flight"):
                await env.step(2)
            await env.close()
            await gate.open()
    assert len(reported) == 1
    with pytest.raises(ClosedError):
        await env.step(1)


async def test_fork_is_of_the_moment_when_it_was_asked_for() -> None:
    async with EnvPool(workers=2) as pool, pool.open(COUNTER) as env, anyio.create_task_group() as tasks:
        begun = (await play(env, 1, [1, 2]))[-1]
        twins: list[EnvHandle] = []

        async def fork() -> None:
            twins.append(await env.fork())

        tasks.start_soon(fork)
        await anyio.lowlevel.checkpoint()  # now it has asked
        while not twins:
            try:
                await env.step(3)
            except UsageError:  # the fork is at work on it
                await anyio.lowlevel.checkpoint()
        assert twins[0].outcome == begun
        assert await twins[0].step(4) == expected(COUNTER, 1, [1, 2, 4])[-1]


@pytest.mark.parametrize("runs", ["light", "io", "cpu"])
async def test_env_that_failed_is_closed_before_it_is_made_anew(runs: Any, tmp_path: Path) -> None:
    closing = EnvSpec(name="closing", factory=f"{HERE}:Closing", kwargs={"directory": str(tmp_path)}, runs=runs)
    async with EnvPool(workers=1) as pool:
        async with pool.open(closing) as env:
            await env.reset(seed=1)
            with pytest.raises(Exception, match="invalid literal"):
                await env.step("x")
            await play(env, 1, [1])
        assert pool.stats().envs == 0
    assert len(list(tmp_path.iterdir())) == 2


async def test_named_tuples_are_tuples() -> None:
    async with EnvPool(workers=1) as pool, pool.open(f"{HERE}:Tupled") as env:
        assert (await play(env, 1, [1]))[-1] == expected(COUNTER, 1, [1])[-1]


async def test_io_envs_are_spread_by_their_number() -> None:
    async with EnvPool(workers=2) as pool:
        for _ in range(3):
            async with pool.open(COUNTER) as env:
                await play(env, 1, [1, 2])
        waiting = EnvSpec(name="waiting", factory=f"{ENVS}:Waiting", runs="io")
        envs = [await pool.open(waiting) for _ in range(6)]
        assert sorted(env.worker or 0 for env in envs) == [0, 0, 0, 1, 1, 1]


def test_pool_can_be_made_outside_of_an_event_loop() -> None:
    async def play_one(pool: EnvPool) -> Outcome:
        async with pool, pool.open(COUNTER) as env:
            return await env.reset(seed=1)

    assert anyio.run(play_one, EnvPool(backend="inline")) == expected(COUNTER, 1, [])[0]


DICE = EnvSpec(name="dice", factory=f"{ENVS}:Dice")
ROLLS = [0] * 8


async def roll(env: EnvHandle, member: int) -> list[Any]:
    first = await env.reset(seed=7, member=member)
    return [first.observation, *[(await env.step(0)).observation for _ in ROLLS]]


async def test_members_start_alike_and_have_each_their_own_luck(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(DICE) as env:
        rolls = [await roll(env, member) for member in (0, 1, 2, 1)]
        assert (await env.reset(seed=7, task=3)).info == {"options": ["member", "task"]}
    assert len({first for first, *_ in rolls}) == 1
    assert len({tuple(rolled) for rolled in rolls}) == 3
    assert rolls[1] == rolls[3]


async def test_luck_survives_a_dead_worker() -> None:
    async with EnvPool(workers=1) as pool, pool.open(DICE) as env:
        expected_rolls = await roll(env, 5)
        await env.reset(seed=7, member=5)
        begun = [(await env.step(0)).observation for _ in ROLLS[:4]]
        kill_worker_of(pool, env)
        assert begun + [(await env.step(0)).observation for _ in ROLLS[4:]] == expected_rolls[1:]


async def test_luck_survives_a_fork_and_a_snapshot() -> None:
    async with EnvPool(backend="inline") as pool, pool.open(DICE) as env, pool.open(DICE) as other:
        expected_rolls = await roll(env, 5)
        await env.reset(seed=7, member=5)
        begun = [(await env.step(0)).observation for _ in ROLLS[:4]]
        twin = await env.fork()
        await other.restore(await env.snapshot())
        for which in (env, twin, other):
            assert begun + [(await which.step(0)).observation for _ in ROLLS[4:]] == expected_rolls[1:]
        await twin.close()


async def test_env_without_chance_never_hears_of_members(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(f"{ENVS}:Optioned") as env:
        assert (await env.reset(seed=1, member=3)).observation is None
        assert (await env.reset(seed=1, member=3, task="x")).observation == {"task": "x"}


async def test_wrong_member_is_reported(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(DICE) as env:
        with pytest.raises(UsageError, match="env 'dice': member must be a whole number from 0, not -1"):
            await env.reset(seed=1, member=-1)
