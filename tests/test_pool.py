"""The pool's contract: the same from every backend and any number of workers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest

from asyncrollout import (
    EnvError,
    EnvHandle,
    EnvPool,
    EnvSpec,
    Observation,
    Outcome,
    Parsed,
    UsageError,
)
from asyncrollout.pool.batch_calls import call_all
from asyncrollout.pool.env_calls import EnvCalls
from asyncrollout.pool.handle import calls_of
from asyncrollout.testing import same
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
    kill_worker_of,
    play,
)

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
        with pytest.raises(UsageError, match=r"env 'text'.*offers no 'set_bonsu': did you mean 'set_bonus'"):
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
            UsageError, match=r"env 'counter' cannot fork: it is not replayable, and it has no snapshot\(\)"
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


async def test_an_action_that_cannot_be_sent_is_an_error_in_its_place(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        envs = [await pool.open(COUNTER) for _ in range(3)]
        await pool.reset_many(envs, seeds=[1, 2, 3])
        results = await pool.step_many(envs, [1, lambda: 1, 1])
        assert [type(result) for result in results] == [Outcome, UsageError, Outcome]
        assert same(await envs[1].step(1), expected(COUNTER, 2, [1])[-1])  # nothing was played


async def test_results_of_many_are_reported_as_they_come_and_a_listener_may_fail(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        envs = [await pool.open(COUNTER) for _ in range(3)]
        await pool.reset_many(envs, seeds=[1, 2, 3])
        reported: dict[int, Any] = {}
        results = await call_all([partial(calls_of(env).begin_step, 1) for env in envs], reported.__setitem__)
        assert results == [reported[place] for place in range(3)]

        def fail(place: int, result: Any) -> None:
            raise LookupError(place, result)

        with pytest.raises(LookupError):
            await call_all([partial(calls_of(env).begin_step, 1) for env in envs], fail)
        assert all(isinstance(result, Outcome) for result in await pool.step_many(envs, [1] * 3))


async def test_a_reply_that_cannot_be_understood_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def nonsense(*_: Any) -> Outcome:
        raise TypeError("nonsense")

    async with EnvPool(workers=1) as pool:
        envs = [await pool.open(COUNTER) for _ in range(2)]
        await pool.reset_many(envs, seeds=[1, 2])
        monkeypatch.setattr(EnvCalls, "take_outcome", nonsense)
        with pytest.raises(TypeError, match="nonsense"), anyio.fail_after(PATIENCE):
            await pool.step_many(envs, [1, 1])


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
        assert first.info == {"seed": 1, "system_prompt": "Add numbers.", "expert": "add 9", "actions_left": 3}
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
        assert (last.truncated, last.terminated, "expert" in last.info) == (True, False, False)
        assert last.reward == sum(outcome.reward for outcome in expected(COUNTER, 1, [2, 1, 1])[2:])
        assert [outcome.info["actions_left"] for outcome in (invalid, raw, last)] == [3, 2, 0]


async def test_text_interface_can_be_left_off(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(TEXT, text=False) as env:
        assert same(await play(env, 1, ACTIONS), expected(COUNTER, 1, ACTIONS))
