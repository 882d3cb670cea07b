"""Starts its pool without a main guard."""

import asyncio

from asyncrollout import EnvPool


async def main() -> None:
    async with EnvPool(workers=2) as pool, pool.open("tests.envs.tiny:Counter") as env:
        await env.reset(seed=1)


asyncio.run(main())
