"""Whatever an env or the system does, the others go on, and every call ends with an outcome or an attributed error."""

import hashlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec
import numpy as np
import pytest

from asyncrollout import (
    ClosedError,
    EnvCrashed,
    EnvDiverged,
    EnvError,
    EnvHandle,
    EnvPool,
    EnvResourceError,
    EnvSpec,
    EnvTimeout,
    Outcome,
    PoolError,
    RolloutError,
)
from asyncrollout.types import Recovery
from tests.scripts.processes import LIMIT, MARK, alive, kill_marked, marked, spoil_starts, until
from tests.waiting import all_tasks_blocked

uvloop_only = pytest.mark.asyncio(loop_factories=["uvloop"])

COUNTER = EnvSpec(name="counter", factory="tests.envs.tiny:Counter", kwargs={"limit": 10**9})
SNAPSHOT = EnvSpec(name="snapshot", factory="tests.envs.tiny:SnapshotCounter", kwargs={"limit": 10**9})
WAITING = EnvSpec(name="waiting", factory="tests.envs.tiny:Waiting", kwargs={"limit": 10**9}, runs="io")
PICTURES = EnvSpec(name="pictures", factory="tests.envs.tiny:BigArray", kwargs={"size": 1 << 17})
TEXT = EnvSpec(
    name="text", factory="tests.envs.tiny:Counter", kwargs={"limit": 10**9}, text="tests.envs.tiny:CounterText"
)
FAULTY = EnvSpec(name="faulty", factory="tests.envs.fault:Faulty", kwargs={"limit": 10**9})
FAULTY_IO = EnvSpec(name="faulty-io", factory="tests.envs.fault:Faulty", kwargs={"limit": 10**9}, runs="io")
FAULTY_PICTURE = EnvSpec(name="faulty-picture", factory="tests.envs.fault:FaultyPicture", kwargs={"limit": 10**9})
FAULTY_ASYNC = EnvSpec(name="faulty-async", factory="tests.envs.fault:AsyncFaulty", runs="io")
DICED = EnvSpec(name="diced", factory="tests.envs.tiny:Nondeterministic", kwargs={"limit": 10**9})
MIXED = (COUNTER, PICTURES, TEXT, WAITING, SNAPSHOT, FAULTY)

Transcript = list[Any]


def frozen(value: Any) -> Any:
    """Something that compares by content, arrays included."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.sha1(value.tobytes()).hexdigest()
    if isinstance(value, msgspec.Struct):
        return [frozen(item) for item in msgspec.structs.astuple(value)]
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    return value


def actions_of(spec: EnvSpec, seed: int) -> Iterator[Any]:
    """Endless, and the same for the same seed."""
    generator = random.Random(seed)
    while True:
        amount = generator.randint(1, 9)
        yield (f"add {amount}" if generator.random() < 0.9 else "what?") if spec.text else amount


async def open_reset(
    pool: EnvPool, spec: EnvSpec, seed: int = 5, *, worker: int | None = None, **kwargs: Any
) -> EnvHandle:
    env = await pool.open(spec, worker=worker, **kwargs)
    await env.reset(seed=seed)
    return env


async def play(env: EnvHandle, seed: int, actions: Sequence[Any]) -> Transcript:
    return [frozen(await env.reset(seed=seed)), *[frozen(await env.step(action)) for action in actions]]


async def undisturbed(spec: EnvSpec, seed: int, actions: Sequence[Any]) -> Transcript:
    """The transcript of a run where nothing happens; faults count by one."""
    async with EnvPool(backend="inline") as pool, pool.open(spec) as env:
        return await play(env, seed, [1 if isinstance(action, list) else action for action in actions])


async def check_sound(env: EnvHandle, spec: EnvSpec = FAULTY, seed: int = 9) -> None:
    """It plays an episode as if nothing had ever happened."""
    actions = list(islice(actions_of(spec, seed), 5))
    assert await play(env, seed, actions) == await undisturbed(spec, seed, actions)


@asynccontextmanager
async def neighbours(pool: EnvPool, *specs: EnvSpec, worker: int | None = None) -> AsyncIterator[None]:
    """Envs that play beside the body; in the end their transcripts are those of an undisturbed run."""
    transcripts: list[Transcript] = [[] for _ in specs]
    over = anyio.Event()

    async def live(number: int, spec: EnvSpec) -> None:
        transcript = transcripts[number]
        async with pool.open(spec, worker=worker) as env:
            transcript.append(frozen(await env.reset(seed=number)))
            last = 10**9
            for turn, action in enumerate(actions_of(spec, number)):
                transcript.append(frozen(await env.step(action)))
                if over.is_set():
                    last = min(last, turn + 3)
                if turn == last:
                    return
                await anyio.sleep(0.01)  # a pace, so that histories stay short

    async with anyio.create_task_group() as tasks:
        for number, spec in enumerate(specs):
            tasks.start_soon(live, number, spec)
        await until(lambda: all(len(transcript) > 3 for transcript in transcripts))
        yield
        over.set()
    for number, spec in enumerate(specs):
        actions = list(islice(actions_of(spec, number), len(transcripts[number]) - 1))
        assert transcripts[number] == await undisturbed(spec, number, actions)


async def error_of(call: Callable[..., Any], *args: Any, **kwargs: Any) -> RolloutError:
    """The error that a call must end with, in time."""
    with anyio.fail_after(LIMIT), pytest.raises(RolloutError) as caught:
        await call(*args, **kwargs)
    return caught.value


def pids(pool: EnvPool) -> list[int]:
    """Of workers that serve now."""
    return [worker.pid for worker in pool.stats().workers if worker.pid is not None and worker.rank >= 0]


async def kill_idle(pool: EnvPool, rank: int = 0) -> None:
    """SIGKILL a worker between two calls, and wait until the pool has seen it."""
    await until(lambda: pool.stats().workers[rank].pid is not None)
    before = pool.stats().workers[rank]
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    await until(lambda: pool.stats().workers[rank].restarts > before.restarts)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """Marks the processes of this test, so that orphans are found too; none may be left."""
    value = f"{os.getpid()} {request.node.name}"
    monkeypatch.setenv(MARK, value)
    yield value
    left = marked(value)
    kill_marked(value)
    assert not left


# Kills at seeded points of progress


class Chaos:
    """Players ask for leave before each step. The killer strikes after so many steps, then lets each get over it."""

    def __init__(self, players: int) -> None:
        self.done = [0] * players
        self.hit = [-1] * players
        self.allowed = 0
        self.target = 0
        self.strike: Callable[[], None] | None = None
        self._changed = anyio.Event()

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    async def ask(self, player: int) -> None:
        await self.wait(lambda: sum(self.done) < self.allowed or self.done[player] <= self.hit[player])

    def step_done(self, player: int) -> None:
        self.done[player] += 1
        if self.strike is not None and sum(self.done) >= self.target:
            strike, self.strike = self.strike, None
            strike()
            self.hit, self.allowed = list(self.done), 0
        self.wake()

    async def strike_at(self, target: int, strike: Callable[[], None]) -> None:
        self.target, self.allowed, self.strike = target, target + len(self.done), strike
        self.wake()
        await self.wait(
            lambda: self.strike is None and all(now > then for now, then in zip(self.done, self.hit, strict=True))
        )


async def play_under_fire(
    pool: EnvPool, specs: Sequence[EnvSpec], episodes: Sequence[Iterator[tuple[int, list[Any]]]], kills: int, seed: int
) -> list[tuple[list[tuple[int, list[Any]]], Transcript]]:
    """For each env what it played and what it saw; each plays on until the last worker is killed."""
    chaos = Chaos(len(specs))
    played: list[tuple[list[tuple[int, list[Any]]], Transcript]] = [([], []) for _ in specs]
    generator = random.Random(seed)
    killed: set[int] = set()
    over = False

    async def live(player: int) -> None:
        mine, transcript = played[player]
        async with pool.open(specs[player]) as env:
            for episode in episodes[player]:
                if over:
                    return
                mine.append(episode)
                transcript.append(frozen(await env.reset(seed=episode[0])))
                for action in episode[1]:
                    await chaos.ask(player)
                    transcript.append(frozen(await env.step(action)))
                    chaos.step_done(player)

    def victim(rank: int) -> int | None:
        (pid,) = [worker.pid for worker in pool.stats().workers if worker.rank == rank]
        return None if pid in killed else pid

    def shoot(rank: int) -> None:
        pid = victim(rank)
        assert pid is not None
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    with anyio.fail_after(60 + 3 * kills):
        async with anyio.create_task_group() as tasks:
            for player in range(len(specs)):
                tasks.start_soon(live, player)
            for _ in range(kills):
                rank = generator.randrange(len(pool.stats().workers))
                await until(partial(victim, rank))
                await chaos.strike_at(sum(chaos.done) + generator.randint(1, 3 * len(specs)), partial(shoot, rank))
            over, chaos.allowed = True, sys.maxsize
            chaos.wake()
    assert len(killed) == kills
    await until(lambda: pool.stats().restarts == kills)
    return played


def endless_episodes(spec: EnvSpec, seed: int) -> Iterator[tuple[int, list[Any]]]:
    generator = random.Random(seed)
    for number in count(1000 * seed):
        yield number, list(islice(actions_of(spec, number), generator.randint(5, 30)))


async def check_under_fire(recover: Recovery, workers: int, kills: int, seed: int) -> None:
    specs = [MIXED[number % len(MIXED)] for number in range(12)]
    episodes = [endless_episodes(spec, seed + player) for player, spec in enumerate(specs)]
    async with EnvPool(workers=workers, recover=recover, max_restarts=10**6) as pool:
        played = await play_under_fire(pool, specs, episodes, kills, seed)
        assert pool.stats().restored > 0
    for spec, (mine, transcript) in zip(specs, played, strict=True):
        clean: Transcript = []
        async with (
            EnvPool(backend="inline") as pool,
            pool.open(spec.with_kwargs(seconds=0) if spec is WAITING else spec) as env,
        ):
            for episode_seed, actions in mine:
                clean += await play(env, episode_seed, actions)
        assert transcript == clean


@uvloop_only
@pytest.mark.parametrize(("recover", "workers"), [("replay", 3), ("snapshot", 2)])
async def test_killed_workers_change_nothing(recover: Recovery, workers: int) -> None:
    await check_under_fire(recover, workers, kills=20, seed=workers)


@uvloop_only
@pytest.mark.slow
@pytest.mark.parametrize(("recover", "workers"), [("replay", 3), ("snapshot", 2)])
async def test_a_thousand_killed_workers_change_nothing(recover: Recovery, workers: int) -> None:
    await check_under_fire(recover, workers, kills=500, seed=17 + workers)


@uvloop_only
async def test_both_workers_killed_at_once() -> None:
    async with EnvPool(workers=2) as pool, neighbours(pool, *MIXED):
        for _ in range(2):
            await until(lambda: len(pids(pool)) == 2)
            before = pool.stats().restarts
            for pid in pids(pool):
                os.kill(pid, signal.SIGKILL)
            await until(lambda before=before: pool.stats().restarts == before + 2)  # type: ignore[misc]


@uvloop_only
async def test_a_call_made_in_an_episode_is_not_repeated_on_top_of_its_own_snapshot() -> None:
    async with EnvPool(workers=1, recover="snapshot") as pool:
        env = await open_reset(pool, SNAPSHOT)
        await env.step(1)
        before = await env.call("add", 100)
        await kill_idle(pool)
        assert (await env.step(0)).observation.rstrip(".") == f"total {before}"


# Envs that kill their worker

CRASHES: dict[str, list[Any]] = {"exit code 3": ["exit", 3], "SIGSEGV": ["segfault"], "SIGKILL": ["signal", 9]}


async def test_an_env_that_always_kills_its_worker_fails_alone() -> None:
    """After two deaths, or five by a signal that anybody may have sent."""
    async with EnvPool(workers=2) as pool, neighbours(pool, COUNTER, PICTURES, TEXT, SNAPSHOT):
        for number, (cause, fault) in enumerate(CRASHES.items()):
            async with pool.open(FAULTY) as env:
                await play(env, 70 + number, [1, 2])
                restarts = pool.stats().restarts
                error = await error_of(env.step, fault)
                assert type(error) is EnvCrashed
                assert (error.env, error.seed, error.turn) == ("faulty", 70 + number, 2)
                assert error.worker in (0, 1)
                for begun in ("'faulty'", f"seed {70 + number}", "turn 2", cause):
                    assert begun in str(error)
                deaths = 5 if cause == "SIGKILL" else 2
                await until(lambda wanted=restarts + deaths: pool.stats().restarts == wanted)  # type: ignore[misc]
                if cause == "SIGSEGV":
                    assert "Segmentation fault" in "".join(error.__notes__)
                await check_sound(env)


@uvloop_only
async def test_a_crash_that_happens_once_is_not_seen(tmp_path: Path) -> None:
    async with EnvPool(workers=2) as pool, neighbours(pool, *MIXED), pool.open(FAULTY) as env:
        actions = [1, *(["once", str(tmp_path / cause), *fault] for cause, fault in CRASHES.items()), 2]
        with anyio.fail_after(LIMIT):
            assert await play(env, 4, actions) == await undisturbed(FAULTY, 4, actions)
        assert pool.stats().restarts == len(CRASHES)


@uvloop_only
@pytest.mark.slow
async def test_a_hundred_envs_that_always_kill_their_worker_fail_alone() -> None:
    generator = random.Random(3)
    deaths = 0
    async with EnvPool(workers=3) as pool, neighbours(pool, COUNTER, PICTURES, TEXT, SNAPSHOT):
        for number in range(100):
            async with pool.open(FAULTY) as env:
                await env.reset(seed=number)
                cause, fault = generator.choice(list(CRASHES.items()))
                error = await error_of(env.step, fault)
                assert type(error) is EnvCrashed
                assert error.seed == number
                assert cause in str(error)
                deaths += 5 if cause == "SIGKILL" else 2
        await until(lambda: pool.stats().restarts == deaths)


async def test_a_signal_without_a_name_is_reported_by_its_number() -> None:
    number = signal.SIGRTMIN + 6
    async with EnvPool(workers=1) as pool, pool.open(FAULTY) as env:
        await env.reset(seed=5)
        error = await error_of(env.step, ["signal", number])
        assert type(error) is EnvCrashed
        assert str(number) in str(error)
        await check_sound(env)


async def step_held(env: EnvHandle, begun: Path, gate: Path) -> Outcome:
    return await env.step(["tell", str(begun), "wait", str(gate)])


@uvloop_only
async def test_an_io_env_that_crashes_leaves_the_others_their_steps(tmp_path: Path) -> None:
    """All of them are at work when the worker dies, so all are suspects, and all but one prove innocent."""
    gate = tmp_path / "gate"
    outcomes: dict[int, Outcome] = {}
    async with EnvPool(workers=1) as pool:
        others = [await open_reset(pool, FAULTY_IO, seed) for seed in range(4)]
        crasher = await open_reset(pool, FAULTY_IO, 50)

        async def hold(number: int) -> None:
            outcomes[number] = await step_held(others[number], tmp_path / str(number), gate)

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(hold, number)
                await until(lambda: all((tmp_path / str(number)).exists() for number in range(4)))
                tasks.start_soon(_open_gate_after, pool, 1, gate)
                error = await error_of(crasher.step, ["exit", 3])
        assert type(error) is EnvCrashed
        assert "exit code 3" in str(error)
        for number, outcome in outcomes.items():
            assert frozen(outcome) == (await undisturbed(FAULTY_IO, number, [1]))[-1]


async def _open_gate_after(pool: EnvPool, restarts: int, gate: Path) -> None:
    await until(lambda: pool.stats().restarts >= restarts)
    gate.touch()


@uvloop_only
async def test_an_io_env_is_not_blamed_for_two_deaths_of_other_causes(tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    async with EnvPool(workers=1) as pool:
        innocent = await open_reset(pool, FAULTY_IO, 5)
        crashers = [await open_reset(pool, FAULTY_IO, seed) for seed in (6, 7)]
        outcomes: list[Outcome] = []

        async def hold() -> None:
            outcomes.append(await step_held(innocent, begun, gate))

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hold)
                for number, crasher in enumerate(crashers):
                    await until(begun.exists)
                    begun.unlink()
                    tasks.start_soon(crasher.step, ["once", str(tmp_path / f"crash {number}"), "exit", 3])
                    await until(lambda number=number: pool.stats().restarts > number)  # type: ignore[misc]
                gate.touch()
        assert frozen(outcomes[0]) == (await undisturbed(FAULTY_IO, 5, [1]))[-1]


# Hangs


@uvloop_only
async def test_a_hang_in_any_place_is_a_timeout_and_hurts_nobody_else() -> None:
    """Four hangs at once on four workers, twice; the neighbours are moved away in time."""
    async with EnvPool(workers=4, step_timeout=2, reset_timeout=2) as pool:
        errors: dict[str, RolloutError] = {}

        async def expect(place: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            errors[place] = await error_of(call, *args, **kwargs)

        async with neighbours(pool, *MIXED, COUNTER, TEXT):
            before = pids(pool)
            blocks, spins = [await open_reset(pool, FAULTY, 30 + rank, worker=rank) for rank in (0, 1)]
            draws = await open_reset(pool, FAULTY, 32, worker=2, render=["block"])
            calls = await open_reset(pool, FAULTY, 33, worker=3)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(expect, "block", blocks.step, ["block"])
                tasks.start_soon(expect, "spin", spins.step, ["spin"])
                tasks.start_soon(expect, "render", draws.render)
                tasks.start_soon(expect, "call", calls.call, "commit", "block")
            assert not any(alive(pid) for pid in before)
            for env in (blocks, spins, calls):
                await check_sound(env)

            await until(lambda: len(pids(pool)) == 4)
            stops = await open_reset(pool, FAULTY, 34, worker=2, close=["block"])
            starts = await pool.open(FAULTY, worker=0, reset=["spin"])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(expect, "reset", starts.reset)
                tasks.start_soon(expect, "open", pool.open(FAULTY, worker=1, build=["block"]).__aenter__)
                tasks.start_soon(stops.close)  # has a limit of its own, and nothing to tell
            await until(lambda: pool.stats().restarts == 7)
        assert set(errors) == {"block", "spin", "render", "call", "reset", "open"}
        for error in errors.values():
            assert type(error) is EnvTimeout
            assert error.env == "faulty"
        for rank, place in enumerate(("block", "spin", "render", "call")):
            assert (errors[place].seed, errors[place].turn, errors[place].worker) == (30 + rank, 0, rank)
            assert f"seed {30 + rank}, turn 0" in str(errors[place])


@uvloop_only
async def test_neighbours_behind_a_hang_are_moved_before_it_is_killed() -> None:
    async with EnvPool(workers=2, step_timeout=4) as pool:
        hanging = await open_reset(pool, FAULTY, 1, worker=0)
        specs = (COUNTER, PICTURES, SNAPSHOT, TEXT)
        queued = [await open_reset(pool, spec, seed) for seed, spec in enumerate(specs)]
        ends: list[str] = []

        async def hang() -> None:
            assert type(await error_of(hanging.step, ["spin"])) is EnvTimeout
            ends.append("hung")

        async def behind(seed: int) -> None:
            action = next(actions_of(specs[seed], 1))
            outcome = frozen(await queued[seed].step(action))
            ends.append("moved")
            assert outcome == (await undisturbed(specs[seed], seed, [action]))[-1]

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hang)
                await anyio.lowlevel.checkpoint()  # the hanging one comes first in the frame
                for seed in range(4):
                    tasks.start_soon(behind, seed)
        assert ends == ["moved"] * 4 + ["hung"]
        assert pool.stats().moved >= 1
        assert pool.stats().restarts == 1
        await check_sound(hanging)


@uvloop_only
async def test_a_step_that_was_moved_away_and_would_hang_where_it_was_is_found_there_too(tmp_path: Path) -> None:
    async with EnvPool(workers=2, step_timeout=2, reset_timeout=2) as pool:
        pinned = await open_reset(pool, FAULTY, 1, worker=0)
        others = [await open_reset(pool, FAULTY, seed) for seed in range(4)]
        queued = next(env for env in others if env.worker == 0)

        async def hang() -> None:
            assert type(await error_of(queued.step, ["block"])) is EnvTimeout

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pinned.step, ["burn", 1.6])
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(hang)
            await pinned.step(1)
        await check_sound(pinned)


async def test_an_async_env_that_hangs_times_out() -> None:
    async with EnvPool(workers=1, step_timeout=0.5) as pool, neighbours(pool, COUNTER):
        env = await open_reset(pool, FAULTY_ASYNC, 6)
        error = await error_of(env.step, "hang")
        assert type(error) is EnvTimeout
        assert (error.env, error.seed, error.turn) == ("faulty-async", 6, 0)
        await check_sound(env, FAULTY_ASYNC)
        own = await error_of(env.step, "timeout")
        assert type(own) is EnvError  # its own TimeoutError is not ours
        assert own.remote_type == "TimeoutError"


async def test_an_async_env_is_closed_before_it_is_made_anew_after_a_failure() -> None:
    async with EnvPool(workers=1) as pool, pool.open(FAULTY_ASYNC) as env:
        await env.reset(seed=1)
        await error_of(env.step, "raise")
        await check_sound(env, FAULTY_ASYNC)  # pytest turns a coroutine that was never awaited into an error


@uvloop_only
@pytest.mark.parametrize("runs", ["cpu", "io"])
async def test_a_close_that_hangs_after_a_cancelled_step_does_not_hold_up_the_worker(runs: Any, tmp_path: Path) -> None:
    spec = replace(FAULTY, runs=runs)
    async with EnvPool(workers=1, step_timeout=1, reset_timeout=1) as pool:
        neighbour = await open_reset(pool, FAULTY, 3)
        hanging = await open_reset(pool, spec, 4, close=["block"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step_held, hanging, tmp_path / "begun", tmp_path / "gate")
            await until((tmp_path / "begun").exists)
            tasks.cancel_scope.cancel()
        await hanging.close()
        (tmp_path / "gate").touch()
        with anyio.fail_after(LIMIT):
            await check_sound(neighbour)


# Errors as data

RAISED = {
    "plain": "ValueError",
    "odd": "OddError",
    "bad text": "BadTextError",
    "exiting text": "ExitingTextError",
    "sys.exit": "SystemExit",
    "interrupt": "KeyboardInterrupt",
    "huge": "ValueError",
    "surrogate": "ValueError",
    "recursion": "RecursionError",
    "group": "ExceptionGroup",
    "memory": "MemoryError",
}


@uvloop_only
@pytest.mark.parametrize("runs", ["cpu", "io"])
async def test_whatever_an_env_raises_is_an_error_of_that_env(runs: Any) -> None:
    spec = replace(FAULTY, runs=runs)
    async with EnvPool(workers=1) as pool, neighbours(pool, COUNTER, WAITING):
        (pid,) = pids(pool)
        env = await open_reset(pool, spec)
        for kind, name in RAISED.items():
            await play(env, 8, [1, 1])
            error = await error_of(env.step, ["raise", kind])
            assert type(error) is (EnvResourceError if kind == "memory" else EnvError), kind
            assert isinstance(error, EnvError)
            assert (error.env, error.seed, error.turn, error.worker) == ("faulty", 8, 2, 0)
            assert error.remote_type == name
            assert "in _raise" in (error.remote_traceback or ""), kind
            assert len(str(error)) < 10_000
            assert pids(pool) == [pid], kind
            await check_sound(env, spec)


@uvloop_only
async def test_setup_calls_hold_after_a_failure() -> None:
    """What was set up before the first reset is still so when the env had to be made anew."""
    async with EnvPool(workers=1) as pool, pool.open(FAULTY) as env:
        await env.call("set_bonus", 1000.0)
        (await play(env, 3, [1]))
        usual = env.outcome.reward
        assert usual > 1000
        await error_of(env.step, ["raise", "plain"])
        await play(env, 3, [1])
        assert env.outcome.reward == usual


@uvloop_only
async def test_what_cannot_be_returned_is_an_error_of_that_env() -> None:
    spec = EnvSpec(name="returning", factory="tests.envs.fault:Returning")
    async with EnvPool(workers=1) as pool, neighbours(pool, COUNTER):
        (pid,) = pids(pool)
        env = await open_reset(pool, spec)
        for kind in ("lock", "raise", "short", "reward"):
            await env.reset(seed=2)
            error = await error_of(env.step, kind)
            assert isinstance(error, EnvError)
            assert error.env == "returning"
        assert pids(pool) == [pid]


# Memory


@uvloop_only
async def test_a_hoarder_fails_and_its_neighbours_are_restored() -> None:
    async with EnvPool(workers=1, memory_limit=300 << 20) as pool, neighbours(pool, COUNTER, TEXT, PICTURES):
        env = await open_reset(pool, FAULTY, 12)
        error = await error_of(env.step, ["hoard", 400, ["block"]])
        assert type(error) is EnvResourceError
        assert (error.env, error.seed, error.turn) == ("faulty", 12, 0)
        assert "memory" in str(error)
        await check_sound(env)


@uvloop_only
async def test_an_io_hoarder_is_distinguished_from_envs_that_wait(tmp_path: Path) -> None:
    """The one that waits longest is not the one to blame."""
    gate = tmp_path / "gate"
    async with EnvPool(workers=1, memory_limit=300 << 20) as pool:
        waiting = [await open_reset(pool, FAULTY_IO, seed) for seed in range(2)]
        hoarder = await open_reset(pool, FAULTY_IO, 12)
        outcomes: list[Any] = []

        async def wait(number: int) -> None:
            outcomes.append(frozen(await step_held(waiting[number], tmp_path / str(number), gate)))

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                for number in range(2):
                    tasks.start_soon(wait, number)
                await until(lambda: all((tmp_path / str(number)).exists() for number in range(2)))
                tasks.start_soon(_open_gate_after, pool, 1, gate)
                error = await error_of(hoarder.step, ["hoard", 400, ["block"]])
        assert type(error) is EnvResourceError
        assert outcomes == [(await undisturbed(FAULTY_IO, seed, [1]))[-1] for seed in range(2)]


@uvloop_only
async def test_who_runs_after_a_hoarder_is_not_blamed_for_the_hoard() -> None:
    async with EnvPool(workers=1, memory_limit=300 << 20, max_restarts=3) as pool:
        hoarder = await open_reset(pool, FAULTY, 1)
        neighbour = await open_reset(pool, FAULTY, 2)
        outcomes = []
        ends: list[Outcome | EnvResourceError] = []

        async def hoard() -> None:
            try:
                ends.append(await hoarder.step(["hoard", 400]))
            except EnvResourceError as error:
                ends.append(error)

        async def work() -> None:
            outcomes.append(frozen(await neighbour.step(["burn", 1.0])))

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hoard)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(work)
        assert outcomes == [(await undisturbed(FAULTY, 2, [1]))[-1]]
        assert len(ends) == 1


# Noise


async def check_noise(steps: int, log_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    actions: list[Any] = [["child talks"] if n % 50 == 0 else ["talk", 1] for n in range(steps // 2)]
    async with EnvPool(workers=2, log_dir=log_dir) as pool:
        before = pids(pool)
        transcripts: dict[str, Transcript] = {}

        async def live(spec: EnvSpec) -> None:
            async with pool.open(spec) as env:
                transcripts[spec.name] = await play(env, 3, actions)

        with anyio.fail_after(LIMIT + steps / 20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(live, FAULTY)
                tasks.start_soon(live, FAULTY_IO)
        assert pids(pool) == before
    clean = await undisturbed(FAULTY, 3, actions)
    assert transcripts == {"faulty": clean, "faulty-io": clean}
    text = "".join(path.read_text() for path in log_dir.iterdir())
    for said in ("said 0", "raw out", "raw err", "said in anger", "child out", "child err"):
        assert said in text
    shown = capfd.readouterr()
    assert "said" not in shown.out + shown.err


@uvloop_only
async def test_noise_on_the_standard_streams_breaks_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    await check_noise(1_000, tmp_path, capfd)


@uvloop_only
@pytest.mark.slow
async def test_much_noise_breaks_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    await check_noise(10_000, tmp_path, capfd)


@uvloop_only
async def test_a_log_directory_is_made_where_it_is_missing(tmp_path: Path) -> None:
    async with EnvPool(workers=1, log_dir=tmp_path / "not" / "yet") as pool, pool.open(FAULTY) as env:
        await play(env, 1, [["talk", 1]])
    assert "said 0" in (tmp_path / "not" / "yet" / "worker-0.log").read_text()


# Divergence


@uvloop_only
async def test_an_episode_that_cannot_be_repeated_fails_and_is_never_silently_another(tmp_path: Path) -> None:
    diced_reset = EnvSpec(name="diced reset", factory="tests.envs.fault:DicedReset")
    raising = EnvSpec(
        name="raising", factory="tests.envs.fault:RaisesOnReplay", kwargs={"trace": str(tmp_path / "trace")}
    )
    async with EnvPool(workers=1) as pool:
        for spec in (DICED, diced_reset, raising):
            async with pool.open(spec) as env:
                await play(env, 14, [1, 2, 3])
                await kill_idle(pool)
                error = await error_of(env.step, 1)
                assert type(error) is EnvDiverged
                assert (error.env, error.seed, error.turn) == (spec.name, 14, 3)
                assert "seed 14, turn 3" in str(error)
                await env.reset(seed=1)
                if spec is not raising:
                    await env.step(1)


@uvloop_only
async def test_a_fork_that_cannot_be_the_same_fails() -> None:
    async with EnvPool(workers=2) as pool, pool.open(DICED) as env:
        await play(env, 14, [1, 2, 3])
        error = await error_of(env.fork)
        assert type(error) is EnvDiverged
        assert error.env == "diced"
        assert pool.stats().envs == 1
        await env.step(1)  # the original is as it was


# Where nothing is restored


async def test_without_recovery_a_death_is_an_error_at_once() -> None:
    async with EnvPool(workers=2, recover="none") as pool:
        here, there = [await open_reset(pool, COUNTER, 20 + rank, worker=rank) for rank in (0, 1)]
        await here.step(1)
        await kill_idle(pool, 0)
        error = await error_of(here.step, 1)
        assert type(error) is EnvCrashed
        assert (error.env, error.seed, error.turn, error.worker) == ("counter", 20, 1, 0)
        assert "SIGKILL" in str(error)
        assert pool.stats().restored == 0
        await there.step(1)
        await check_sound(here, COUNTER)


@uvloop_only
async def test_an_env_with_outside_effects_is_not_replayed(tmp_path: Path) -> None:
    trace = str(tmp_path / "effects")
    spec = EnvSpec(name="outside", factory="tests.envs.fault:Faulty", replayable=False)
    async with EnvPool(workers=1) as pool, pool.open(spec) as env:
        await play(env, 20, [["nth", 2, trace, "raise", "plain"]])  # would raise if it were played a second time
        await kill_idle(pool)
        error = await error_of(env.step, 1)
        assert type(error) is EnvCrashed
        assert (error.env, error.seed, error.turn) == ("outside", 20, 1)
        assert "not replayable" in str(error)
        assert [path.name for path in tmp_path.iterdir()] == ["effects.1"]
        await check_sound(env, spec)


@uvloop_only
async def test_crashes_of_one_episode_are_bounded(tmp_path: Path) -> None:
    """Of an env that crashes once at each step; its neighbour pays for all of them, and never fails."""
    async with EnvPool(workers=1, max_restarts=2) as pool, pool.open(FAULTY) as env:
        neighbour = await open_reset(pool, COUNTER)
        for episode in range(2):  # the count starts anew with each episode
            await env.reset(seed=7)
            crashes = [["once", str(tmp_path / f"{episode} {turn}"), "exit", 3] for turn in range(3)]
            for crash in crashes[:2]:
                assert (await env.step(crash)).info
                assert (await neighbour.step(1)).info
            error = await error_of(env.step, crashes[2])
            assert type(error) is EnvCrashed
            assert (error.env, error.seed, error.turn) == ("faulty", 7, 2)
            assert "2 restarts" in str(error)
            assert (await neighbour.step(1)).info
        await check_sound(env, FAULTY)


# Deaths at awkward moments


async def kill_where_told(begun: Path) -> None:
    """Kill the worker that says where it is."""
    await until(lambda: begun.exists() and begun.read_text())
    os.kill(int(begun.read_text()), signal.SIGKILL)


@uvloop_only
async def test_a_worker_killed_during_open_reset_or_replay_is_not_noticed(tmp_path: Path) -> None:
    def held(place: str, times: int = 1) -> list[Any]:
        return ["nth", times, str(tmp_path / f"{place} count"), "tell", str(tmp_path / place), "block"]

    async with EnvPool(workers=2) as pool, neighbours(pool, COUNTER, TEXT):
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                for place in ("open", "reset", "replay"):
                    tasks.start_soon(kill_where_told, tmp_path / place)
                async with pool.open(FAULTY, build=held("open")) as env:
                    await check_sound(env)
                async with pool.open(FAULTY, reset=held("reset")) as env:
                    await check_sound(env)
                async with pool.open(FAULTY) as env:
                    actions = [1, held("replay", times=2), 3]
                    transcript = await play(env, 6, actions)
                    await until(lambda: len(pids(pool)) == 2)
                    for pid in pids(pool):
                        os.kill(pid, signal.SIGKILL)
                    transcript.append(frozen(await env.step(4)))
        assert transcript == await undisturbed(FAULTY, 6, [*actions, 4])
        assert pool.stats().restarts >= 5


async def test_a_worker_that_cannot_start_again_is_an_error_for_its_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    spoiled = tmp_path / "spoiled"
    code = f"import os\nif os.path.exists({str(spoiled)!r}): os._exit(7)"
    monkeypatch.setenv("PYTHONPATH", spoil_starts(tmp_path, code))
    async with EnvPool(workers=2) as pool:
        envs = [await open_reset(pool, COUNTER, seed) for seed in range(4)]
        pinned = await open_reset(pool, COUNTER, 5, worker=0)
        spoiled.touch()
        os.kill(pids(pool)[0], signal.SIGKILL)
        assert type(await error_of(pinned.step, 1)) is PoolError
        for env in envs:
            await env.step(1)  # the other worker has them all
            assert env.worker == 1
        os.kill(pids(pool)[0], signal.SIGKILL)
        results = await pool.step_many(envs, [1] * 4)
        assert [type(result) for result in results] == [PoolError] * 4
        error = await error_of(pool.open(COUNTER).__aenter__)
        assert type(error) is PoolError


@pytest.mark.parametrize("missing", ["executable", "directory"])
async def test_a_start_that_the_system_refuses_is_an_error_for_its_callers(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The interpreter is gone, or the log's directory is: the pool's own task must not die of it."""
    logs = tmp_path / "logs"
    logs.mkdir()
    async with EnvPool(workers=1, log_dir=logs) as pool:
        env = await open_reset(pool, COUNTER)
        if missing == "executable":
            monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
        else:
            for path in logs.iterdir():
                path.unlink()
            logs.rmdir()
            logs.write_text("not a directory")
        os.kill(pids(pool)[0], signal.SIGKILL)
        assert type(await error_of(env.step, 1)) is PoolError


@uvloop_only
async def test_the_last_files_of_a_dead_worker_do_not_take_the_pool_with_them() -> None:
    """A worker that dies by itself leaves its sentinel, which clears up while the pool starts the next worker."""
    async with EnvPool(workers=1, max_restarts=100) as pool, pool.open(FAULTY) as env:
        for number in range(5):
            await env.reset(seed=number)
            assert type(await error_of(env.step, ["exit", 3])) is EnvCrashed
        await check_sound(env)


# Cancellation


@uvloop_only
async def test_cancelled_steps_leave_a_pool_that_serves() -> None:
    generator = random.Random(11)
    async with EnvPool(workers=2) as pool:
        specs = [MIXED[number % len(MIXED)] for number in range(32)]
        envs = [await pool.open(spec) for spec in specs]
        steps = 0
        strike = 0

        async def live(number: int, tasks: anyio.abc.TaskGroup) -> None:
            nonlocal steps
            await envs[number].reset(seed=number)
            for action in actions_of(specs[number], number):
                await envs[number].step(action)
                steps += 1
                if steps >= strike:
                    tasks.cancel_scope.cancel()

        with anyio.fail_after(2 * LIMIT):
            for _ in range(20):
                strike = steps + generator.randint(1, 300)
                async with anyio.create_task_group() as tasks:
                    for number in range(32):
                        tasks.start_soon(live, number, tasks)
            for env, spec in zip(envs, specs, strict=True):
                await check_sound(env, spec)
        assert pool.stats().restarts == 0
        assert pool.stats().queued == 0


async def test_a_reply_that_nobody_awaits_any_more_harms_nobody(tmp_path: Path) -> None:
    """An env with large observations is cancelled within a step and closed; then its reply arrives."""
    async with EnvPool(workers=1) as pool:
        neighbour = await open_reset(pool, FAULTY, 3)
        env = await open_reset(pool, FAULTY_PICTURE, 4)
        await env.step(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step_held, env, tmp_path / "begun", tmp_path / "gate")
            await until((tmp_path / "begun").exists)
            tasks.cancel_scope.cancel()
        await env.close()
        (tmp_path / "gate").touch()
        for _ in range(3):
            await check_sound(neighbour)
        assert pool.stats().restarts == 0


@uvloop_only
async def test_a_reply_of_an_env_that_was_moved_away_harms_nobody() -> None:
    async with EnvPool(workers=2, step_timeout=2) as pool:
        pinned = await open_reset(pool, FAULTY, 1, worker=0)
        others = [await open_reset(pool, FAULTY_PICTURE, seed) for seed in range(4)]
        for env in others:
            await env.step(1)
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pinned.step, ["burn", 1.5])
                await anyio.lowlevel.checkpoint()
                for env in others:
                    tasks.start_soon(env.step, 1)
        assert pool.stats().moved >= 1
        await check_sound(pinned)
        for env in others:
            await check_sound(env, FAULTY_PICTURE)
        assert pool.stats().restarts == 0


@uvloop_only
@pytest.mark.parametrize("runs", ["cpu", "io"])
async def test_an_env_reset_after_a_cancelled_step_has_no_memory_of_it(runs: Any, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    spec = replace(FAULTY, runs=runs)
    async with EnvPool(workers=1) as pool:
        env = await open_reset(pool, spec, 4)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step_held, env, begun, gate)
            await until(begun.exists)
            tasks.cancel_scope.cancel()
        ready = anyio.Event()
        transcript: Transcript = []

        async def start_anew() -> None:
            transcript.extend(await play(env, 6, [1]))
            ready.set()

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(start_anew)
                with anyio.move_on_after(0.5):  # it may have to wait for the old step
                    await ready.wait()
                gate.touch()
            transcript += [frozen(await env.step(action)) for action in (2, 3)]
        assert transcript == await undisturbed(spec, 6, [1, 2, 3])
        assert pool.stats().restarts == 0


@uvloop_only
async def test_an_io_env_that_fails_often_is_there_after_each_reset() -> None:
    async with EnvPool(workers=1) as pool, pool.open(FAULTY_IO) as env:
        for seed in range(100):
            await play(env, seed, [1])
            assert type(await error_of(env.step, ["raise", "plain"])) is EnvError
        await check_sound(env, FAULTY_IO)


async def test_a_cancelled_open_leaves_no_env(tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    async with EnvPool(workers=1) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.open(FAULTY, build=["tell", str(begun), "wait", str(gate)]).__aenter__)
            await until(begun.exists)
            tasks.cancel_scope.cancel()
        gate.touch()
        assert pool.stats().envs == 0
        assert pool.stats().workers[0].envs == 0
        async with pool.open(COUNTER) as env:
            await check_sound(env, COUNTER)


@uvloop_only
async def test_cancelling_while_the_pool_starts_leaves_nothing(mark: str) -> None:
    for checkpoints in (0, 1, 10, 100):
        with anyio.fail_after(LIMIT), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def cancel(checkpoints: int = checkpoints, scope: anyio.CancelScope = scope) -> None:
                    for _ in range(checkpoints):
                        await anyio.sleep(0.001)
                    scope.cancel()

                tasks.start_soon(cancel)
                async with EnvPool(workers=2):
                    await anyio.sleep_forever()
        assert scope.cancelled_caught
        await until(lambda: not marked(mark))


async def test_cancelling_the_body_closes_the_pool(mark: str) -> None:
    with anyio.CancelScope() as scope:
        async with EnvPool(workers=2) as pool:
            env = await open_reset(pool, COUNTER)
            await env.step(1)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not marked(mark)
    with pytest.raises(ClosedError):
        await env.step(1)


@uvloop_only
@pytest.mark.usefixtures("short_grace")
async def test_a_pool_whose_cancelled_step_hangs_still_ends(tmp_path: Path, mark: str) -> None:
    with anyio.fail_after(LIMIT):
        async with EnvPool(workers=2) as pool:
            env = await open_reset(pool, FAULTY)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(env.step, ["tell", str(tmp_path / "begun"), "spin"])
                await until((tmp_path / "begun").exists)
                tasks.cancel_scope.cancel()
    assert not marked(mark)


async def test_an_error_of_the_body_passes_as_it_is(mark: str) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 (the block is what is tested)
        async with EnvPool(workers=1) as pool:
            await open_reset(pool, COUNTER)
            _ = 1 / 0
    assert not marked(mark)


async def test_who_still_waits_when_the_pool_ends_is_reported(tmp_path: Path) -> None:
    """In a call, for a worker that is being replaced, and for the end of a quarantine."""
    errors: list[RolloutError] = []

    async def expect(call: Callable[..., Any], *args: Any) -> None:
        errors.append(await error_of(call, *args))

    async with anyio.create_task_group() as tasks:
        async with EnvPool(workers=1) as pool:
            held = await open_reset(pool, FAULTY_IO)
            other = await open_reset(pool, COUNTER)
            tasks.start_soon(expect, held.step, ["tell", str(tmp_path / "begun"), "block"])
            await until((tmp_path / "begun").exists)
        async with EnvPool(workers=1) as pool:
            other = await open_reset(pool, COUNTER)
            os.kill(pids(pool)[0], signal.SIGKILL)
            await until(lambda: not pids(pool))
            tasks.start_soon(expect, other.step, 1)
            await all_tasks_blocked()
    assert [type(error) for error in errors] == [ClosedError, ClosedError]


async def test_two_pools_at_once() -> None:
    async with EnvPool(workers=1) as one, EnvPool(workers=1) as two:
        async with neighbours(one, *MIXED), neighbours(two, *MIXED):
            await kill_idle(one)
            await kill_idle(two)
        assert one.stats().restarts == two.stats().restarts == 1


# Envs that change their process


@uvloop_only
async def test_an_env_that_closes_all_descriptors_fails_alone() -> None:
    for first in (0, 3):
        async with EnvPool(workers=1) as pool, neighbours(pool, COUNTER, PICTURES):
            env = await open_reset(pool, FAULTY)
            assert type(await error_of(env.step, ["close fds", first])) is EnvCrashed
            await check_sound(env)


async def test_a_worker_whose_env_forked_can_die_and_leaves_no_child(tmp_path: Path, mark: str) -> None:
    """A forked child has the worker's descriptors, so their closing does not tell of the worker's death."""
    child = tmp_path / "child"
    async with EnvPool(workers=1) as pool:
        env = await open_reset(pool, FAULTY)
        await env.step(["fork", str(child)])
        first = int(child.read_text())
        os.kill(pids(pool)[0], signal.SIGKILL)
        with anyio.fail_after(LIMIT):
            await env.step(1)  # forks again, in its replay
        await until(lambda: not alive(first))
        second = int(child.read_text())
        assert alive(second)
    await until(lambda: not alive(second))


@uvloop_only
async def test_threads_directories_and_signal_handlers_of_an_env_disturb_nobody(tmp_path: Path) -> None:
    here = Path.cwd()
    async with EnvPool(workers=1, log_dir=tmp_path) as pool:
        (pid,) = pids(pool)
        async with neighbours(pool, *MIXED), pool.open(FAULTY) as env:
            actions: list[Any] = [["threads", 8], ["chdir", "/"], ["handlers"], ["talk", 1], 1, 2, 3]
            with anyio.fail_after(LIMIT):
                assert await play(env, 2, actions) == await undisturbed(FAULTY, 2, actions)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                os.kill(pid, number)
            await check_sound(env)
        assert pids(pool) == [pid]
        await kill_idle(pool)
        async with pool.open(PICTURES) as env:
            await check_sound(env, PICTURES)
    assert Path.cwd() == here
    assert "said 0" in (tmp_path / "worker-0.log").read_text()
