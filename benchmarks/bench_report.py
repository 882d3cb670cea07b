"""What a report of a large run costs: seconds and memory to write it, and how long its page takes to answer.

    python benchmarks/bench_report.py [--rollouts 10000] [--json]

The run is made up of random words, which hardly compress. It is read as from a disk cache. The page is opened in a
headless Chromium, if there is one. Linux only. A missed goal is printed, and is not an error.
"""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from asyncrollout import Group, Observation, Trajectory, Turn, Usage, Verdict
from asyncrollout.trajectories import StopReason
from benchmarks.harness import Row, answer, figure, new_parser, show, tell
from tests.chromium import CHROMIUM, opened
from tests.recorded_runs import write_run

TURNS, TOKENS, GROUP_SIZE = 8, 40, 8
MOST_SECONDS, MOST_MEGABYTES, LONGEST_CLICK = 10.0, 500.0, 2.0
WRITE = """
import sys, time
from pathlib import Path
from asyncrollout.report.page import write_report
began = time.perf_counter()
write_report(Path(sys.argv[1]))
seconds = time.perf_counter() - began
(most,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
print(seconds, int(most.split()[1]) / 1024)
"""


def make_run(directory: Path, rollouts: int) -> Path:
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(20_000)]

    def text(count: int) -> str:
        return " ".join(random.choices(words, k=count))

    def played(group: str, member: int) -> Trajectory:
        turns = [
            Turn(
                Observation(text(30)), text(TOKENS), reward=random.random(), usage=Usage(completion=TOKENS),
                token_ids=np.arange(TOKENS, dtype=np.int32), logprobs=np.zeros(TOKENS, dtype=np.float32),
                policy_seconds=0.5, env_seconds=0.01, info={"actions": ["go"]},
            )
            for _ in range(TURNS)
        ]  # fmt: skip
        messages = [
            {"role": role, "content": content}
            for turn in turns
            for role, content in (("user", turn.observation.text), ("assistant", turn.reply))
        ]
        reward = sum(turn.reward for turn in turns)
        return Trajectory(
            f"{group}.{member}", "maze", 7, turns, reward, StopReason.TERMINATED, member=member, messages=messages,
            seconds=5.0,
        )  # fmt: skip

    names = [f"g{number}" for number in range(rollouts // GROUP_SIZE)]
    groups = [
        Group(name, [played(name, member) for member in range(GROUP_SIZE)], "maze", Verdict(keep=True))
        for name in names
    ]
    return write_run(directory, groups)


async def answer_times(report: Path) -> tuple[float, float, float]:
    """Until the page is there, until a click on a group is answered, and until one on a rollout is."""
    began = time.perf_counter()
    async with opened("about:blank") as page:
        began = time.perf_counter()
        await page.call("Page.navigate", url=report.as_uri())
        await page.wait_for("document.querySelector('.rows tbody tr') !== null")
        there = time.perf_counter() - began
        times = []
        for click, done in (
            ("document.querySelector('.rows tbody tr').click()", "document.querySelector('.member') !== null"),
            ("document.querySelector('.member').click()", "dialog.open"),
        ):
            began = time.perf_counter()
            await page.run(click)
            await page.wait_for(done)
            times.append(time.perf_counter() - began)
    return there, times[0], times[1]


def measured(rollouts: int) -> Iterator[Row]:
    with TemporaryDirectory() as home:
        directory = make_run(Path(home) / "run", rollouts)
        written = subprocess.run(
            [sys.executable, "-c", WRITE, str(directory)], check=True, capture_output=True, text=True
        )
        seconds, megabytes = map(float, written.stdout.split())
        yield Row("report: time", seconds, "s", goal=f"< {MOST_SECONDS:g}", met=seconds < MOST_SECONDS)
        yield Row("report: memory", megabytes, "MB", goal=f"<= {MOST_MEGABYTES:g}", met=megabytes <= MOST_MEGABYTES)
        yield Row("page: size", (directory / "report.html").stat().st_size / 1e6, "MB")
        if CHROMIUM is None:
            tell("no Chromium: apt-get install chromium")
            return
        there, group, rollout = asyncio.run(answer_times(directory / "report.html"))
        yield Row("page: until it is there", there, "s")
        yield Row("page: first click, on a group", group, "s", goal=f"< {LONGEST_CLICK:g}", met=group < LONGEST_CLICK)
        yield Row("page: click on a rollout", rollout, "s", goal=f"< {LONGEST_CLICK:g}", met=rollout < LONGEST_CLICK)


def cells(row: Row) -> tuple[str, ...]:
    return row.what, figure(row.ours, row.unit), row.goal, answer(row.met)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=10_000)
    chosen = parser.parse_args()
    random.seed(0)
    tell(f"{chosen.rollouts:,} rollouts of {TURNS} turns with {TOKENS} tokens each ...")
    show(list(measured(chosen.rollouts)), as_json=chosen.json, head=("what", "measured", "goal", "met"), cells=cells)


if __name__ == "__main__":
    main()
