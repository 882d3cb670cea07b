"""Opens a pool, and says so when it is open."""

import asyncio

import anyio

from asyncrollout import EnvPool


async def main() -> None:
    async with EnvPool(workers=2):
        print("open", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    asyncio.run(main())
