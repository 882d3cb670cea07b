"""An env ends its worker, and its error tells how. The script also says whether anyio has loaded sniffio."""

import asyncio
import sys

from asyncrollout import EnvCrashed, EnvPool


async def main() -> None:
    async with EnvPool(workers=1) as pool, pool.open("tests.envs.fault:Faulty") as env:
        await env.reset(seed=1)
        try:
            await env.step(["exit", 3])
        except EnvCrashed as error:
            print(f"{'beside' if sys.modules.get('sniffio') else 'without'} sniffio: {error}")


if __name__ == "__main__":
    asyncio.run(main())
