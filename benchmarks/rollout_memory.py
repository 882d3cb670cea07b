"""What thousands of rollouts in flight at once cost: memory for each, and how late the event loop gets.

    python benchmarks/rollout_memory.py [--rollouts 10000] [--turns 2]

Prints one line of JSON. Best in a process of its own: what others have allocated before would be used again. The policy
replies after a time of its own, lognormal with a mean of 10 s; a rollout has few turns only to keep the run short.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import anyio
import numpy as np
import psutil
import uvloop

import asyncrollout as ar

GROUP_SIZE = 8
MEAN, SIGMA = 10.0, 0.4  # seconds
TICK = 0.01  # seconds


class Monitor:
    """Wakes up every 10 ms, and sees how much later it is than that."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.most_bytes = self.most_open = 0

    async def watch(self, ledger: ar.Ledger) -> None:
        process = psutil.Process()
        while True:
            due = time.perf_counter() + TICK
            await anyio.sleep(TICK)
            self.late.append(time.perf_counter() - due)
            self.most_bytes = max(self.most_bytes, process.memory_info().rss)
            self.most_open = max(self.most_open, len(ledger.open))


async def reply(request: ar.Request) -> str:
    latency = random.Random(request.sampling.seed).lognormvariate(0.0, SIGMA)  # its mean is exp(SIGMA**2 / 2)
    await anyio.sleep(MEAN * latency / np.exp(SIGMA**2 / 2))
    return "go on"


async def measure(rollouts: int, turns: int) -> dict[str, float]:
    spec = ar.EnvSpec(name="talk", factory="benchmarks.rollout_envs:Talk", runs="light")
    monitor = Monitor()
    async with ar.Rollouts(
        spec,
        policy=ar.ScriptedPolicy(reply),
        group_size=GROUP_SIZE,
        limits=ar.Limits(turns=turns),
        max_in_flight=rollouts,
    ) as playing:
        before = psutil.Process().memory_info().rss
        began, cpu = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(monitor.watch, playing.ledger)
            batch = await playing.collect(groups=rollouts // GROUP_SIZE)
            tasks.cancel_scope.cancel()
        finished = [member for group in batch.groups for member in group.completed if len(member.turns) == turns]
    return {
        "rollouts": rollouts,
        "turns": turns,
        "finished": len(finished),
        "most_in_flight": monitor.most_open,
        "seconds": time.perf_counter() - began,
        "cpu_us_per_turn": (time.process_time() - cpu) / (rollouts * turns) * 1e6,
        "kb_per_rollout": (monitor.most_bytes - before) / rollouts / 1024,
        "lag_p99_ms": float(np.quantile(monitor.late, 0.99)) * 1e3,
        "lag_max_ms": max(monitor.late) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    print(json.dumps(uvloop.run(measure(options.rollouts, options.turns))))


if __name__ == "__main__":
    main()
