"""RAGEN's own environments beside ours, step by step; what they need is in a venv of its own.

WebShop is not among them: its package is not on PyPI. The facts of its rules are in `test_dropin_ragen_tags.py`.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.processes import ROOT

PYTHON = os.environ.get("ASYNCROLLOUT_RAGEN_PYTHON", str(ROOT / ".venv-ragen" / "bin" / "python"))
PROGRAM = Path(__file__).parent / "programs" / "ragen_envs.py"

pytestmark = pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs `make ragen-venv`")


@pytest.mark.parametrize(
    ("version", "env"),
    [
        *(("ragen-2025-06", env) for env in ("sokoban", "frozen_lake", "bandit", "countdown", "metamathqa")),
        *(("ragen-2026-04", env) for env in ("sokoban", "frozen_lake", "bandit", "countdown", "metamathqa")),
        *(("ragen-2026-04", env) for env in ("sudoku", "game_2048", "rubikscube")),
    ],
)
def test_an_env_of_ragen_and_ours_do_the_same(upstream: Callable[[str], Path], version: str, env: str) -> None:
    done = subprocess.run(
        [PYTHON, str(PROGRAM), str(upstream(version)), env],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{env}: ")
    print(version, done.stdout.splitlines()[-1])
