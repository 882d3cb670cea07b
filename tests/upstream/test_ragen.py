"""RAGEN's own programs with other import lines: see `programs/ragen.py` for what is changed and what stands in."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.processes import ROOT

PYTHON = os.environ.get("ASYNCROLLOUT_VERL_PYTHON", str(ROOT / ".venv-verl" / "bin" / "python"))

pytestmark = [
    pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs `make verl-venv`"),
    pytest.mark.timeout(1200),
]

Find = Callable[[str], Path]
ES_MANAGER = "ragen/llm_agent/es_manager.py"
CTX_MANAGER = "ragen/llm_agent/ctx_manager.py"
AGENT_PROXY = "ragen/llm_agent/agent_proxy.py"


def run(sources: Path, folder: Path, *words: str) -> str:
    """A program of RAGEN's, in an empty folder; what it printed."""
    program = Path(__file__).parent / "programs" / "ragen.py"
    done = subprocess.run(
        [PYTHON, str(program), str(sources), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "envs")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=1100,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.parametrize("version", ["ragen-2025-06", "ragen-2026-04"])
def test_es_managers_main_block(upstream: Find, tmp_path: Path, version: str) -> None:
    printed = run(upstream(version), tmp_path, ES_MANAGER, "drop=EnvStateManager", "drop=EnvStatus")
    assert "Active environments after step: 2" in printed
    assert printed.rstrip().endswith("Test completed successfully!")


@pytest.mark.parametrize(
    ("version", "printed"), [("ragen-2025-06", "ctx_manager prefix {0: "), ("ragen-2026-04", "ALL TESTS PASSED!")]
)
def test_ctx_managers_main_block(upstream: Find, tmp_path: Path, version: str, printed: str) -> None:
    assert printed in run(upstream(version), tmp_path, CTX_MANAGER, "drop=ContextManager")


@pytest.mark.parametrize("version", ["ragen-2025-06", "ragen-2026-04"])
def test_agent_proxys_main_block(upstream: Find, tmp_path: Path, version: str) -> None:
    """With RAGEN's own proxy on our managers, and with ours in its place: the same rollouts."""
    reports = []
    for name, words in (("theirs", []), ("ours", ["drop=LLMAgentProxy"])):
        (tmp_path / name).mkdir()
        printed = run(upstream(version), tmp_path / name, AGENT_PROXY, *words)
        reports.append([line for line in printed.splitlines() if "/success:" in line or "rollout rewards:" in line])
    assert reports[0]
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    ("sources", "program", "printed"),
    [
        ("ragen-test-parallel", "test_config_fix.py", "All configuration tests passed!"),
        ("ragen-test-parallel", "test_render_fix.py", "All render tests passed!"),
        ("ragen-parallel-environments", "test_es_manager.py", "All tests passed!"),
        ("ragen-parallel-simple", "test_multiprocessing_es_manager.py", "All tests completed successfully!"),
        ("ragen-parallel-simple", "test_parallel_sequential_equivalence.py", "Failed tests: 0"),
    ],
)
def test_scripts_of_the_parallel_branches(
    upstream: Find, tmp_path: Path, sources: str, program: str, printed: str
) -> None:
    said = run(upstream(sources), tmp_path, program)
    assert printed in said
    assert "❌" not in said


def test_the_comparison_of_parallel_and_single_processes(upstream: Find, tmp_path: Path) -> None:
    said = run(upstream("ragen-test-parallel"), tmp_path, "test_es_manager.py")
    for line in ("Reset outputs are identical", "Final states are identical", "ALL ENVIRONMENT TYPES PASSED!"):
        assert line in said
    wrong = [line for line in said.splitlines() if "❌" in line and "slower" not in line]  # its timings are its own
    assert wrong == []


@pytest.mark.parametrize(
    "program", ["tests/es_manager/test_seed_iteration.py", "tests/llm_agent/test_context_window.py"]
)
def test_their_own_tests(upstream: Find, tmp_path: Path, program: str) -> None:
    assert "1 passed" in run(upstream("ragen-2026-04"), tmp_path, program)
