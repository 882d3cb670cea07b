"""A synchronous program that closes nothing, ended as its argument says."""

import sys
import threading

from asyncrollout import EnvPool
from asyncrollout.dropin.portal import Opened, run

begun = threading.Event()


async def count(pool: EnvPool) -> str:
    env = await pool.open("tests.envs.tiny:Counter")
    await env.reset(seed=40)
    result: str = (await env.step(2)).observation
    return result.rstrip(".")


async def wait_in_step(pool: EnvPool) -> None:
    async with pool.open("tests.envs.tiny:Slow", seconds=3600) as env:
        await env.reset(seed=1)
        print("waiting", flush=True)
        begun.set()
        await env.step(0)


def main(how: str) -> None:
    opened = Opened(EnvPool(workers=2, step_timeout=3600))
    print("answer", opened.run(count, opened.value), flush=True)
    if how == "raise":
        raise RuntimeError("a user's mistake")
    if how == "thread":  # which is still in a call when the main thread ends
        threading.Thread(target=lambda: opened.run(wait_in_step, opened.value), daemon=True).start()
        begun.wait(30)
    if how == "interrupt":
        try:
            opened.run(wait_in_step, opened.value)
        except KeyboardInterrupt:
            print("again", opened.run(count, opened.value), run(count, opened.value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
