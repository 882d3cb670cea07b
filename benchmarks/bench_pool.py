"""The pool's table of ratios: the same work on the pool and on its rivals, side by side in one run.

    python benchmarks/bench_pool.py [--only NAME ...] [--json]

Each row is the median of interleaved repetitions (ours, rival, ours, rival, ...), so that what else the machine does
meets both sides. A missed goal is printed, and is not an error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks.pool_envs`, here and in the workers

if __name__ == "__main__":
    import asyncio
    import statistics
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial

    import anyio
    import anyio.to_process
    import numpy as np
    import uvloop
    from gymnasium.vector import AsyncVectorEnv

    import asyncrollout as ar
    from benchmarks import pool_rivals as rivals
    from benchmarks.harness import Row, chosen_parts, show, tell
    from benchmarks.pool_envs import Computing, Frames, Trivial, Waiting, advance
    from benchmarks.pool_rivals import ACTION, Measure, Tally, blocking, stateless, together

WORKERS = 2
REPETITIONS = 3
WARM_UP = 0.3  # seconds
FAST, SLOW = 0.002, 0.1  # seconds per step
UNWANTED = {"aiohttp", "rich"}


async def compare(what: str, ours: Measure, rival: Measure, *, goal: float | None, seconds: float = 0.7) -> Row:
    tell(f"{what} ...", end="")
    await ours(WARM_UP)
    await rival(WARM_UP)
    pairs = []
    for _ in range(REPETITIONS):
        pairs.append((await ours(seconds), await rival(seconds)))
        tell(f" {pairs[-1][0] / pairs[-1][1]:.2f}x", end="")
    tell("")
    ratio = statistics.median(mine / other for mine, other in pairs)
    mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    if goal is None:
        return Row(what, mine, "steps/s", other, ratio)
    return Row(what, mine, "steps/s", other, ratio, f">= {goal:g}x", ratio >= goal)


async def open_envs(pool: ar.EnvPool, factory: type, kwargs: Iterable[dict[str, Any]], runs: str = "cpu") -> list[Any]:
    name = f"benchmarks.pool_envs:{factory.__name__}"
    spec = ar.EnvSpec(name=name, factory=name, runs=runs)
    return [await pool.open(spec, **each) for each in kwargs]


def own_pace(pool: ar.EnvPool, envs: Sequence[ar.EnvHandle], uncounted: int = 0) -> Measure:
    """Ours: a coroutine for each env steps it again as soon as it has answered. The first `uncounted` do not count."""

    async def play(env: ar.EnvHandle, count: int, tally: Tally) -> None:
        while tally.running:
            outcome = await env.step(ACTION)
            tally.steps += count
            if outcome.done:
                await env.reset()

    async def measure(seconds: float) -> float:
        await pool.reset_many(envs)
        return await together(seconds, [partial(play, env, at >= uncounted) for at, env in enumerate(envs)])

    return measure


def lockstep(pool: ar.EnvPool, envs: Sequence[ar.EnvHandle], uncounted: int) -> Measure:
    """Ours, used as a batch: all are stepped, all are awaited, and again."""
    actions = [ACTION] * len(envs)

    async def measure(seconds: float) -> float:
        await pool.reset_many(envs)
        rounds, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            outcomes = await pool.step_many(envs, actions)
            rounds += 1
            await pool.reset_many([env for env, outcome in zip(envs, outcomes, strict=True) if outcome.done])
        return rounds * (len(envs) - uncounted) / (time.perf_counter() - begin)

    return measure


def text(count: int = 64) -> list[Row]:
    with (
        rivals.text_vector(count) as vector,
        rivals.text_vector(count, shared_memory=False) as pipes,
        rivals.executor(WORKERS) as executor,
    ):
        return uvloop.run(_text(count, vector, pipes, executor))


async def _text(count: int, vector: AsyncVectorEnv, pipes: AsyncVectorEnv, executor: ProcessPoolExecutor) -> list[Row]:
    gym = blocking(partial(rivals.vector_rate, vector, (ACTION,) * count))
    piped = blocking(partial(rivals.vector_rate, pipes, (ACTION,) * count))
    limiter = anyio.CapacityLimiter(WORKERS)
    futures = stateless(count, lambda *args: asyncio.wrap_future(executor.submit(advance, *args)))
    processes = stateless(count, lambda *args: anyio.to_process.run_sync(advance, *args, limiter=limiter))
    async with ar.EnvPool(workers=WORKERS) as pool:
        ours = own_pace(pool, await open_envs(pool, Trivial, [{}] * count))
        envs = f"{count} text envs"
        return [
            await compare(f"{envs} vs AsyncVectorEnv as it comes, {count} processes", ours, gym, goal=8),
            await compare(f"{envs} vs AsyncVectorEnv(shared_memory=False)", ours, piped, goal=None),
            await compare(f"{envs} vs ProcessPoolExecutor, state travelling", ours, futures, goal=20),
            await compare(f"{envs} vs anyio.to_process, state travelling", ours, processes, goal=15),
        ]


def cpu(count: int = 16) -> list[Row]:
    return uvloop.run(_cpu(count))


async def _cpu(count: int) -> list[Row]:
    alone = [Computing(FAST) for _ in range(count)]
    ideal = blocking(lambda seconds: WORKERS * rivals.serial_rate(alone, seconds))
    async with ar.EnvPool(workers=WORKERS) as pool:
        ours = own_pace(pool, await open_envs(pool, Computing, [{"seconds": FAST}] * count))
        what = f"{count} envs of 2 ms CPU vs {WORKERS} x a serial loop"
        return [await compare(what, ours, ideal, goal=0.9, seconds=1)]


def frames(count: int = 8) -> list[Row]:
    with (
        rivals.frame_vector(count, shared_memory=False) as pipes,
        rivals.frame_vector(count, shared_memory=True) as shared,
    ):
        return uvloop.run(_frames(count, pipes, shared))


async def _frames(count: int, pipes: AsyncVectorEnv, shared: AsyncVectorEnv) -> list[Row]:
    actions = np.zeros(count, dtype=np.int64)
    alone = [Frames() for _ in range(count)]
    async with ar.EnvPool(workers=WORKERS) as pool, ar.EnvPool(workers=WORKERS) as unmapped:
        ours = own_pace(pool, await open_envs(pool, Frames, [{}] * count))
        socket = own_pace(unmapped, await open_envs(unmapped, Frames, [{"mapped": False}] * count))
        against: list[tuple[str, Measure, float | None]] = [
            ("ours over the socket", socket, 1.8),
            ("AsyncVectorEnv over pipes", blocking(partial(rivals.vector_rate, pipes, actions)), 2),
            ("AsyncVectorEnv in shared memory", blocking(partial(rivals.vector_rate, shared, actions)), 1),
            ("a serial loop", blocking(partial(rivals.serial_rate, alone, copy=True)), None),
        ]
        return [
            await compare(f"{count} envs of 1 MB frames vs {name}", ours, rival, goal=goal, seconds=0.6)
            for name, rival, goal in against
        ]


def paces(count: int) -> list[dict[str, Any]]:
    """One slow env that goes on and on, then the others, whose episodes end."""
    return [{"seconds": SLOW}] + [{"seconds": FAST, "ends": True}] * (count - 1)


def straggler(count: int = 16) -> list[Row]:
    envs = [Computing(**pace) for pace in paces(count)]
    with rivals.Processes([envs[rank::WORKERS] for rank in range(WORKERS)]) as plain:
        return uvloop.run(_straggler(count, plain))


async def _straggler(count: int, plain: rivals.Processes) -> list[Row]:
    """Lock-step on our pool has no goal: it gains, too, from the envs that the pool moves away from the slow one."""
    async with ar.EnvPool(workers=WORKERS) as pool:
        envs = await open_envs(pool, Computing, paces(count))
        ours, batch = own_pace(pool, envs, uncounted=1), lockstep(pool, envs, uncounted=1)
        what = f"1 env of {count} computes 50x longer: the others vs"
        return [
            await compare(f"{what} lock-step, our pool", ours, batch, goal=None, seconds=1.2),
            await compare(
                f"{what} lock-step, {WORKERS} plain processes",
                ours,
                blocking(plain.lockstep_rate),
                goal=3.5,
                seconds=1.2,
            ),
        ]


def waiting(count: int = 16) -> list[Row]:
    with rivals.Processes([[Waiting(**pace)] for pace in paces(count)]) as plain:
        return uvloop.run(_waiting(count, plain))


async def _waiting(count: int, plain: rivals.Processes) -> list[Row]:
    async with ar.EnvPool(workers=WORKERS) as pool:
        envs = await open_envs(pool, Waiting, paces(count), runs="io")
        ours, batch = own_pace(pool, envs, uncounted=1), lockstep(pool, envs, uncounted=1)
        what = f"1 env of {count} waits 50x longer: the others vs"
        return [
            await compare(f"{what} {count} plain processes", ours, blocking(plain.own_pace_rate), goal=0.8),
            await compare(f"{what} lock-step, our pool", ours, batch, goal=None),
        ]


def light() -> list[Row]:
    return uvloop.run(_light())


async def _light(steps: int = 20_000, goal: float = 3.0) -> list[Row]:
    what = "a light env: time added to each call of step()"
    tell(f"{what} ...", end="")
    direct = Trivial()
    direct.reset()
    added, plain = [], []
    async with ar.EnvPool(workers=1) as pool:
        (env,) = await open_envs(pool, Trivial, [{}], runs="light")
        for _ in range(2 * REPETITIONS + 1):
            await env.reset()
            begin = time.perf_counter()
            for _ in range(steps):
                await env.step(ACTION)
            between = time.perf_counter()
            for _ in range(steps):
                direct.step(ACTION)
            plain.append((time.perf_counter() - between) / steps * 1e6)
            added.append((between - begin) / steps * 1e6 - plain[-1])
            tell(f" {added[-1]:.2f} us", end="")
    tell("")
    ours = statistics.median(added)
    return [Row(what, ours, "us", statistics.median(plain), None, f"<= {goal:g} us", ours <= goal)]


def start(goal: float = 1.0) -> list[Row]:
    what = f"start of a pool of {WORKERS} workers"
    tell(f"{what} ...", end="")
    seconds, unwanted = [], set()
    for _ in range(REPETITIONS):
        took, modules = uvloop.run(_start())
        seconds.append(took)
        unwanted |= UNWANTED & modules
        tell(f" {took:.2f} s", end="")
    tell("")
    ours = statistics.median(seconds)
    loaded = ", ".join(sorted(unwanted)) or "none"
    return [
        Row(what, ours, "s", goal=f"< {goal:g} s", met=ours < goal),
        Row(f"which of {', '.join(sorted(UNWANTED))} a worker imports", loaded, goal="none", met=not unwanted),
    ]


async def _start() -> tuple[float, set[str]]:
    begin = time.perf_counter()
    async with ar.EnvPool(workers=WORKERS) as pool:
        took = time.perf_counter() - begin
        (env,) = await open_envs(pool, Trivial, [{}])
        return took, set(await env.call("modules", keep=False))


SECTIONS = {section.__name__: section for section in (text, cpu, frames, straggler, waiting, light, start)}


def main() -> None:
    chosen = chosen_parts(__doc__, SECTIONS, "--only")
    show([row for name in chosen.parts for row in SECTIONS[name]()], as_json=chosen.json)


if __name__ == "__main__":
    main()
