"""Rows of `bench_growth.py`: places at work, by the size of groups, and evaluations of many tasks."""

import asyncio
import random
import time
from collections.abc import Iterator

import anyio

import asyncrollout as ar
from benchmarks.growth_rows import Held, Point, Shape

PLACES = 128
ROLLOUTS = 1_024
TURNS = 4
_MEDIAN, _SPREAD = 0.1, 1.0  # seconds of a turn: lognormal

SPEC = ar.EnvSpec(name="counting", factory="benchmarks.rollout_growth:Counting", kwargs={"turns": TURNS}, runs="light")


def latencies(uid: str) -> list[float]:
    rng = random.Random(uid)
    return [rng.lognormvariate(0.0, _SPREAD) * _MEDIAN for _ in range(TURNS)]


class _Usage:
    """How many rollouts wait for a reply, on average, until there are no more to start."""

    def __init__(self) -> None:
        self.turns = self._now = self._begun = 0
        self._sum = 0.0
        self.began = self._since = time.perf_counter()
        self.mean = 0.0

    async def reply(self, request: ar.Request) -> str:
        self._begun += request.turn == 0
        self._note(1)
        await anyio.sleep(latencies(request.session.removeprefix("eval0-"))[request.turn])
        self._note(-1)
        self.turns += 1
        return "go on"

    def _note(self, change: int) -> None:
        now = time.perf_counter()
        self._sum += self._now * (now - self._since)
        self._since, self._now = now, self._now + change
        if self._begun < ROLLOUTS:
            self.mean = self._sum / (now - self.began)


async def _bare(uids: Iterator[str]) -> float:
    """As many coroutines as there are places, which play the same rollouts in the same order."""
    began = time.perf_counter()

    async def play() -> None:
        for uid in uids:
            for seconds in latencies(uid):
                await asyncio.sleep(seconds)

    async with anyio.create_task_group() as tasks:
        for _ in range(PLACES):
            tasks.start_soon(play)
    return time.perf_counter() - began


async def groups(size: int) -> Point:
    """Seconds; the share is of the speed of a bare loop of as many places."""
    return await _compared(size, "collect")


async def evaluated(size: int) -> Point:
    return await _compared(size, "evaluate")


async def _compared(size: int, how: str) -> Point:
    count = ROLLOUTS // size
    bare = await _bare(f"g{group}.{member}" for group in range(count) for member in range(size))
    usage = _Usage()
    async with ar.Rollouts(
        SPEC, policy=ar.ScriptedPolicy(usage.reply), group_size=size, max_in_flight=PLACES, seed=1
    ) as rollouts:
        held = Held()
        usage.began = usage._since = began = time.perf_counter()
        if how == "evaluate":
            await rollouts.evaluate(count, k=size, split=None)
        else:
            await rollouts.collect(groups=count)
        seconds = time.perf_counter() - began
    assert usage.turns == ROLLOUTS * TURNS
    return Point(seconds, held.milliseconds, bare / seconds)


async def places(size: int) -> Point:
    """Turns per second of a stream with all the lag it wants; the share is that of the places at work."""
    usage, count = _Usage(), ROLLOUTS // size
    async with ar.Rollouts(
        SPEC, policy=ar.ScriptedPolicy(usage.reply), group_size=size, max_in_flight=PLACES, seed=1, max_lag=None
    ) as rollouts:
        held = Held()
        usage.began = usage._since = began = time.perf_counter()
        stream = rollouts.batches(groups=max(count // 2, 1))
        for _ in range(2):
            await anext(stream)
        seconds = time.perf_counter() - began
        milliseconds = held.milliseconds
    return Point(1e3 * seconds / (ROLLOUTS * TURNS), milliseconds, usage.mean / PLACES)


async def _at_once(_: ar.Request) -> str:
    return "go on"


async def evaluate_many(size: int) -> Point:
    """Microseconds for each task of an evaluation whose replies come at once."""
    policy = ar.ScriptedPolicy(_at_once)
    tasks = [{"question": f"What is {number} + {number}?", "answer": str(2 * number)} for number in range(size)]
    async with ar.Rollouts(SPEC, policy=policy, group_size=1, max_in_flight=512) as rollouts:
        held, began = Held(), time.process_time()
        evaluation = await rollouts.evaluate(tasks, split=None)
        seconds, milliseconds = time.process_time() - began, held.milliseconds
    assert len(evaluation.groups) == size
    return Point(1e6 * seconds / size, milliseconds)


SHAPES = [
    Shape("groups: makespan against a bare loop", "members", (1, 8, 64), "s", groups, least_share=0.95),
    Shape("groups: evaluation against a bare loop", "members", (1, 8, 64), "s", evaluated, least_share=0.95),
    Shape("groups: places at work", "members", (1, 8, 64), "ms a turn", places, least_share=0.95),
    Shape("evaluate many", "tasks", (1_000, 5_000, 20_000), "us", evaluate_many, most_ratio=1.3, most_held=50.0),
]
