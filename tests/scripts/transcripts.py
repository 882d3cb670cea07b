"""Print a digest of every shipped env's episodes; run by a test with different hash seeds."""

import asyncio
import hashlib
import json

import numpy as np

from asyncrollout import EnvPool, Outcome
from tests.shipped import FORMS

SEEDS = range(5)


def plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)


def shown_of(outcome: Outcome) -> str:
    shown = outcome.observation
    return json.dumps([shown.text, shown.anchor, outcome.reward, outcome.done, outcome.info], default=plain)


async def main() -> None:
    async with EnvPool(backend="inline") as pool:
        for form, (name, kwargs) in FORMS.items():
            digest = hashlib.sha256()
            async with pool.open(name, expert=True, **kwargs) as env:
                for seed in SEEDS:
                    outcome = await env.reset(seed=seed)
                    digest.update(shown_of(outcome).encode())
                    while not outcome.done:
                        outcome = await env.step(outcome.info["expert"])
                        digest.update(shown_of(outcome).encode())
            print(form, digest.hexdigest())


if __name__ == "__main__":
    asyncio.run(main())
