"""Rows of `bench_growth.py`: what holds the event loop, and what it costs to wait: wakes, cancels, garbage, idling."""

import gc
import time

import anyio
import anyio.lowlevel

import asyncrollout as ar
from asyncrollout.policies.gate import GatedPolicy
from asyncrollout.types import PauseMode
from benchmarks.growth_rows import Held, Point, Shape

SPEC = ar.EnvSpec(name="counting", factory="benchmarks.rollout_growth:Counting", kwargs={"turns": 4}, runs="light")
WORKED = ar.EnvSpec(name="worked", factory="benchmarks.rollout_growth:Counting", kwargs={"turns": 4}, runs="cpu")
_TURNS_ALIVE = 50  # of each trajectory


class _Waiting:
    """A policy that replies to the first turns, and to others once it is released; knows when all rollouts wait."""

    def __init__(self, rollouts: int, *, replies: int = 0) -> None:
        self.all_wait = anyio.Event()
        self._rollouts, self._replies = rollouts, replies
        self._calls: list[anyio.Event] | None = []  # None once it is released

    async def generate(self, request: ar.Request) -> ar.Generation:
        if request.turn >= self._replies and self._calls is not None:
            self._calls.append(anyio.Event())
            if len(self._calls) == self._rollouts:
                self.all_wait.set()
            await self._calls[-1].wait()
        return ar.Generation("go on")

    async def release(self) -> None:
        """Reply some at a time: what all replies at once cost is not to be measured."""
        calls, self._calls = self._calls or [], None
        for number, call in enumerate(calls):
            call.set()
            if number % 32 == 0:
                await anyio.lowlevel.checkpoint()


async def cancel(size: int) -> Point:
    """Microseconds for each rollout in flight that is cancelled."""
    policy = _Waiting(size)
    async with ar.Rollouts(SPEC, policy=policy, group_size=8, max_in_flight=size, seed=1) as rollouts:
        async with anyio.create_task_group() as tasks:

            async def take() -> None:
                await rollouts.collect(groups=size // 8)

            tasks.start_soon(take)
            await policy.all_wait.wait()
            held, began = Held(), time.process_time()
            tasks.cancel_scope.cancel()
        seconds, milliseconds = time.process_time() - began, held.milliseconds
    return Point(1e6 * seconds / size, milliseconds)


async def cancel_evaluation(size: int) -> Point:
    policy = _Waiting(size)
    async with ar.Rollouts(SPEC, policy=policy, group_size=1, max_in_flight=size, seed=1) as rollouts:
        async with anyio.create_task_group() as tasks:

            async def take() -> None:
                await rollouts.evaluate(size, split=None)

            tasks.start_soon(take)
            await policy.all_wait.wait()
            held, began = Held(), time.process_time()
            tasks.cancel_scope.cancel()
        seconds, milliseconds = time.process_time() - began, held.milliseconds
    return Point(1e6 * seconds / size, milliseconds)


async def _updated(size: int, mode: PauseMode) -> Point:
    """Microseconds for each rollout whose call waits for new weights, or is stopped and made again; one turn each."""
    policy = _Waiting(size)
    async with (
        ar.Rollouts(SPEC, env_kwargs={"turns": 2}, policy=policy, group_size=8, max_in_flight=size, seed=1) as rollouts,
        anyio.create_task_group() as tasks,
    ):
        done = anyio.Event()

        async def take() -> None:
            await rollouts.collect(groups=size // 8)
            done.set()

        tasks.start_soon(take)
        await policy.all_wait.wait()
        held, began = Held(), time.process_time()
        if mode == "wait":
            tasks.start_soon(policy.release)
        async with rollouts.weight_update(1, mode):
            await policy.release()
        await done.wait()
        seconds, milliseconds = time.process_time() - began, held.milliseconds
    return Point(1e6 * seconds / size, milliseconds)


async def update(size: int) -> Point:
    return await _updated(size, "wait")


async def abort(size: int) -> Point:
    return await _updated(size, "abort")


async def _line_cancelled(policy: ar.Policy, size: int) -> Point:
    """Microseconds for each call that is cancelled while it waits in line, all of them by one scope."""
    async with anyio.create_task_group() as tasks:
        for number in range(size):
            tasks.start_soon(policy.generate, ar.Request(messages=[], session=f"{number}"))
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        began = time.process_time()
        tasks.cancel_scope.cancel()
    return Point(1e6 * (time.process_time() - began) / size)


async def line_limited(size: int) -> Point:
    return await _line_cancelled(ar.limited(_Waiting(size), 64), size)


async def line_paused(size: int) -> Point:
    policy = GatedPolicy(_Waiting(size))
    await policy.pause("continue")
    return await _line_cancelled(policy, size)


async def line_openai(size: int) -> Point:
    async with ar.OpenAIPolicy("http://127.0.0.1:9/v1", "m", concurrency=1, kind="openai") as policy:
        policy.endpoints[0].in_flight = 1  # the line does not move
        return await _line_cancelled(policy, size)


async def garbage(size: int) -> Point:
    """Percent of the CPU that the garbage collector takes while so many turns are alive; held is its longest pause."""
    pauses: list[float] = []
    began_at = 0.0

    def note(phase: str, _: object) -> None:
        nonlocal began_at
        if phase == "start":
            began_at = time.thread_time()
        else:
            pauses.append(time.thread_time() - began_at)

    policy = ar.ScriptedPolicy(["go on"])
    kept = []
    async with ar.Rollouts(
        SPEC, env_kwargs={"turns": _TURNS_ALIVE}, policy=policy, group_size=8, max_in_flight=64, seed=1, max_lag=None
    ) as rollouts:
        gc.callbacks.append(note)
        began, turns = time.process_time(), 0
        async for group in rollouts.groups():
            kept.append(group)
            turns += sum(len(one.turns) for one in group.trajectories)
            if turns >= size:
                break
        seconds = time.process_time() - began
        gc.callbacks.remove(note)
    return Point(100 * sum(pauses) / seconds, 1e3 * max(pauses, default=0.0))


async def idle(size: int) -> Point:
    """Percent of a CPU that a paused run takes."""
    policy = _Waiting(size, replies=1)
    rollouts = ar.Rollouts(WORKED, policy=policy, group_size=8, max_in_flight=size, seed=1, workers=2)
    async with rollouts, anyio.create_task_group() as tasks:

        async def take() -> None:
            await rollouts.collect(groups=size // 8)

        tasks.start_soon(take)
        await policy.all_wait.wait()
        await anyio.sleep(4.0)
        held, began, since = Held(), time.process_time(), time.perf_counter()
        await anyio.sleep(5.0)
        seconds, milliseconds = time.process_time() - began, held.milliseconds
        lasted = time.perf_counter() - since
        tasks.cancel_scope.cancel()
    return Point(100 * seconds / lasted, milliseconds)


_MANY = (5_000, 10_000, 20_000)
_LINE = (2_000, 8_000, 20_000)

SHAPES = [
    Shape("cancel a batch", "in flight", _MANY, "us", cancel, 1.3, most_held=100.0),
    Shape("cancel an evaluation", "in flight", _MANY, "us", cancel_evaluation, 1.3, most_held=100.0),
    Shape("new weights, awaited", "in flight", _MANY, "us", update, 1.3, most_held=100.0),
    Shape("new weights, aborted", "in flight", _MANY, "us", abort, 1.3, most_held=100.0),
    Shape("a line of limited calls, cancelled", "calls", _LINE, "us", line_limited, 1.3),
    Shape("a line of paused calls, cancelled", "calls", _LINE, "us", line_paused, 1.3),
    Shape("a line of HTTP calls, cancelled", "calls", _LINE, "us", line_openai, 1.3),
    Shape("garbage collection", "turns alive", (25_000, 50_000, 100_000), "%", garbage, most_held=50.0, most_cost=5.0),
    Shape("a paused run", "in flight", (500, 2_000, 5_000), "% of a CPU", idle, most_cost=1.0),
]
