"""Plays a run that is recorded, up to its third turn, and says so; ends when it is killed."""

import asyncio
import sys

import anyio

import asyncrollout as ar
from tests.envs.video import ON_WORKER, PAINTER, TURNS


async def main(directory: str, way: str) -> None:
    waiting: set[str] = set()

    async def stop_at_third(request: ar.Request) -> str:
        if request.turn == 3:
            waiting.add(request.session)
            if len(waiting) == 4:
                print("four wait", flush=True)
            await anyio.sleep_forever()
        return TURNS[request.turn]

    async with ar.Rollouts(
        PAINTER if way == "loop" else ON_WORKER,
        policy=ar.ScriptedPolicy(stop_at_third),
        group_size=2,
        limits=ar.Limits(turns=4),
        run_dir=directory,
        record=True,
    ) as rollouts:
        await rollouts.collect(groups=2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
