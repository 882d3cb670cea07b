"""Episodes of several environments on two worker processes, one of which is killed on the way.

Run it with `make demo`. Afterwards everything is played again without worker processes, and compared.
"""

import logging
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvloop
from rich.console import Console
from rich.live import Live
from rich.table import Table

import asyncrollout as ar

ENVS = ("gymnasium:CartPole-v1", "gymnasium:Blackjack-v1", "gymnasium:FrozenLake-v1", "guess_env:Guess")
COPIES = 12
EPISODES = 100
WORKERS = 2

Transcript = list[tuple[Any, ...]]


class Progress:
    """What has been played so far, by env."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.episodes: Counter[str] = Counter()
        self.rewards: defaultdict[str, float] = defaultdict(float)
        self.third_played = anyio.Event()
        self.killed = "nobody was killed yet"

    def count_episode(self, name: str) -> None:
        self.episodes[name] += 1
        if 3 * self.episodes.total() >= len(ENVS) * COPIES * EPISODES:
            self.third_played.set()


async def play(pool: ar.EnvPool, name: str, copy: int, progress: Progress, out: dict[str, Transcript]) -> None:
    """One env's episodes, at its own pace: seeded resets, seeded random actions."""
    transcript: Transcript = []
    async with pool.open(name) as env:
        actions = 9 if name.endswith("Guess") else int((await env.call("action_space", keep=False)).n)
        for episode in range(EPISODES):
            choices = random.Random(f"{name} {copy} {episode}")
            outcome = await env.reset(seed=1000 * copy + episode)
            while not outcome.done:
                outcome = await env.step(choices.randrange(actions))
                transcript.append((repr(outcome.observation), outcome.reward, outcome.terminated, outcome.truncated))
                progress.steps[name] += 1
                progress.rewards[name] += outcome.reward
            progress.count_episode(name)
    out[f"{name} {copy}"] = transcript


async def play_all(pool: ar.EnvPool, progress: Progress) -> dict[str, Transcript]:
    transcripts: dict[str, Transcript] = {}
    async with anyio.create_task_group() as tasks:
        for name in ENVS:
            for copy in range(COPIES):
                tasks.start_soon(play, pool, name, copy, progress, transcripts)
    return transcripts


async def kill_one_worker(pool: ar.EnvPool, progress: Progress) -> None:
    """kill -9, in the middle of everything."""
    await progress.third_played.wait()
    victim = pool.stats().workers[0].pid
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
        progress.killed = f"killed worker 0 (pid {victim})"


def table(pool: ar.EnvPool, progress: Progress, seconds: float) -> Table:
    stats = pool.stats()
    grid = Table(title=f"{WORKERS} workers, {len(ENVS) * COPIES} envs, {seconds:.1f} s", title_justify="left")
    for column in ("env", "episodes", "steps", "mean reward"):
        grid.add_column(column, justify="left" if column == "env" else "right")
    for name in ENVS:
        played = progress.episodes[name]
        mean = f"{progress.rewards[name] / played:.2f}" if played else "-"
        grid.add_row(name, f"{played}/{COPIES * EPISODES}", f"{progress.steps[name]:,}", mean)
    grid.caption = f"{progress.killed}; workers replaced: {stats.restarts}, envs restored: {stats.restored}"
    grid.caption_justify = "left"
    return grid


@asynccontextmanager
async def shown(pool: ar.EnvPool, progress: Progress, console: Console) -> AsyncIterator[None]:
    """A live table while the body runs."""
    start = time.perf_counter()
    with Live(console=console, auto_refresh=False) as live:

        async def refresh() -> None:
            while True:
                live.update(table(pool, progress, time.perf_counter() - start), refresh=True)
                await anyio.sleep(0.1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refresh)
            yield
            tasks.cancel_scope.cancel()
        live.update(table(pool, progress, time.perf_counter() - start), refresh=True)


async def main() -> None:
    logging.getLogger("asyncrollout").setLevel(logging.ERROR)  # the table shows what happens to workers
    console = Console()
    console.print(f"Playing on {WORKERS} worker processes; one of them is about to be killed with SIGKILL.")
    progress = Progress()
    async with ar.EnvPool(workers=WORKERS) as pool, shown(pool, progress, console), anyio.create_task_group() as tasks:
        tasks.start_soon(kill_one_worker, pool, progress)
        played = await play_all(pool, progress)
    console.print("\nPlaying the same again in this process alone, to compare ...")
    async with ar.EnvPool(backend="inline") as pool:
        alone = await play_all(pool, Progress())
    same = sum(played[key] == alone[key] for key in alone)
    console.print(f"[bold]{same} of {len(alone)} envs have the same transcript, step by step.[/bold]")
    if same != len(alone):
        raise SystemExit(1)


if __name__ == "__main__":
    uvloop.run(main())
