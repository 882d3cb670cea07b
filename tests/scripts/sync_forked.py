"""A synchronous program that forks: the child gets an error, and works with what it opens; the parent continues."""

import os
import sys
import warnings

from asyncrollout import EnvPool, UsageError
from asyncrollout.dropin.portal import Opened


async def count(pool: EnvPool, seed: int) -> str:
    async with pool.open("tests.envs.tiny:Counter") as env:
        await env.reset(seed=seed)
        result: str = (await env.step(2)).observation
        return result.rstrip(".")


def play_in_child(parents: "Opened[EnvPool]") -> None:
    try:
        parents.run(count, parents.value, 1)
    except UsageError as error:
        print("refused:", error)
    parents.close()  # does nothing here
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        own = Opened(EnvPool(workers=1))
    print("warned:", [str(warning.message) for warning in raised if warning.category is RuntimeWarning])
    print("child", own.run(count, own.value, 40), flush=True)


def main() -> None:
    opened = Opened(EnvPool(workers=1))
    print("parent", opened.run(count, opened.value, 1), flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: this process has threads
        child = os.fork()
    if not child:
        play_in_child(opened)
        sys.exit(7)  # not closed: the exit does that, as in the parent
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status))
    print("parent", opened.run(count, opened.value, 2), flush=True)


if __name__ == "__main__":
    main()
