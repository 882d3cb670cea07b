"""Our drop-ins against themselves without workers, and against the ways they replace; all in one run, on the same work.

    python benchmarks/bench_seeds.py [--rounds N] [--json]

Sokoban: 64 environments in groups of 4, a reset and ten turns of two actions, again and again, as a trainer plays them.
CPU-bound: 128 environments that compute for 2 ms in each step. Meta-RL: the rows of `seeds_metarl.py`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from asyncrollout.dropin.ragen import (
    REGISTERED_ENV_CONFIGS,
    REGISTERED_ENVS,
    EnvConfig,
    EnvStateManager,
    MultiProcessEnvironmentContainer,
)
from benchmarks.harness import Row, new_parser, show, tell
from benchmarks.seed_rivals import ExecutorManager

COUNT, GROUP_SIZE, TURNS = 64, 4, 10
ROOM = {"dim_room": [6, 6], "num_boxes": 1}
WORDS = ["Up", "Down", "Left", "Right"]
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
WORKERS = min(8, CPUS)
COMPUTE = 0.002  # seconds of a step


class Computing:
    """Computes for a while in each step, in seconds of its own CPU time."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def reset(self, seed: int | None = None) -> str:
        return "ready"

    def step(self, action: Any) -> tuple[str, float, bool, dict[str, Any]]:
        end = time.thread_time() + COMPUTE
        while time.thread_time() < end:
            pass
        return "ready", 0.0, False, {}


def compared(what: str, ours: float, rival: float, goal: float) -> Row:
    ratio = rival / ours
    return Row(what, ours, "s", rival, ratio, f">= {goal:g}x", ratio >= goal)


def asked(turn: int) -> list[list[str]]:
    return [[WORDS[(turn + env_id) % 4], WORDS[(turn * 3 + env_id) % 4]] for env_id in range(COUNT)]


def sokoban(parallel: bool) -> EnvStateManager:
    part = {
        "env_groups": COUNT // GROUP_SIZE,
        "group_size": GROUP_SIZE,
        "env_configs": {"tags": ["Room"], "n_groups": [COUNT // GROUP_SIZE]},
    }
    return EnvStateManager(
        {
            "es_manager": {"train": part, "use_multiprocessing": parallel, "max_workers": WORKERS},
            "custom_envs": {"Room": {"env_type": "sokoban", "max_actions_per_traj": 100, "env_config": ROOM}},
        }
    )


def play(manager: EnvStateManager, seed: int) -> None:
    manager.reset(seed=seed)
    for turn in range(TURNS):
        manager.step([{"env_id": env_id, "actions": actions} for env_id, actions in enumerate(asked(turn))])


def play_rival(manager: ExecutorManager, seed: int) -> None:
    manager.reset(seed)
    for turn in range(TURNS):
        manager.step(asked(turn))


def seconds(do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def sokoban_rows(rounds: int) -> list[Row]:
    """One after the other in each round, and each in every place: who comes after another finds the caches cold.

    No seed comes twice.
    """
    parallel, sequential = sokoban(True), sokoban(False)
    rebuilt, kept = (ExecutorManager(COUNT, GROUP_SIZE, WORKERS, ROOM, rebuilt=each) for each in (True, False))
    players: dict[str, Callable[[int], None]] = {
        "parallel": lambda seed: play(parallel, seed),
        "sequential": lambda seed: play(sequential, seed),
        "rebuilt": lambda seed: play_rival(rebuilt, seed),
        "kept": lambda seed: play_rival(kept, seed),
    }
    took: dict[str, list[float]] = {name: [] for name in players}
    names = list(players)
    for number in range(rounds + 1):
        for at in range(len(names)):
            name = names[(at + number) % len(names)]
            player, seed = players[name], 10_000 * names.index(name) + 100 * number
            spent = seconds(lambda: player(seed))  # noqa: B023 (called at once)
            if number:  # the first one starts the workers
                took[name].append(spent)
    for manager in (parallel, sequential, rebuilt, kept):
        manager.close()
    ours = median(took["parallel"])
    work = f"{COUNT} Sokoban rooms, reset and {TURNS} turns, {WORKERS} workers"
    return [
        compared(f"{work} vs ours sequentially", ours, median(took["sequential"]), 1.0),
        compared(f"{work} vs ProcessPoolExecutor, made anew at each reset", ours, median(took["rebuilt"]), 5.0),
        compared(f"{work} vs ProcessPoolExecutor, kept", ours, median(took["kept"]), 5.0),
    ]


def scaling_row(rounds: int) -> Row:
    REGISTERED_ENVS["computing"], REGISTERED_ENV_CONFIGS["computing"] = Computing, EnvConfig
    containers = [
        MultiProcessEnvironmentContainer("computing", 128, 1, 0, workers=CPUS, parallel=parallel)
        for parallel in (True, False)
    ]
    took: list[list[float]] = [[], []]
    for container in containers:
        container.reset()
    for _ in range(rounds):
        for container, spent in zip(containers, took, strict=True):
            spent.append(seconds(lambda: container.step([1] * 128)))  # noqa: B023 (called at once)
    for container in containers:
        container.close()
    what = f"128 envs of {COMPUTE * 1000:g} ms CPU, {CPUS} workers, vs ours sequentially"
    return compared(what, median(took[0]), median(took[1]), 0.7 * CPUS)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=16, help="how often everything is measured; medians are shown")
    chosen = parser.parse_args()
    tell(f"{chosen.rounds} rounds on {CPUS} CPUs ...")
    show([*sokoban_rows(chosen.rounds), scaling_row(chosen.rounds)], as_json=chosen.json)
    meta = [sys.executable, str(Path(__file__).with_name("seeds_metarl.py")), *["--json"] * chosen.json]
    sys.exit(subprocess.run(meta, check=False).returncode)


if __name__ == "__main__":
    main()
