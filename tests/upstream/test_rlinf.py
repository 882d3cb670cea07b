"""RLinf's unit tests of its placement with our classes, its files' placements, and its BEHAVIOR evaluations.

Nothing of RLinf's is replaced but the placement classes; nodes and their hardware are its own.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrollout.dropin.rlinf.config import RLinfModel, read_evaluation
from asyncrollout.dropin.rlinf.placement import place_components

COMPONENTS = ("HybridComponentPlacement", "ModelParallelComponentPlacement")
STRATEGIES = ("FlexiblePlacementStrategy", "NodePlacementStrategy", "PackedPlacementStrategy")
NEEDED = ("omegaconf", "packaging", "ray", "torch")


def test_its_unit_tests_of_placement(upstream: Callable[[str], Path], tmp_path: Path) -> None:
    sources = upstream("rlinf")
    for package in NEEDED:
        pytest.importorskip(package, reason=f"RLinf's tests import {package}: pip install {' '.join(NEEDED)}")
    text = (sources / "tests/unit_tests/test_placement.py").read_text()
    text, changed = re.subn(r"from rlinf\.scheduler import \([^)]*\)", _ours(*STRATEGIES), text)
    assert changed == 1
    text, changed = re.subn(r"from rlinf\.utils\.placement import \([^)]*\)", _ours(*COMPONENTS), text)
    assert changed == 1
    (tmp_path / "test_placement.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    here = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": f"{sources}{os.pathsep}{here}"}
    ran = subprocess.run(
        [*command, "--rootdir", tmp_path, "test_placement.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None
    assert int(passed[1]) >= 37
    assert "failed" not in ran.stdout


def _ours(*names: str) -> str:
    return f"from asyncrollout.dropin.rlinf import {', '.join(names)}"


def test_all_placements_of_its_files_are_read(upstream: Callable[[str], Path]) -> None:
    found: dict[Path, Any] = {}
    for file in sorted(upstream("rlinf").rglob("*.yaml")):
        values = yaml.safe_load(file.read_text())
        cluster = values.get("cluster") if isinstance(values, dict) else None
        if isinstance(cluster, dict) and cluster.get("component_placement") is not None:
            found[file] = place_components(cluster)
    assert len(found) >= 369
    assert all(found.values())


@pytest.mark.parametrize(
    ("file", "envs", "episodes", "steps"),
    [
        ("evaluations/behavior/behavior_openpi_pi05_eval.yaml", 8, 2, 4096),
        ("evaluations/behavior/behavior_openpi_pi05_rlinf_eval.yaml", 4, 4, 4096),
        ("tests/e2e_tests/evaluations/behavior_openpi_rlinf_eval.yaml", 2, 1, 512),
        ("examples/embodiment/config/behavior_ppo_openpi.yaml", 8, 1, 4000),
    ],
)
def test_its_behavior_evaluations_are_read(
    file: str,
    envs: int,
    episodes: int,
    steps: int,
    upstream: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = upstream("rlinf")
    monkeypatch.setenv("EMBODIED_PATH", str(sources / "examples/embodiment"))  # as its scripts do
    config = read_evaluation(sources / file)
    eval_ = config.env.eval
    assert (eval_.env_type, eval_.total_num_envs, eval_.episodes) == ("behavior", envs, episodes)
    assert eval_.max_episode_steps == steps
    assert "${" not in eval_.video_cfg.video_base_dir
    assert isinstance(config.policy, RLinfModel)
