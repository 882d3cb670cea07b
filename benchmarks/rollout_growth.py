"""What one rollout, one start and one turn cost as there are more of them, as `bench_rollouts.py` shows it."""

import gc
import random
import time
from typing import Any

import anyio
import anyio.lowlevel

import asyncrollout as ar

IN_FLIGHT = (1_000, 4_000)
TURNS = (1_000, 4_000)
STARTS = 5_000
_ROUNDS = 3


class Counting:
    """Ends after `turns` steps."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.left = self.turns
        return "begin", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return "go on", 1.0, self.left == 0, False, {}


SPEC = ar.EnvSpec(name="counting", factory="benchmarks.rollout_growth:Counting", runs="light")


async def _soon(request: ar.Request) -> str:
    await anyio.sleep(random.Random(request.sampling.seed).uniform(0.0, 0.5))
    return "go on"


async def _never(_: ar.Request) -> str:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


async def cpu_per_rollout(in_flight: int, max_lag: int | None) -> float:
    """Microseconds for each rollout that a trainer takes, one by one, with new weights now and then."""
    policy = ar.ScriptedPolicy(_soon)
    async with ar.Rollouts(
        SPEC, env_kwargs={"turns": 3}, policy=policy, group_size=1, max_in_flight=in_flight, max_lag=max_lag
    ) as rollouts:
        gc.collect()
        began, taken = time.process_time(), 0
        async for _ in rollouts.groups():
            taken += 1
            if taken == _ROUNDS * in_flight // 2:
                return (time.process_time() - began) / taken * 1e6
            if taken % (in_flight // 2) == 0:
                async with rollouts.weight_update(2 * taken // in_flight, "continue"):
                    pass
    raise AssertionError("unreachable")


async def cpu_per_turn(turns: int, **agent: Any) -> float:
    """Microseconds for each turn of one long conversation."""
    chat = ar.ChatAgent(ar.ScriptedPolicy(["go on"]), **agent)
    async with ar.EnvPool(backend="inline") as pool, pool.open(SPEC, turns=turns) as env:
        gc.collect()
        began = time.process_time()
        await ar.run_rollout(env, chat, seed=0, limits=ar.Limits(tokens=10**9))
        return (time.process_time() - began) / turns * 1e6


async def longest_hold(how: str) -> float:
    """Milliseconds of CPU for which the loop was held while so many rollouts started; without the garbage collector."""
    size = STARTS if how == "one group" else 8
    rollouts = ar.Rollouts(
        SPEC, env_kwargs={"turns": 3}, policy=ar.ScriptedPolicy(_never), group_size=size, max_in_flight=2 * STARTS
    )
    held = 0.0
    async with rollouts, anyio.create_task_group() as tasks:

        async def start() -> None:
            await (rollouts.evaluate(STARTS) if how == "evaluation" else rollouts.collect(STARTS // size))

        gc.collect()
        gc.disable()
        try:
            tasks.start_soon(start)
            while len(rollouts.ledger.open) < STARTS:
                before = time.thread_time()
                await anyio.lowlevel.checkpoint()
                held = max(held, time.thread_time() - before)
        finally:
            gc.enable()
        tasks.cancel_scope.cancel()
    return held * 1e3
