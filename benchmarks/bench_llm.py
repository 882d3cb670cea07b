"""What a call to an LLM server costs its client: CPU per call, side by side, against the same server on loopback.

    python benchmarks/bench_llm.py [--in-flight 64 512 2000] [--json]

The server runs in a process of its own and answers after 50 ms. Rivals: the openai package (`pip install openai`), and
a bare aiohttp client that only posts and decodes. Then, two trials of what may go wrong: one of two servers is killed,
and calls are given up at random.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiohttp
import anyio
import msgspec
import numpy as np
import psutil
import uvloop

try:
    import openai
except ImportError:
    openai = None

from asyncrollout import OpenAIPolicy, ProviderError, Request, Sampling
from benchmarks.harness import new_parser, show, tell

LATENCY = 0.05
ROUNDS = 3
FEWEST_CALLS = 1024
MESSAGES = [{"role": "system", "content": "You are at a lake. " * 20}, {"role": "user", "content": "Where do you go?"}]
BODY = {"model": "m", "messages": MESSAGES, "max_tokens": 32, "logprobs": True}

Call = Callable[[], Awaitable[Any]]


class Row(NamedTuple):
    in_flight: int
    client: str
    cpu_ms: float  # per call
    calls_per_second: float


@contextmanager
def server_process() -> Any:
    script = Path(__file__).resolve().parent.parent / "tests" / "llm_server.py"
    command = [sys.executable, str(script), "--port", "0", "--kind", "openai", "--latency", str(LATENCY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.terminate()


async def spend(call: Call, in_flight: int) -> tuple[float, float]:
    """CPU seconds and seconds for each call, with so many at a time."""
    calls = max(in_flight, FEWEST_CALLS)
    left = iter(range(calls))

    async def place() -> None:
        for _ in left:
            await call()

    began, cpu = time.perf_counter(), time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(in_flight):
            tasks.start_soon(place)
    return (time.process_time() - cpu) / calls, (time.perf_counter() - began) / calls


async def clients(url: str, in_flight: int, stack: AsyncExitStack) -> dict[str, Call]:
    policy = await stack.enter_async_context(OpenAIPolicy(url, "m", api_key="x", concurrency=in_flight, kind="openai"))
    request = Request(MESSAGES, sampling=Sampling(max_tokens=32))
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    body = msgspec.json.encode(BODY)
    headers = {"Content-Type": "application/json"}

    async def bare() -> Any:
        async with session.post(f"{url}/chat/completions", data=body, headers=headers) as response:
            return msgspec.json.decode(await response.read())

    found: dict[str, Call] = {"asyncrollout": lambda: policy.generate(request), "bare aiohttp": bare}
    if openai is None:
        print("openai is not installed, and left out: pip install openai", file=sys.stderr)
        return found
    sdk = await stack.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0, timeout=600))
    sdk_options: Any = {"model": "m", "messages": MESSAGES, "max_tokens": 32, "logprobs": True}
    found["openai"] = lambda: sdk.chat.completions.create(**sdk_options)
    return found


async def measure(url: str, in_flight: int) -> list[Row]:
    async with AsyncExitStack() as stack:
        calls = await clients(url, in_flight, stack)
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                print(f"{in_flight} in flight, {name} ...", file=sys.stderr, flush=True)
                spent[name].append(await spend(call, in_flight))
    return [
        Row(
            in_flight,
            name,
            statistics.median(cpu for cpu, _ in times) * 1e3,
            1 / statistics.median(wall for _, wall in times),
        )
        for name, times in spent.items()
    ]


async def lose_one(in_flight: int, seconds: float = 3.0) -> dict[str, float]:
    """Calls per second of one server, of two from a second after one was killed, and how many failed."""
    done: list[float] = []
    failed = 0
    over = False

    async def place(policy: OpenAIPolicy, number: int) -> None:
        nonlocal failed
        turn = 0
        while not over:
            turn += 1
            try:
                await policy.generate(
                    Request(MESSAGES, sampling=Sampling(max_tokens=32), session=f"{number}-{turn // 8}")
                )
            except ProviderError:
                failed += 1
            done.append(time.perf_counter())

    async def rate(urls: list[str], disturb: Callable[[], None]) -> float:
        nonlocal over
        over = False
        async with (
            OpenAIPolicy(urls, "m", api_key="x", concurrency=in_flight // 2, kind="openai") as policy,
            anyio.create_task_group() as tasks,
        ):
            for number in range(in_flight):
                tasks.start_soon(place, policy, number)
            await anyio.sleep(1.5)
            disturb()
            disturbed = time.perf_counter()
            await anyio.sleep(1.0 + seconds)
            over = True
        return sum(disturbed + 1.0 <= at < disturbed + 1.0 + seconds for at in done) / seconds

    with server_process() as (staying, _), server_process() as (leaving, process):
        alone = await rate([staying], lambda: None)
        after = await rate([leaving, staying], process.kill)
    return {"one server": alone, "after the loss of one of two": after, "ratio": after / alone, "failed": failed}


async def give_up(url: str, calls: int = 10_000, at_once: int = 200) -> dict[str, float]:
    """What is left of calls that were given up after a random time: open files, memory, and calls that still work."""
    process = psutil.Process()
    rng = np.random.default_rng(0)
    left = iter(range(calls))

    async def place(policy: OpenAIPolicy) -> None:
        for _ in left:
            with anyio.move_on_after(rng.uniform(0, 2 * LATENCY)):
                await policy.generate(Request(MESSAGES))

    async def serve(policy: OpenAIPolicy) -> int:
        async with anyio.create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(policy.generate, Request(MESSAGES))
        return process.num_fds()

    async with OpenAIPolicy(url, "m", api_key="x", concurrency=at_once, kind="openai") as policy:
        fds, memory = await serve(policy), process.memory_info().rss
        async with anyio.create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(place, policy)
        after = await serve(policy)
        grown = (process.memory_info().rss - memory) / 2**20
    return {"calls": calls, "open files before": fds, "after": after, "MB grown": grown}


def cells(row: Row, ours: float) -> tuple[str, ...]:
    ratio = f"{row.cpu_ms / ours:.2f}x"
    return str(row.in_flight), row.client, f"{row.cpu_ms:.3f}", ratio, f"{row.calls_per_second:,.0f}"


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--in-flight", nargs="+", type=int, default=[64, 512, 2000], metavar="N")
    chosen = parser.parse_args()
    with server_process() as (url, _), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = [row for in_flight in chosen.in_flight for row in runner.run(measure(url, in_flight))]
        tell("calls given up ...")
        given_up = runner.run(give_up(url))
        tell("a server killed ...")
        lost = runner.run(lose_one(64))
    ours = {row.in_flight: row.cpu_ms for row in rows if row.client == "asyncrollout"}
    head = ("in flight", "client", "CPU ms per call", "of ours", "calls/s")
    show(rows, as_json=chosen.json, head=head, cells=lambda row: cells(row, ours[row.in_flight]))
    for title, trial in (("Calls given up at random", given_up), ("One of two servers killed, calls/s", lost)):
        text = f"\n{title}: " + ", ".join(f"{name} {value:,.4g}" for name, value in trial.items())
        print(json.dumps(trial) if chosen.json else text)


if __name__ == "__main__":
    main()
