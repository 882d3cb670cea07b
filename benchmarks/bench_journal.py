"""What it costs to record a run: rollouts per second and CPU with a journal and without, and how long a resume reads.

    python benchmarks/bench_journal.py [--part latencies at-once alone reading] [--json]

The runs are those of `bench_rollouts.py`. With and without take turns, each goes first as often as the other, and what
is shown is the median over the pairs. A missed goal is printed, and is not an error.
"""

from __future__ import annotations

import gc
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

import asyncrollout as ar
from asyncrollout.journal.history import read_past
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from benchmarks.harness import answer, chosen_parts, figure, show, tell
from benchmarks.rollout_envs import TURNS

HERE = Path(__file__).resolve().parent
REPETITIONS = {"latencies": 8, "at once": 30, "alone": 20}
SEED = 0
GROUPS, GROUP_SIZE = 32, 8
IN_FLIGHT = GROUPS * GROUP_SIZE
TOKENS = 40
LEAST_RATE = 0.95  # of the rollouts per second without a journal
ROLLOUTS_TO_READ = 10_000

MakePolicy = Callable[[], ar.Policy]


class Row(NamedTuple):
    what: str
    ours: float
    unit: str = ""
    without: float | None = None
    ratio: float | None = None
    half: str = "-"  # where the middle half of the pairs' ratios is
    goal: str = "-"
    met: bool | None = None  # None where there is no goal


class Spent(NamedTuple):
    seconds: float
    cpu: float  # microseconds for each turn

    @property
    def rate(self) -> float:
        return IN_FLIGHT / self.seconds


class Pair(NamedTuple):
    ours: Spent
    without: Spent


@contextmanager
def server_process(*options: str) -> Iterator[str]:
    command = [sys.executable, str(HERE / "rollout_server.py"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def scripted() -> ar.ScriptedPolicy:
    """Replies of 40 tokens, with their ids and logprobs."""
    chance = random.Random(SEED)
    ids = [chance.randrange(150_000) for _ in range(TOKENS)]
    logprobs = [-chance.expovariate(1.0) for _ in range(TOKENS)]
    said = ar.Generation("word " * TOKENS, token_ids=ids, logprobs=logprobs, prompt_ids=ids[::2])
    return ar.ScriptedPolicy(lambda _: said)


async def play(policy: ar.Policy, run_dir: Path | None, *, groups: int = GROUPS, batches: int = 1) -> Spent:
    """What it takes from the first draw until all is delivered, and with a journal written, too."""
    spec = ar.EnvSpec(name="talk", factory="benchmarks.rollout_envs:Talk", runs="light")
    gc.collect()
    async with ar.Rollouts(
        spec, policy=policy, group_size=GROUP_SIZE, seed=SEED, max_in_flight=IN_FLIGHT, run_dir=run_dir
    ) as rollouts:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(batches):
            batch = await rollouts.collect(groups=groups)
            assert all(len(member.turns) == TURNS for group in batch.groups for member in group.trajectories)
        turns = batches * groups * GROUP_SIZE * TURNS
        return Spent(time.perf_counter() - began, (time.process_time() - cpu) / turns * 1e6)


async def compare(name: str, make_policy: MakePolicy) -> list[Pair]:
    pairs = []
    for repetition in range(REPETITIONS[name]):
        with TemporaryDirectory() as directory:
            run_dirs = [Path(directory) / "run", None]
            order = run_dirs if repetition % 2 else run_dirs[::-1]
            spent = {run_dir: await play(make_policy(), run_dir) for run_dir in order}
            pairs.append(Pair(*(spent[run_dir] for run_dir in run_dirs)))
        ours, without = pairs[-1]
        tell(
            f"{name}: {ours.rate:.0f} rollouts/s, {ours.cpu:.0f} us per turn; without a journal {without.rate:.0f}, "
            f"{without.cpu:.0f} us"
        )
    return pairs


def row_of(what: str, unit: str, pairs: list[Pair], measure: Callable[[Spent], float]) -> Row:
    ours, without = ([measure(spent) for spent in side] for side in zip(*pairs, strict=True))
    ratios = [mine / other for mine, other in zip(ours, without, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    medians = statistics.median(ours), unit, statistics.median(without)
    return Row(what, *medians, ratio, f"{low:.2f} to {high:.2f}")


async def against_server(name: str, what: str, *options: str) -> list[Row]:
    with server_process(*options) as url:
        pairs = await compare(name, lambda: ar.OpenAIPolicy(url, "m", concurrency=IN_FLIGHT, kind="openai"))
    what = f"{IN_FLIGHT} rollouts of {TURNS} turns, replies {what}"
    rates = row_of(what, "rollouts/s", pairs, lambda spent: spent.rate)
    assert rates.ratio is not None
    return [
        rates._replace(goal=f">= {LEAST_RATE}x", met=rates.ratio >= LEAST_RATE),
        row_of(f"{what}: CPU per turn", "us", pairs, lambda spent: spent.cpu),
    ]


async def with_latencies() -> list[Row]:
    return await against_server("latencies", "after 0.1 s on average")


async def at_once() -> list[Row]:
    return await against_server("at once", "at once", "--at-once")


async def alone() -> list[Row]:
    pairs = await compare("alone", scripted)
    cost = statistics.median(pair.ours.cpu - pair.without.cpu for pair in pairs)
    with TemporaryDirectory() as directory:
        await play(scripted(), Path(directory) / "run")
        sizes = [(Path(directory) / "run" / name).stat().st_size for name in (JOURNAL, TRAJECTORIES)]
    journal, trajectories = (size / IN_FLIGHT / TURNS for size in sizes)
    what = f"a turn of {TOKENS} tokens without HTTP"
    return [
        row_of(f"{what}: CPU", "us", pairs, lambda spent: spent.cpu),
        Row(f"{what}: CPU of its journal", cost, "us"),
        Row(f"{what}: written to {JOURNAL}", journal, "bytes"),
        Row(f"{what}: written to {TRAJECTORIES}", trajectories, "bytes"),
    ]


async def reading() -> list[Row]:
    batches = 50
    with TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        tell(f"reading: writing {ROLLOUTS_TO_READ:,} rollouts ...")
        await play(scripted(), run_dir, groups=ROLLOUTS_TO_READ // GROUP_SIZE // batches, batches=batches)
        what = f"read a run of {ROLLOUTS_TO_READ:,} rollouts of {TURNS} turns of {TOKENS} tokens"
        rows = []
        for batch, where in ((batches, "its end"), (0, "its first batch")):
            tell(f"reading: to resume at {where} ...")
            began = time.perf_counter()
            past = read_past(run_dir, batch)
            rows.append(Row(f"{what}, to resume at {where}", time.perf_counter() - began, "s"))
            assert len(past.redelivered) == batches - batch
            del past
    return rows


PARTS = {"latencies": with_latencies, "at-once": at_once, "alone": alone, "reading": reading}

HEAD = ("what", "ours", "without", "ratio", "half of them", "goal", "met")


def cells(row: Row) -> tuple[str, ...]:
    ratio = "-" if row.ratio is None else f"{row.ratio:.3f}x"
    compared = figure(row.ours, row.unit), figure(row.without, row.unit)
    return row.what, *compared, ratio, row.half, row.goal, answer(row.met)


def main() -> None:
    chosen = chosen_parts(__doc__, PARTS)
    rows = [row for name in chosen.parts for row in uvloop.run(PARTS[name]())]
    show(rows, as_json=chosen.json, head=HEAD, cells=cells)


if __name__ == "__main__":
    main()
