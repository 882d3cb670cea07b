"""What the way over a network costs a step: a remote pool, and plain HTTP requests, against a pool here, in one run.

    python benchmarks/bench_service.py [--envs 1 16 64] [--json]

The server is `asyncrollout serve` in a process of its own, on loopback, with as many workers as the pool here. The env
does next to nothing, and shows a text of 200 characters. "By requests" is one request for each step, as a plain client
of `/step/{id}` makes them; "by rounds" is one request of `/batch/step` for all envs, which is lock-step: the slowest
env of a round holds up all others. The ways take turns, and what is shown is the median.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiohttp
import anyio
import uvloop

from asyncrollout import EnvPool, RemoteEnvPool
from benchmarks.harness import new_parser, show

ROOT = Path(__file__).resolve().parent.parent
ENV = "benchmarks.pool_envs:Trivial"
WORKERS = 2
ROUNDS = 5
SECONDS = 0.6
REPLY = "<think>I go on.</think><answer>Right</answer>"

Play = Callable[[float], Awaitable[int]]
"""Steps all envs for so many seconds; how many steps that were."""


class Row(NamedTuple):
    envs: int
    way: str
    steps_per_second: float
    us_per_step: float  # of one env, from its action to its outcome
    us_added: float  # to that of a pool here
    of_here: float  # steps a second


@contextmanager
def server() -> Iterator[str]:
    command = [sys.executable, "-m", "asyncrollout", "serve", "--json", "--port", "0", "--workers", str(WORKERS)]
    command += ["--allow-import", "--max-envs", "1000", "--max-requests", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


async def each(envs: int, step: Callable[[int], Awaitable[Any]], seconds: float) -> int:
    """All envs, each at its own pace."""
    done = 0
    end = time.perf_counter() + seconds

    async def play(number: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await step(number)
            done += 1

    async with anyio.create_task_group() as tasks:
        for number in range(envs):
            tasks.start_soon(play, number)
    return done


@asynccontextmanager
async def pooled(pool: EnvPool, envs: int) -> AsyncIterator[Play]:
    async with pool:
        handles = [await pool.open(ENV) for _ in range(envs)]
        await pool.reset_many(handles, [0] * envs)

        async def play(seconds: float) -> int:
            return await each(envs, lambda number: handles[number].step(REPLY), seconds)

        yield play


@asynccontextmanager
async def requested(url: str, envs: int) -> AsyncIterator[tuple[Play, Play]]:
    """By requests and by rounds."""
    ids = [f"env_{number}" for number in range(envs)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(path: str, body: Any) -> Any:
            async with session.post(url + path, json=body) as response:
                reported = await response.json()
            assert response.status == 200, reported
            return reported

        await post("/environments", {"ids2configs": {env_id: {"env_name": ENV} for env_id in ids}})
        await post("/batch/reset", {"ids2seeds": dict.fromkeys(ids, 0)})

        async def by_requests(seconds: float) -> int:
            return await each(envs, lambda number: post(f"/step/{ids[number]}", {"action": REPLY}), seconds)

        async def by_rounds(seconds: float) -> int:
            end, rounds = time.perf_counter() + seconds, 0
            while time.perf_counter() < end:
                await post("/batch/step", {"ids2actions": dict.fromkeys(ids, REPLY)})
                rounds += 1
            return rounds * envs

        yield by_requests, by_rounds
        await post("/batch/close", {"env_ids": ids})


async def measure(url: str, envs: int) -> list[Row]:
    print(f"{envs} envs ...", file=sys.stderr, flush=True)
    async with (
        pooled(EnvPool(WORKERS), envs) as here,
        pooled(RemoteEnvPool(url), envs) as remote,
        requested(url, envs) as (by_requests, by_rounds),
    ):
        ways = {"a pool here": here, "a remote pool": remote, "by requests": by_requests, "by rounds": by_rounds}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, play in ways.items():
                began = time.perf_counter()
                steps = await play(SECONDS)
                rates[way].append(steps / (time.perf_counter() - began))
    rate = {way: statistics.median(times) for way, times in rates.items()}
    latency = {way: envs / per_second * 1e6 for way, per_second in rate.items()}
    first = next(iter(ways))
    return [
        Row(envs, way, rate[way], latency[way], latency[way] - latency[first], rate[way] / rate[first]) for way in ways
    ]


def cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.envs),
        row.way,
        f"{row.steps_per_second:,.0f}",
        f"{row.us_per_step:,.0f}",
        f"{row.us_added:,.0f}",
        f"{row.of_here:.3f}x",
    )


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--envs", nargs="+", type=int, default=[1, 16, 64], metavar="N")
    chosen = parser.parse_args()
    with server() as url:
        rows = [row for envs in chosen.envs for row in uvloop.run(measure(url, envs))]
    head = ("envs", "way", "steps/s", "us from action to outcome", "us more than here", "of here")
    show(rows, as_json=chosen.json, head=head, cells=cells)


if __name__ == "__main__":
    main()
