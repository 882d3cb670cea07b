"""Opens a pool, lets one env spin and one start a child, then says what its processes are; ends when it is killed."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

import anyio
import uvloop

from asyncrollout import EnvPool
from tests.scripts.processes import private_directories, until


async def main() -> None:
    message = Path(tempfile.mkdtemp(dir=sys.argv[2]))
    async with EnvPool(workers=2) as pool, anyio.create_task_group() as tasks:
        spinning = await pool.open("tests.envs.fault:Faulty", worker=0)
        await spinning.reset(seed=1)
        tasks.start_soon(spinning.step, ["tell", str(message / "spinning"), "spin"])
        parent = await pool.open("tests.envs.fault:Faulty", worker=1)
        await parent.reset(seed=1)
        await parent.step(["sleep child", str(message / "child")])
        await until(lambda: (message / "spinning").exists())
        workers = [worker.pid for worker in pool.stats().workers]
        directories = [str(path) for path in private_directories(os.getpid())]
        child = int((message / "child").read_text())
        print(json.dumps({"workers": workers, "child": child, "directories": directories}), flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    factory = uvloop.new_event_loop if sys.argv[1] == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
