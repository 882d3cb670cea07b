"""Who fails when workers die or stand still: the env that does it, and nobody who was merely there."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest

from asyncrollout import EnvCrashed, EnvPool, EnvSpec, EnvTimeout, Outcome
from asyncrollout.pool import blame, quarantine
from asyncrollout.pool.blame import Acquittals, Blame
from asyncrollout.pool.hosts import DurationWindow, HostLost, PoolLimits
from asyncrollout.pool.process import watchdog
from asyncrollout.pool.process.observed_time import CpuUsage, ObservedTime
from asyncrollout.pool.wire.messages import Op
from tests.playing import pid_of
from tests.scripts.processes import LIMIT, ROOT, spoil_starts, until
from tests.test_faults import (
    COUNTER,
    FAULTY,
    FAULTY_IO,
    MIXED,
    WAITING,
    Transcript,
    actions_of,
    check_sound,
    error_of,
    frozen,
    neighbours,
    open_reset,
    pids,
    play,
    undisturbed,
)
from tests.waiting import freeze

uvloop_only = pytest.mark.asyncio(loop_factories=["uvloop"])

BYSTANDER = HostLost("crash")
SHARED = HostLost("crash", suspects=3)
CRASH = HostLost("crash", suspects=1)


def kill(strays: int = 0, suspects: int = 1) -> HostLost:
    """While so many kills of idle workers were counted in the pool."""
    return HostLost("crash", suspects=suspects, from_outside=True, idle_kills=strays)


# What counts


def test_a_crash_counts_at_the_second_time_and_a_kill_at_the_fifth() -> None:
    mine = Blame(10, Acquittals())
    assert not mine.add(CRASH, Op.STEP)
    assert mine.add(CRASH, Op.STEP) == "2 times at the same point"
    mine = Blame(10, Acquittals())
    assert not any(mine.add(kill(), Op.STEP) for _ in range(4))
    assert mine.add(kill(), Op.STEP) == "5 times at the same point"


def test_a_completed_call_clears_an_env_of_all_but_its_crashes() -> None:
    mine = Blame(3, Acquittals())
    for _ in range(20):
        assert not any(mine.add(kill(), Op.STEP) for _ in range(4))
        mine.clear()
    for _ in range(3):
        assert not mine.add(CRASH, Op.STEP)
        mine.clear()
    assert mine.add(CRASH, Op.STEP) == "after 3 restarts in one episode"


def test_deaths_in_a_replay_are_not_those_at_a_step() -> None:
    mine = Blame(10, Acquittals())
    for at in (Op.STEP, Op.REPLAY, Op.OPEN):
        assert not mine.add(CRASH, at)
    assert mine.add(CRASH, Op.REPLAY)
    mine = Blame(10, Acquittals())
    assert not any(mine.add(kill(), Op.REPLAY) for _ in range(24))
    assert mine.add(kill(), Op.REPLAY)


def test_kills_say_little_while_idle_workers_are_killed_too() -> None:
    mine = Blame(10, Acquittals())
    assert not any(mine.add(kill(number), Op.STEP) for number in range(1, 25))
    assert mine.add(kill(25), Op.STEP) == "25 times at the same point"
    mine = Blame(10, Acquittals())
    assert not any(mine.add(kill(3 * number), Op.STEP) for number in range(1, 500))
    assert mine.add(kill(1500), Op.STEP)


def test_kills_say_little_while_others_are_killed_whose_calls_go_well_later() -> None:
    acquittals = Acquittals()
    mine, other = Blame(10, acquittals), Blame(10, acquittals)
    for number in range(24):
        assert not mine.add(kill(), Op.STEP)
        if number % 2:
            assert not other.add(kill(), Op.STEP)
            other.clear()
    assert mine.add(kill(), Op.STEP) == "25 times at the same point"


def test_envs_that_kill_their_workers_every_time_are_no_excuse_for_one_another() -> None:
    acquittals = Acquittals()
    for _ in range(20):
        mine = [Blame(10, acquittals) for _ in range(3)]
        assert not any(one.add(kill(), Op.STEP) for _ in range(4) for one in mine)
        assert all(one.add(kill(), Op.STEP) == "5 times at the same point" for one in mine)


def test_a_bystander_is_restored_as_long_as_it_makes_progress() -> None:
    mine = Blame(0, Acquittals())
    for _ in range(3):
        assert not any(mine.add(BYSTANDER, Op.STEP) for _ in range(499))
        mine.clear()
    assert not any(mine.add(BYSTANDER, Op.STEP) for _ in range(499))
    assert "for the 500th time in a row without a call of this env completed" in mine.add(BYSTANDER, Op.STEP)


def test_several_suspects_are_halved_and_none_of_them_is_convicted() -> None:
    mine = Blame(0, Acquittals())
    crowd = HostLost("crash", suspects=16)
    found = []
    for _ in range(6):
        assert not mine.add(crowd, Op.STEP)
        found.append(mine.companions)
    assert found == [8, 4, 2, 1, 1, 1]
    mine = Blame(0, Acquittals())
    assert not any(mine.add(kill(suspects=16), Op.STEP) for _ in range(4))
    assert mine.companions == 0  # not worth it: whoever kills from outside is not found so
    mine.add(kill(suspects=16), Op.STEP)
    assert mine.companions == 8
    mine = Blame(0, Acquittals())
    assert not any(mine.add(kill(number, suspects=16), Op.STEP) for number in range(1, 50))
    assert mine.companions == 0  # others are killed, too


# Deaths


@uvloop_only
async def test_envs_that_crash_once_each_cost_their_neighbours_nothing(tmp_path: Path) -> None:
    """Each of them is lost far more often than `max_restarts` by the crashes of the others."""
    generator = random.Random(5)
    count = 12
    transcripts: dict[int, Transcript] = {}
    actions: dict[int, list[Any]] = {}
    async with EnvPool(workers=2, max_restarts=2) as pool:

        async def live(number: int) -> None:
            actions[number] = list(islice(actions_of(FAULTY, number), 30))
            actions[number][generator.randrange(5, 25)] = ["once", str(tmp_path / f"{number}"), "exit", 3]
            async with pool.open(FAULTY) as env:
                transcripts[number] = await play(env, number, actions[number])

        with anyio.fail_after(4 * LIMIT):
            async with anyio.create_task_group() as tasks:
                for number in range(count):
                    tasks.start_soon(live, number)
        assert pool.stats().restarts == count
    for number, transcript in transcripts.items():
        assert transcript == await undisturbed(FAULTY, number, actions[number])


class Hail:
    """Envs play one episode after the other, while workers are killed; counts what they did."""

    def __init__(self, pool: EnvPool, seed: int) -> None:
        self.pool, self.generator = pool, random.Random(seed)
        self.steps = self.episodes = self.kills = 0
        self.over = anyio.Event()

    async def live(self, number: int, turns: int, pause: float = 0.0) -> None:
        spec = MIXED[number % len(MIXED)]
        seed = 1000 * number
        async with self.pool.open(spec) as env:
            while not self.over.is_set():
                seed += 1
                played: list[Any] = []
                transcript = [frozen(await env.reset(seed=seed))]
                for action in islice(actions_of(spec, seed), turns):
                    if self.over.is_set():
                        break
                    transcript.append(frozen(await env.step(action)))
                    played.append(action)
                    self.steps += 1
                    if pause:
                        await anyio.sleep(pause)  # a pace, so that histories stay short
                self.episodes += 1
                if len(played) < turns or self.episodes % 16 == 0:
                    assert transcript == await undisturbed(spec, seed, played)

    def strike(self) -> None:
        if serving := pids(self.pool):
            with suppress(ProcessLookupError):  # it died just now
                os.kill(self.generator.choice(serving), signal.SIGKILL)
                self.kills += 1

    def strike_busiest(self) -> None:
        busiest = max(self.pool.stats().workers, key=lambda worker: worker.envs)
        assert busiest.pid is not None
        os.kill(busiest.pid, signal.SIGKILL)
        self.kills += 1


@uvloop_only
async def test_nobody_fails_in_a_hail_of_kills() -> None:
    """The worker with most envs is killed as soon as another one serves, so that few calls complete in between."""
    async with EnvPool(workers=2, max_restarts=2) as pool:
        hail = Hail(pool, 7)
        with anyio.fail_after(4 * LIMIT):
            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(hail.live, number, 10**6, 0.01)
                while hail.kills < 10:
                    await until(lambda: len(pids(pool)) == 2)
                    steps = hail.steps
                    await until(lambda steps=steps: hail.steps >= steps + hail.generator.randrange(8))  # type: ignore[misc]
                    hail.strike_busiest()
                    await until(lambda: pool.stats().restarts == hail.kills)
                hail.over.set()


@uvloop_only
async def test_workers_that_are_killed_at_their_start_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import os\nif os.path.exists({str(tmp_path / 'hail')!r}): os.kill(os.getpid(), 9)"
    monkeypatch.setenv("PYTHONPATH", spoil_starts(tmp_path, code))
    async with EnvPool(workers=2) as pool:
        env = await open_reset(pool, COUNTER, 6, worker=0)
        (tmp_path / "hail").touch()
        started = (rank := pool._backend._ranks[0])._lives  # type: ignore[union-attr]
        os.kill(pid_of(pool, env), signal.SIGKILL)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(env.step, 1)
            await until(lambda: rank._lives > started + 5)
            (tmp_path / "hail").unlink()


@uvloop_only
@pytest.mark.slow
async def test_a_kill_every_fifth_of_a_second_for_20_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """The pace before and afterwards is printed."""
    async with EnvPool(workers=3) as pool:
        hail = Hail(pool, 11)

        async def pace(seconds: float) -> float:
            steps, start = hail.steps, time.perf_counter()
            await anyio.sleep(seconds)
            return (hail.steps - steps) / (time.perf_counter() - start)

        with anyio.fail_after(20 * LIMIT):
            async with anyio.create_task_group() as tasks:
                for number in range(64):
                    tasks.start_soon(hail.live, number, 20)
                await until(lambda: hail.episodes > 64)
                before = await pace(5)
                for _ in range(100):
                    hail.strike()
                    await anyio.sleep(0.2)
                await until(lambda: len(pids(pool)) == 3)
                await pace(2)
                after = await pace(5)
                hail.over.set()
        with capsys.disabled():
            print(f"\n{hail.kills} kills, {hail.episodes} episodes, {before:.0f} steps/s before, {after / before:.2f}x")


@uvloop_only
@pytest.mark.slow
async def test_640_episodes_under_850_deaths(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps take long enough that most kills hit one, or a replay of many."""
    generator = random.Random(13)
    actions = [["burn", 0.003]] * 10
    clean = {seed: await undisturbed(FAULTY, seed, actions) for seed in range(40)}
    episodes = kills = steps = 0
    async with EnvPool(workers=3) as pool:

        async def live(number: int) -> None:
            nonlocal episodes, steps
            async with pool.open(FAULTY) as env:
                while episodes < 640 or kills < 850:
                    seed = (number + episodes) % 40
                    transcript = [frozen(await env.reset(seed=seed))]
                    for action in actions:
                        transcript.append(frozen(await env.step(action)))
                        steps += 1
                    assert transcript == clean[seed]
                    episodes += 1

        with anyio.fail_after(60 * LIMIT):
            async with anyio.create_task_group() as tasks:
                for number in range(16):
                    tasks.start_soon(live, number)
                while kills < 850:
                    await until(lambda: pids(pool))
                    with suppress(ProcessLookupError):  # it died just now
                        os.kill(generator.choice(pids(pool)), generator.choice([signal.SIGKILL, signal.SIGTERM]))
                        kills += 1
                    wanted = steps + generator.randrange(10)
                    await until(lambda wanted=wanted: steps >= wanted)  # type: ignore[misc]
        with capsys.disabled():
            print(f"\n{kills} kills, {episodes} episodes, {pool.stats().restored} envs restored")


async def strike_when_begun(begun: Path, number: int) -> None:
    """Have the worker that says where it is die by a signal."""
    await until(lambda: begun.exists() and begun.read_text())
    pid = int(begun.read_text())
    begun.unlink()
    os.kill(pid, number)


@uvloop_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
async def test_kills_at_the_same_step_and_in_its_replay_are_not_blamed_on_the_env(
    number: signal.Signals, tmp_path: Path
) -> None:
    def held(place: str, times: range) -> list[Any]:
        fault: list[Any] = ["tell", str(tmp_path / "begun"), "block"]
        for time_ in times:
            fault = ["nth", time_, str(tmp_path / f"{place} {time_}"), *fault]
        return fault

    gate = tmp_path / "pass"
    wait = ["tell", str(tmp_path / "begun"), "wait", str(gate)]
    async with EnvPool(workers=2) as pool, neighbours(pool, COUNTER):
        env = await open_reset(pool, FAULTY, 6)
        outcomes: list[Outcome] = []

        async def step(action: Any) -> None:
            outcomes.append(await env.step(action))

        with anyio.fail_after(2 * LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(step, wait)
                for _ in range(4):
                    await strike_when_begun(tmp_path / "begun", number)
                await until((tmp_path / "begun").exists)
                gate.touch()
            (tmp_path / "begun").unlink()
            gate.unlink()
            async with anyio.create_task_group() as tasks:  # from here on, its replay is held
                os.kill(pid_of(pool, env), number)
                tasks.start_soon(step, 2)
                for _ in range(6):
                    await strike_when_begun(tmp_path / "begun", number)
                await until((tmp_path / "begun").exists)
                gate.touch()
        assert [frozen(outcome) for outcome in outcomes] == (await undisturbed(FAULTY, 6, [1, 2]))[1:]


@uvloop_only
async def test_an_env_whose_replay_always_crashes_fails(tmp_path: Path) -> None:
    trace = str(tmp_path / "first")
    async with EnvPool(workers=2) as pool, neighbours(pool, COUNTER):
        env = await open_reset(pool, FAULTY, 6)
        await env.step(["past first", trace, "exit", 3])
        os.kill(pid_of(pool, env), signal.SIGKILL)
        error = await error_of(env.step, 1)
        assert type(error) is EnvCrashed
        assert "exit code 3) during replay, 2 times at the same point" in str(error)
        assert pool.stats().restarts == 3


@uvloop_only
async def test_deaths_without_end_and_without_progress_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "_FRUITLESS_DEATHS", 4)
    async with EnvPool(workers=1) as pool:
        env = await open_reset(pool, COUNTER, 6)
        for _ in range(6):  # each of them with a step in between
            os.kill(pid_of(pool, env), signal.SIGKILL)
            await env.step(1)
        seat = env._calls.binding
        for _ in range(3):
            seat._accept(BYSTANDER, Op.STEP)
        with pytest.raises(EnvCrashed, match="for the 4th time in a row without a call of this env completed"):
            seat._accept(BYSTANDER, Op.STEP)


# Suspects


@uvloop_only
@pytest.mark.parametrize(("spec", "workers"), [(FAULTY, 1), (FAULTY_IO, 2)], ids=["cpu", "io"])
async def test_a_crasher_is_found_among_envs_that_are_always_at_work(spec: EnvSpec, workers: int) -> None:
    """Its neighbours are at work at every death; in the end it is tried on its own, and they wait."""
    waiting = [WAITING.with_kwargs(seconds=0.02)] * 6
    async with EnvPool(workers=workers) as pool, neighbours(pool, *waiting, COUNTER):
        env = await open_reset(pool, spec, 6, worker=0)
        with anyio.fail_after(2 * LIMIT):
            error = await error_of(env.step, ["exit", 3])
        assert type(error) is EnvCrashed
        assert "exit code 3" in str(error)
        assert pool.stats().restarts < 10
        await check_sound(env, spec)


@uvloop_only
async def test_envs_that_keep_killing_workers_get_one_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(number: int) -> list[Any]:
        return ["once", str(tmp_path / f"{number}"), "exit", 3]

    async with EnvPool(workers=2, max_restarts=100) as pool:
        crasher = await open_reset(pool, FAULTY, 1)
        others = [await open_reset(pool, COUNTER, seed) for seed in range(6)]
        for number in range(5):
            assert not pool.stats().quarantined
            await crasher.step(crash(number))
            await pool.step_many(others, [1] * 6)
        assert pool.stats().quarantined == ("faulty",)
        await crasher.step(crash(5))
        await pool.reset_many(others, range(6))
        assert {env.worker for env in others} == {1 - (crasher.worker or 0)}
        another = await open_reset(pool, FAULTY, 2)
        assert another.worker == crasher.worker
        assert (await open_reset(pool, COUNTER, 1, beside=crasher)).worker != crasher.worker
        restored, places = pool.stats().restored, [env._calls.binding.id for env in others]
        for number in range(6, 9):
            await crasher.step(crash(number))
            await pool.step_many(others, [1] * 6)
        assert places == [env._calls.binding.id for env in others]
        assert pool.stats().restored == restored + 3
        monkeypatch.setattr(quarantine, "_QUIET", 0.0)  # as if it had been quiet for long
        assert not pool.stats().quarantined
        near = await open_reset(pool, COUNTER, 1, beside=crasher)
        assert near.worker == crasher.worker


@uvloop_only
async def test_envs_of_one_kind_are_not_kept_apart_from_each_other(tmp_path: Path) -> None:
    async with EnvPool(workers=2) as pool:
        env = await open_reset(pool, FAULTY, 1)
        for number in range(6):
            await env.step(["once", str(tmp_path / f"{number}"), "exit", 3])
        await until(lambda: len(pids(pool)) == 2)
        assert {(await open_reset(pool, FAULTY, seed)).worker for seed in range(6)} == {0, 1}


@uvloop_only
async def test_with_one_worker_there_is_no_quarantine_to_leave(tmp_path: Path) -> None:
    async with EnvPool(workers=1) as pool:
        crasher, other = await open_reset(pool, FAULTY, 1), await open_reset(pool, COUNTER, 1)
        for number in range(5):
            await crasher.step(["once", str(tmp_path / f"{number}"), "exit", 3])
        assert pool.stats().quarantined == ("faulty",)
        await other.reset(seed=1)
        place = other._calls.binding.id
        await other.reset(seed=2)
        assert other._calls.binding.id == place
        assert not pool.stats().moved


# Time


def test_time_in_which_nobody_watched_is_not_counted() -> None:
    seen = ObservedTime(0.0, 0.0)
    for tick in range(1, 11):
        seen.tick(tick / 10, 0.0)
    assert seen.since(0.0, 1.0) == 1.0
    seen.tick(61.0, 0.0)  # frozen for a minute
    assert seen.since(0.0, 61.0) == pytest.approx(1.1)
    assert seen.since(31.0, 61.0) == pytest.approx(0.0)  # begun meanwhile, by a worker that was not
    seen.tick(61.1, 0.0)
    assert seen.since(31.0, 61.1) == pytest.approx(0.1)
    seen.tick(71.1, 9.0)  # a loop that computes for nine seconds is late as well, and not frozen
    assert seen.since(61.1, 71.1) == pytest.approx(9.1)


def stand_still(seconds: float) -> None:
    """The event loop's thread does nothing, as if it were frozen."""
    time.sleep(seconds)


@uvloop_only
async def test_a_frozen_program_blames_no_step(tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    async with EnvPool(workers=1, step_timeout=1, reset_timeout=1) as pool:
        env = await open_reset(pool, FAULTY, 6)
        outcomes: list[Outcome] = []

        async def step() -> None:
            outcomes.append(await env.step(["tell", str(begun), "wait", str(gate)]))

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(step)
                await until(begun.exists)
                (rank,) = pool._backend._ranks  # type: ignore[union-attr]
                await until(lambda: rank._watchdog._seen)
                (pid,) = pids(pool)
                freeze(pid)
                stand_still(1.5)
                os.kill(pid, signal.SIGCONT)
                ticks = pool._backend._watch.time  # type: ignore[union-attr]
                await until(lambda: ticks._gaps)
                gate.touch()
        assert pids(pool) == [pid]
        assert frozen(outcomes[0]) == (await undisturbed(FAULTY, 6, [1]))[-1]


@pytest.mark.slow
def test_a_program_that_is_frozen_as_a_whole_continues() -> None:
    """Four times: all processes, the first one alone, all in the opposite order, all again."""
    command = [sys.executable, "-m", "tests.scripts.frozen"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        first = psutil.Process(program.pid)
        family = [first.pid, *(child.pid for child in first.children(recursive=True))]
        for pids_ in (family, family[:1], family[::-1], family):
            program.stdout.readline()
            for pid in pids_:
                os.kill(pid, signal.SIGSTOP)
            stand_still(3.0)
            for pid in pids_:
                os.kill(pid, signal.SIGCONT)
        rounds = program.stdout.read().splitlines()
    assert rounds == [*(f"[{number}, {number}, {number}]" for number in range(4, 8)), "0 restarts"]


@uvloop_only
@pytest.mark.parametrize("frozen_at", [1.5, 0.7], ids=["past the limit", "before it"])
async def test_a_frozen_program_blames_no_step_on_the_event_loop(frozen_at: float, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    async with EnvPool(backend="inline", step_timeout=1) as pool:
        env = await open_reset(pool, FAULTY_IO, 6)
        outcomes: list[Outcome] = []

        async def step() -> None:
            outcomes.append(await env.step(["tell", str(begun), "wait", str(gate)]))

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(step)
                await until(begun.exists)
                stand_still(frozen_at)
                await anyio.sleep(0.5)  # past the limit by now, most of which nobody saw
                gate.touch()
            assert type(await error_of(env.step, ["block"])) is EnvTimeout
        assert frozen(outcomes[0]) == (await undisturbed(FAULTY_IO, 6, [1]))[-1]


@uvloop_only
async def test_a_worker_that_is_stopped_in_a_step_is_replaced_and_the_env_is_not_blamed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    async with EnvPool(workers=1, step_timeout=0.5) as pool:
        env = await open_reset(pool, FAULTY, 6)
        outcomes: list[Outcome] = []

        async def step() -> None:
            outcomes.append(await env.step(["once", str(tmp_path / "first"), "tell", str(begun), "block"]))

        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(step)
                await until(begun.exists)
                freeze(pids(pool)[0])
        assert pool.stats().restarts == 1
        assert frozen(outcomes[0]) == (await undisturbed(FAULTY, 6, [1]))[-1]


@uvloop_only
@pytest.mark.parametrize("call", ["step", "reset"])
async def test_a_worker_that_is_stopped_while_idle_is_replaced_after_the_limit_of_a_step(call: str) -> None:
    async with EnvPool(workers=1, step_timeout=0.5, reset_timeout=10**6) as pool:
        env = await open_reset(pool, COUNTER, 6)
        freeze(pids(pool)[0])
        with anyio.fail_after(LIMIT):
            await (env.step(1) if call == "step" else env.reset(seed=6))
        assert pool.stats().restarts == 1
        await check_sound(env, COUNTER)


@uvloop_only
async def test_a_step_that_only_waits_still_times_out(tmp_path: Path) -> None:
    async with EnvPool(workers=1, step_timeout=0.5) as pool:
        for spec in (FAULTY, FAULTY_IO):
            env = await open_reset(pool, spec, 6)
            assert type(await error_of(env.step, ["block"])) is EnvTimeout


@pytest.mark.parametrize(
    ("state", "share", "limits"),
    [
        pytest.param("R", 0.05, 3.0, id="it waits for a CPU"),
        pytest.param("R", 0.5, 1.0, id="it computes"),
        pytest.param("S", 0.0, 1.0, id="it sleeps"),
    ],
)
def test_a_worker_that_gets_no_cpu_is_not_taken_for_slow(state: str, share: float, limits: float) -> None:
    """It has so many times its limit; the scheduler of a test's machine is not to be relied on."""
    now = start = 1_000.0
    watch: Any = SimpleNamespace(time=SimpleNamespace(since=lambda since, now: now - since))
    calls = {7: (None, Op.STEP, None, None)}
    link: Any = SimpleNamespace(pending=calls, usage=lambda: CpuUsage(state, share * (now - start)))
    page: Any = SimpleNamespace(running=lambda: [(7, start)])
    dog = watchdog.Watchdog(PoolLimits(step=10.0, reset=10.0), watch, DurationWindow())
    while (doom := dog.look(link, page, now)) is None:
        now += 0.1
    assert doom == watchdog.KillReason("timeout", {7})
    assert now - start == pytest.approx(10 * limits, abs=0.25)
