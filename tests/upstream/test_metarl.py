"""pomdp-baselines and the fork of it that collects in parallel, with only their import lines changed.

They run in a Python of their own, with torch and what else they need (`make metarl-venv`). Two things are not theirs:

- Python 3.10 moved `collections.Set`, which their logger imports: it is put back.
- Gym is version 0.26, which they import, but whose envs they would not understand; all envs here are ours. Their own
  envs need Gym 0.21 (those with MuJoCo: mujoco-py, too), and are not run.
"""

import csv
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = os.environ.get("ASYNCROLLOUT_METARL_PYTHON", str(ROOT / ".venv-metarl" / "bin" / "python"))

IMPORTS = {
    "from envs.meta.make_env import": "from asyncrollout.dropin.metarl import",
    "from envs.parallel_env_manager import": "from asyncrollout.dropin.metarl import",
}
"""The only lines that change."""

STARTUP = "import collections, collections.abc\ncollections.Set = collections.abc.Set\n"

needs_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs make metarl-venv")
pytestmark = needs_python

SAC = {"entropy_alpha": 0.2, "automatic_entropy_tuning": True, "alpha_lr": 0.0003}
LAYERS: dict[str, Any] = {"dqn_layers": [32], "policy_layers": [32], "lr": 0.001, "gamma": 0.9, "tau": 0.005}
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"seq_model": "mlp"},
    "gru": {
        "seq_model": "gru",
        "separate": True,
        "action_embedding_size": 8,
        "observ_embedding_size": 8,
        "reward_embedding_size": 8,
        "rnn_hidden_size": 16,
    },
}


def settings(env_name: str, model: str, **env: Any) -> dict[str, Any]:
    return {
        "seed": 1,
        "cuda": -1,
        "env": {
            "env_type": "meta",
            "env_name": env_name,
            "max_rollouts_per_task": 2,
            "num_tasks": 12,
            "num_train_tasks": 8,
            "num_eval_tasks": 4,
            **env,
        },
        "train": {
            "num_iters": 2,
            "num_init_rollouts_pool": 2,
            "num_rollouts_per_iter": 3,
            "buffer_size": 1e4,
            "num_updates_per_iter": 3,
            "batch_size": 8,
            "sampled_seq_len": -1,
            "sample_weight_baseline": 0.0,
        },
        "eval": {"log_interval": 1, "save_interval": 1, "log_tensorboard": False},
        "policy": {**MODELS[model], "algo_name": "sac", **LAYERS, "sac": SAC},
    }


def program(source: Path, directory: Path) -> tuple[Path, int]:
    """A copy of a program with its import lines changed, and how many lines were."""
    place = directory / "program"
    shutil.copytree(source, place, ignore=shutil.ignore_patterns(".git", "*.ipynb"))
    learner = place / "policies" / "learner.py"
    lines = learner.read_text().splitlines(keepends=True)
    changed = 0
    for number, line in enumerate(lines):
        for old, new in IMPORTS.items():
            if line.strip().startswith(old):
                lines[number] = line.replace(old, new)
                changed += 1
    learner.write_text("".join(lines))
    return place, changed


def run(place: Path, *arguments: str) -> str:
    startup = place.parent / "startup"
    startup.mkdir(exist_ok=True)
    (startup / "sitecustomize.py").write_text(STARTUP)
    path = os.pathsep.join(map(str, (startup, place, ROOT, ROOT / "envs")))
    environment = {**os.environ, "PYTHONPATH": path, "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [PYTHON, *arguments], check=False, capture_output=True, text=True, cwd=place, env=environment, timeout=800
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def logged(place: Path) -> list[dict[str, str]]:
    (table,) = place.rglob("progress.csv")
    with table.open() as file:
        return [*csv.DictReader(file)]


@pytest.mark.parametrize("model", [*MODELS])
@pytest.mark.parametrize("env_name", ["PointRobotSparse-v0", "Wind-v0"])
def test_pomdp_baselines(env_name: str, model: str, upstream: Callable[[str], Path], tmp_path: Path) -> None:
    place, changed = program(upstream("pomdp-baselines"), tmp_path)
    assert changed == 1
    (place / "small.yml").write_text(yaml.safe_dump(settings(env_name, model)))
    run(place, "policies/main.py", "--cfg", "small.yml", "--debug")
    rows = [row for row in logged(place) if row.get("metrics/success_rate_eval")]
    assert rows
    assert all(0 <= float(row["metrics/success_rate_eval"]) <= 1 for row in rows)


@pytest.mark.parametrize("env_name", ["PointRobotSparse-v0", "AntGoal-v0"])
def test_the_collector_of_the_fork(env_name: str, upstream: Callable[[str], Path], tmp_path: Path) -> None:
    place, changed = program(upstream("metarl-fork"), tmp_path)
    assert changed == 2
    small = settings(env_name, "mlp", num_parallel_workers=2, max_episode_steps=10)
    (place / "small.yml").write_text(yaml.safe_dump(small))
    told = run(place, "policies/main.py", "--cfg", "small.yml", "-j", "test")
    assert "Parallel environments closed." in told
    assert int(logged(place)[-1]["z/rollouts"]) == 2 + 2 * 3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_their_sac_learns_from_our_rollouts(seed: int, upstream: Callable[[str], Path], tmp_path: Path) -> None:
    place, _ = program(upstream("pomdp-baselines"), tmp_path)
    told = run(place, str(Path(__file__).with_name("metarl_training.py")), str(seed), str(tmp_path / "log"))
    result = json.loads(told.splitlines()[-1])
    first, *_, last = result["curve"]
    assert last > first / 2  # returns are negative: minus the distances to the goal
