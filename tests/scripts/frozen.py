"""Steps envs of every kind for a while, and prints what came of each round; somebody freezes it meanwhile."""

import asyncio
import time
from typing import Any

from asyncrollout import EnvPool, EnvSpec, Outcome

ROUNDS = 8
STEP = 0.5  # seconds


class Slow:
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP)
        return action, 0.0, False, False, {}


class AsyncSlow(Slow):
    async def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:  # type: ignore[override]
        return super().reset(seed=seed, options=options)

    async def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        await asyncio.sleep(STEP)
        return action, 0.0, False, False, {}


async def main() -> None:
    kinds = [("Slow", "cpu"), ("Slow", "io"), ("AsyncSlow", "io")]
    specs = [EnvSpec(name=kind, factory=f"tests.scripts.frozen:{kind}", runs=runs) for kind, runs in kinds]  # type: ignore[arg-type]
    async with EnvPool(workers=2, step_timeout=4 * STEP, reset_timeout=4 * STEP) as pool:
        envs = [await pool.open(spec) for spec in specs]
        await pool.reset_many(envs)
        print("ready", flush=True)
        for number in range(ROUNDS):
            outcomes = await pool.step_many(envs, [number] * len(envs))
            print([one.observation if isinstance(one, Outcome) else repr(one) for one in outcomes], flush=True)
        print(f"{pool.stats().restarts} restarts")


if __name__ == "__main__":
    asyncio.run(main())
