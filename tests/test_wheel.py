"""The built wheel, installed alone in a fresh virtual environment, works on each Python that is found here."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent
ENV = """\
import gymnasium

class Walk:
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.steps, {}

    def step(self, action):
        self.steps += 1
        return self.steps, 1.0, self.steps >= 4, False, {}
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program without what the checkout's own interpreter was given."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([*map(str, command)], cwd=cwd, env=environ, capture_output=True, text=True, check=False)


def interpreters(version: str) -> Iterator[str]:
    if sys.version.startswith(f"{version}."):
        yield sys.executable
    if found := shutil.which(f"python{version}"):
        yield found
    yield from map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, ROOT, cwd=place)
    assert built.returncode == 0, built.stderr
    (wheel,) = place.glob("*.whl")
    return wheel


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_wheel_plays_reports_and_checks_an_env(version: str, wheel: Path, tmp_path: Path) -> None:
    working = (
        one for one in interpreters(version) if run(one, "-c", "import ensurepip, venv", cwd=tmp_path).returncode == 0
    )
    python = next(working, None)
    if python is None:
        pytest.skip(f"Python {version} is not installed here")
    for command in (
        [python, "-m", "venv", "venv"],
        ["venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel],
    ):
        done = run(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    program, place = tmp_path / "venv" / "bin" / "asyncrollout", tmp_path / "empty"
    place.mkdir()
    demo = run(program, "demo", "--batches", "1", cwd=place)
    assert (demo.returncode, "warning" in demo.stderr.lower()) == (0, False), demo.stderr
    name, *hint = demo.stdout.splitlines()[-1].split()  # the last line is what to type next
    assert Path(name).name == "asyncrollout"
    replayed = run(program, *hint, cwd=place)
    assert (replayed.returncode, replayed.stderr) == (0, ""), replayed.stderr
    page = place / "runs" / "demo-1" / "report.html"
    page.unlink()
    report = run(program, "report", "runs/demo-1", cwd=place)
    assert (report.returncode, report.stderr, page.exists()) == (0, "", True)
    (place / "walks.py").write_text(ENV)
    checked = run(program, "check-env", "walks:Walk", "--allow-import", cwd=place)
    assert checked.returncode == 0, checked.stdout + checked.stderr
