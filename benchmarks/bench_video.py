"""What it costs to record envs: steps per second with a camera and without, and how late the event loop is meanwhile.

    python benchmarks/bench_video.py [--part workers loop] [--json]

16 envs of 128 x 128 pixels, an episode of 300 steps each, on as many workers as there are CPUs, or on the event loop.
With and without take turns, and what is shown is the median over the pairs. Encoders start within the time of the
steps; files are made whole after it, as in a run. CPU time is that of all processes, from the first to the last, and
does not depend on what else the machine does. A missed goal is printed, and is not an error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks.video_envs`, in workers, too

if __name__ == "__main__":
    import os
    import resource
    import statistics
    import time
    from tempfile import TemporaryDirectory

    import anyio
    import numpy as np
    import uvloop

    import asyncrollout as ar
    from asyncrollout.video import VideoRecorder
    from benchmarks.harness import answer, chosen_parts, figure, show, tell

ENVS = 16
STEPS = 300
PAIRS = 4
TICK = 0.005
PAUSE = 0.02  # of a policy, on the loop
MOST_COST = 15.0
MOST_LAG = 20.0


class Row(NamedTuple):
    what: str
    ours: float
    unit: str = ""
    without: float | None = None
    cost: float | None = None
    goal: str = "-"
    met: bool | None = None  # None where there is no goal


class Played(NamedTuple):
    rate: float
    """Steps per second."""
    late: float
    """Milliseconds: the 99th percentile of how late the loop was."""
    cpu: float
    """Milliseconds for each step, of all processes, their start and end included."""


async def watch(late: list[float]) -> None:
    while True:
        due = time.perf_counter() + TICK
        await anyio.sleep(TICK)
        late.append(time.perf_counter() - due)


async def play(pool: ar.EnvPool, spec: ar.EnvSpec, recorder: VideoRecorder | None, pause: float) -> Played:
    """All envs at once, each at its own pace."""
    late: list[float] = []
    done = 0.0

    async def one(number: int) -> None:
        nonlocal done
        record = None if recorder is None else recorder.record(f"env{number}")
        async with pool.open(spec, record=record) as env:
            await env.reset(seed=number)
            for _ in range(STEPS):
                if pause:
                    await anyio.sleep(pause)
                await env.step("go")
            done = time.perf_counter()

    began = time.perf_counter()
    async with anyio.create_task_group() as watching:
        watching.start_soon(watch, late)
        async with anyio.create_task_group() as playing:
            for number in range(ENVS):
                playing.start_soon(one, number)
        watching.cancel_scope.cancel()
    return Played(ENVS * STEPS / (done - began), float(np.quantile(late, 0.99)) * 1e3, 0.0)


async def measure(spec: ar.EnvSpec, workers: int, pause: float = 0.0) -> tuple[list[Played], list[Played]]:
    """The same with a camera and without, in turn; each in a pool of its own."""
    recorded: list[Played] = []
    plain: list[Played] = []
    for number in range(2 * PAIRS):
        is_recorded = (number % 4) in (0, 3)  # each goes first as often as the other
        before = _cpu()
        with TemporaryDirectory() as directory:
            async with ar.EnvPool(workers) if workers else ar.EnvPool(backend="inline") as pool:
                if is_recorded:
                    async with VideoRecorder(directory) as recorder:
                        played = await play(pool, spec, recorder, pause)
                    assert recorder.finished == ENVS, "some were not recorded"
                else:
                    played = await play(pool, spec, None, pause)
        played = played._replace(cpu=(_cpu() - before) / (ENVS * STEPS) * 1e3)
        (recorded if is_recorded else plain).append(played)
        how = "recorded" if is_recorded else "not recorded"
        tell(f"{how}: {played.rate:,.0f} steps/s, {played.cpu:.2f} ms CPU each, lag {played.late:.1f} ms")
    return recorded, plain


def _cpu() -> float:
    """Seconds, of this process and of all that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def rows(what: str, recorded: list[Played], plain: list[Played], *, has_goal: bool) -> list[Row]:
    pairs = list(zip(recorded, plain, strict=True))
    cost = 100 * statistics.median(1 - mine.rate / other.rate for mine, other in pairs)
    share = 100 * statistics.median(1 - other.cpu / mine.cpu for mine, other in pairs)
    goal = f"<= {MOST_COST:g} %" if has_goal else "-"

    def row(
        name: str, field: str, unit: str, cost: float | None = None, goal: str = "-", met: bool | None = None
    ) -> Row:
        mine, other = (statistics.median(getattr(played, field) for played in side) for side in (recorded, plain))
        return Row(f"{what}: {name}", mine, unit, other, cost, goal, met)

    late = statistics.median(played.late for played in recorded)
    return [
        row("steps", "rate", "steps/s", cost=cost, goal=goal, met=cost <= MOST_COST if has_goal else None),
        row("CPU for each step", "cpu", "ms", cost=share, goal=goal, met=share <= MOST_COST if has_goal else None),
        row("the loop's lag, p99", "late", "ms", goal=f"< {MOST_LAG:g} ms", met=late < MOST_LAG),
    ]


async def on_workers() -> list[Row]:
    found = []
    workers = len(os.sched_getaffinity(0))
    for seconds in (0.004, 0.001):
        spec = ar.EnvSpec(name="recorded", factory="benchmarks.video_envs:Recorded", kwargs={"seconds": seconds})
        recorded, plain = await measure(spec, workers)
        what = f"{ENVS} envs of {seconds * 1e3:g} ms, {workers} workers"
        found += rows(what, recorded, plain, has_goal=seconds == 0.004)
    return found


async def on_loop() -> list[Row]:
    spec = ar.EnvSpec(name="recorded", factory="benchmarks.video_envs:Recorded", kwargs={"seconds": 0.0}, runs="light")
    recorded, plain = await measure(spec, 0, PAUSE)
    return rows(f"{ENVS} envs on the loop, a step each {PAUSE * 1e3:g} ms", recorded, plain, has_goal=False)


PARTS = {"workers": on_workers, "loop": on_loop} if __name__ == "__main__" else {}
HEAD = ("what", "recorded", "not recorded", "cost", "goal", "met")


def cells(row: Row) -> tuple[str, ...]:
    cost = "-" if row.cost is None else f"{row.cost:.1f} %"
    return row.what, figure(row.ours, row.unit), figure(row.without, row.unit), cost, row.goal, answer(row.met)


def main() -> None:
    chosen = chosen_parts(__doc__, PARTS)
    rows = [row for name in chosen.parts for row in uvloop.run(PARTS[name]())]
    show(rows, as_json=chosen.json, head=HEAD, cells=cells)


if __name__ == "__main__":
    main()
