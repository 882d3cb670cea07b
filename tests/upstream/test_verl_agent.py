"""verl-agent's own programs on our environments and batches. A scripted model stands in for its GPU engine."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.processes import ROOT

PYTHON = os.environ.get("ASYNCROLLOUT_VERL_PYTHON", str(ROOT / ".venv-verl" / "bin" / "python"))

pytestmark = pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs `make verl-venv`")


def run(sources: Path, *command: str) -> str:
    """A program with verl-agent's sources; what it printed."""
    done = subprocess.run(
        [PYTHON, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(sources), str(ROOT)]), "RAY_DEDUP_LOGS": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("collectors", ["Sokoban, training", "Sokoban, validation", "Webshop, training", "Webshop, validation"]),
        ("pictures", ["rgb_array: 6 episodes", "anchors {(96, 96, 3)}"]),
        ("advantages", ["Sokoban: ", "Webshop: "]),
        ("step", ["a training step"]),
        ("validation", ["_validate, Sokoban", "_validate, Webshop"]),
    ],
)
def test_a_program_of_verl_agent(upstream: Callable[[str], Path], program: str, printed: list[str]) -> None:
    output = run(upstream("verl-agent"), str(Path(__file__).parent / "programs" / "verl_agent.py"), program)
    assert all(text in output for text in printed), output
    print(output)


def test_our_stand_in_does_what_verl_agents_protocol_does(upstream: Callable[[str], Path]) -> None:
    output = run(upstream("verl-agent"), str(ROOT / "tests" / "scripts" / "verl_protocol.py"), "300")
    assert f"{upstream('verl-agent')}/verl/protocol.py" in output


@pytest.mark.parametrize("branch", ["ragen-test-parallel", "ragen-parallel-environments"])
def test_managers_and_collectors_of_ragens_parallel_branches(upstream: Callable[[str], Path], branch: str) -> None:
    program = str(Path(__file__).parent / "programs" / "ragen_collector.py")
    output = run(upstream("verl-agent"), program, str(upstream(branch)))
    assert "managers and collector over our container: 24 rows" in output
    assert "the same as ours" in output
