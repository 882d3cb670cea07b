"""RAGEN's own programs with other import lines: see `programs/ragen.py` for what is changed and what stands in."""

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrollout.dropin.ragen.alfworld import AlfworldTemplates, write_turn
from tests.scripts.processes import ROOT
from tests.test_dropin_ragen_prompts import missing_or_out_of_order

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
    return run_program("ragen.py", sources, folder, *words)


def run_program(name: str, sources: Path, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [PYTHON, str(Path(__file__).parent / "programs" / name), str(sources), *words],
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


@pytest.mark.parametrize("version", ["ragen-2025-06", "ragen-2026-04"])
def test_their_prompts_have_no_pictures_either(upstream: Find, tmp_path: Path, version: str) -> None:
    """Whatever processor it is given: a model reads a mark in the place of each picture."""
    printed = run_program("ragen_pictures.py", upstream(version), tmp_path)
    assert "theirs: a mark" in printed
    assert "ours: a mark" in printed


FACTS = AlfworldTemplates(
    task="|{task}|",
    taken="|{taken} |",
    recent="|{shown} |",
    past="|{turn}|{observation}|{turn}|{action}|",
    current="|{turn}|{observation}|",
    possible="|{actions}|",
    warning="||",
    reply="|{actions_left}|{format}|{length}|",
)


def test_single_turns_of_alfworld_tell_what_their_memory_tells(upstream: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same facts in the same order, in as many lines; its texts are cut where ours are."""
    folder = upstream("ragen-2026-04") / "ragen" / "llm_agent" / "memory"
    spec = importlib.util.spec_from_file_location("their_memory", folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "their_memory", package)
    spec.loader.exec_module(package)
    rng = random.Random(4)
    for _ in range(300):
        history = make_house(rng)
        start = rng.randrange(len(history))
        memory = package.AlfWorldMemory()
        memory.reset(1)
        expected = memory.build_user_content(
            env_output={"env_id": 0},
            history=history,
            turn_idx=len(history) - 1,
            history_start=start,
            turn_offset=0,
            include_warning=True,
            format_prompt="<form>",
            length_prompt="So long.",
        )
        warns = bool(history[-1].get("manager_invalid_action"))
        found = write_turn(FACTS, history, start, warns=warns, form="<form>", length="So long.")
        facts = [fact for line in found.split("|\n|") for fact in line.strip("|").split("|") if fact]
        assert missing_or_out_of_order(expected, facts) == [], (expected, found)
        assert len(expected.splitlines()) == len(found.splitlines())
    for name in [name for name in sys.modules if name.startswith("their_memory.")]:
        monkeypatch.delitem(sys.modules, name)


def make_house(rng: random.Random) -> list[dict[str, Any]]:
    """A history of an env like ALFWorld, with short and long observations and any replies."""
    history: list[dict[str, Any]] = []
    for turn in range(rng.randint(1, 6)):
        seen = " ".join(f"On the shelf {shelf} you see a mug {shelf}." for shelf in range(rng.choice([1, 3, 12])))
        if not turn:
            task = rng.choice(["Your task is to: put two mugs in a cabinet.", "", "Your task is to: cool an egg.\n"])
            seen = f"-= Welcome to TextWorld, ALFRED! =-\n\n{seen}\n\n{task}"
        item: dict[str, Any] = {
            "state": f"{seen}\n\nAdmissible actions: [go to shelf {turn}, look]",
            "actions_left": 50 - turn,
        }
        if turn and rng.random() < 0.3:
            item["manager_invalid_action"] = True
        history.append(item)
    for item in history[:-1]:
        item["llm_response"] = rng.choice(["<think>t</think><answer>look</answer>", "hm", "<answer> go to 3 </answer>"])
    return history
