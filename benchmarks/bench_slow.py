"""Envs that take seconds to build, to reset or to step: how long a pool takes for all of them, against the ideal.

    python benchmarks/bench_slow.py [--only builds resets steps mixed] [--json]

Each env is opened and plays one episode, all at once, on four workers. The envs sleep, so that other processes hardly
matter. The ideal is a bound that no schedule can beat: all work shared evenly by the workers, or the longest env by
itself. Nobody knows beforehand how long an env will take, and one that was built stays where it is, unless it is
quicker to build it again elsewhere: that is what the second column counts. A missed goal is printed, and is not an
error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks.slow_envs`, in workers, too

if __name__ == "__main__":
    import time
    from tempfile import TemporaryDirectory

    import anyio
    import numpy as np
    import uvloop

    import asyncrollout as ar
    from benchmarks.harness import chosen_parts, show

WORKERS = 4
GOAL = 1.15


class Work(NamedTuple):
    """Seconds that one env takes."""

    build: float
    reset: float
    steps: tuple[float, ...]

    @property
    def total(self) -> float:
        return self.build + self.reset + sum(self.steps)


class Row(NamedTuple):
    what: str
    envs: int
    made: int
    seconds: float
    ideal: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.ideal


def works(kind: str) -> list[Work]:
    """The same in every run."""
    rng = np.random.default_rng(7)

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    match kind:
        case "builds":
            return [Work(between(0.5, 20.0), 0.01, (0.01,) * 4) for _ in range(32)]
        case "resets":
            return [Work(0.05, between(0.3, 5.0), (0.01,) * 4) for _ in range(32)]
        case "steps":
            return [Work(0.05, 0.05, tuple(between(0.05, 2.0) for _ in range(6))) for _ in range(24)]
        case _:
            quick = [Work(0.01, 0.01, (0.01,) * 10) for _ in range(16)]
            slow = [
                Work(between(0.5, 20.0), between(0.1, 3.0), tuple(between(0.02, 1.0) for _ in range(5)))
                for _ in range(32)
            ]
            return [work for pair in zip(slow[:16], quick, strict=True) for work in pair] + slow[16:]


async def measure(kind: str, directory: Path) -> Row:
    envs = works(kind)
    built = directory / kind
    built.touch()
    async with ar.EnvPool(workers=WORKERS) as pool:
        began = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for work in envs:
                tasks.start_soon(play, pool, built, work)
        seconds = time.monotonic() - began
    total, longest = sum(work.total for work in envs), max(work.total for work in envs)
    return Row(kind, len(envs), len(built.read_text().splitlines()), seconds, max(total / WORKERS, longest))


async def play(pool: ar.EnvPool, built: Path, work: Work) -> None:
    kwargs = {"built": str(built), **work._asdict()}
    async with pool.open("benchmarks.slow_envs:Slow", **kwargs) as env:
        outcome = await env.reset(seed=1)
        while not outcome.done:
            outcome = await env.step(0)


def cells(row: Row) -> list[str]:
    spent = f"{row.seconds:.1f}", f"{row.ideal:.1f}", f"{row.ratio:.2f}x"
    return [row.what, str(row.envs), str(row.made), *spent, f"<= {GOAL}x", "" if row.ratio <= GOAL else "MISSED"]


async def measure_all(kinds: list[str]) -> list[Row]:
    with TemporaryDirectory() as directory:
        return [await measure(kind, Path(directory)) for kind in kinds]


def main() -> None:
    chosen = chosen_parts(__doc__, ["builds", "resets", "steps", "mixed"], "--only")
    rows = uvloop.run(measure_all(chosen.parts))
    head = ["slow", "envs", "made", "seconds", "ideal", "ratio", "goal", ""]
    show(rows, as_json=chosen.json, head=head, cells=cells, values=lambda row: {**row._asdict(), "ratio": row.ratio})


if __name__ == "__main__":
    main()
