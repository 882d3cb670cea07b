"""A training script as many are: torch, dill, transformers and datasets, no main guard, an env of its own."""

import asyncio
import sys
from typing import Any

import datasets
import dill
import torch
import transformers

import asyncrollout as ar

model = torch.nn.Linear(2, 1)
config = transformers.PretrainedConfig()


class Scored:
    def reset(self, *, seed: int = 0, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.state = torch.ones(2) * seed
        return self.state.numpy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        with torch.no_grad():
            value = model(self.state + action)
        loaded = [name for name in ("dill", "transformers", "datasets") if name in sys.modules]
        return value.numpy(), float(value), False, False, {"loaded": loaded, "kind": type(config).__name__}

    def snapshot(self) -> bytes:
        return bytes(dill.dumps(self.state))

    def restore(self, state: bytes) -> None:
        self.state = dill.loads(state)


async def main() -> None:
    rows = datasets.Dataset.from_dict({"seed": [1, 2]})
    async with ar.EnvPool(workers=2) as pool, ar.EnvPool(backend="inline") as here:
        for row in rows:
            async with pool.open(Scored) as env, here.open(Scored) as same:
                played = []
                for one in (env, same):
                    await one.reset(seed=row["seed"])
                    await one.snapshot()
                    played.append(await one.step(1))
                assert played[0].reward == played[1].reward
                assert {"dill", "transformers"} <= {*played[0].info["loaded"]}, played[0].info
    print("all is well")


asyncio.run(main())
