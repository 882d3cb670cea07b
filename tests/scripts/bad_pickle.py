"""An env returns what exits the process that loads it: an error of that env, and no exit."""

import asyncio

from asyncrollout import EnvError, EnvPool


async def main() -> None:
    async with EnvPool(workers=1) as pool, pool.open("tests.envs.fault:Returning") as env:
        await env.reset(seed=1)
        try:
            await env.step("exit")
        except EnvError as error:
            print(f"{type(error).__name__}, {pool.stats().restarts} restarts")


if __name__ == "__main__":
    asyncio.run(main())
