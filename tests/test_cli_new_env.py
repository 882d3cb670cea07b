"""`new-env` writes an environment that works as it is, and overwrites nothing."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from asyncrollout.cli.app import main
from asyncrollout.registry import env_names

LONGEST = 120  # seconds; none comes near it


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(cwd)}
    environ.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )


@pytest.fixture
def made(tmp_path: Path) -> Path:
    assert main(["new-env", "ice_maze", "--dir", str(tmp_path / "projects"), "--quiet"]) == 0
    return tmp_path / "projects" / "ice_maze"


def test_its_own_test_passes(made: Path) -> None:
    ran = run("pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", "-q", cwd=made)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_it_can_be_checked_before_it_is_installed(made: Path) -> None:
    ran = run("asyncrollout", "check-env", "ice_maze:SPEC", "length=3", "strict=true", "--allow-import", cwd=made)
    assert ran.returncode == 0, ran.stderr
    assert "ice_maze keeps the contract" in ran.stdout
    assert "ok       solve() gives a reply that parse() takes for valid" in ran.stdout
    assert "ok       an episode continues after its worker was killed" in ran.stdout


def test_it_is_found_by_its_name_once_installed(made: Path) -> None:
    """What an installer makes of pyproject.toml, without the installer."""
    project = tomllib.loads((made / "pyproject.toml").read_text())["project"]
    assert project["name"] == "ice-maze"
    info = made / "ice_maze-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = "\n".join(f"{name} = {path}" for name, path in project["entry-points"]["asyncrollout.envs"].items())
    (info / "entry_points.txt").write_text(f"[asyncrollout.envs]\n{points}\n")
    ran = run("asyncrollout", "check-env", "ice_maze", cwd=made)
    assert ran.returncode == 0, ran.stderr
    listed = run("asyncrollout", "envs", cwd=made).stdout
    assert "walk along a corridor" in " ".join(listed.split())
    assert main(["new-env", "ice_maze", "--dir", str(made.parent)]) == 2


def test_what_is_left_of_the_template(made: Path) -> None:
    for file in made.iterdir():
        assert not any(word in file.read_text() for word in ("NAME", "CLASS", "DISTRIBUTION"))
    assert sorted(file.name for file in made.iterdir()) == [
        "README.md",
        "ice_maze.py",
        "pyproject.toml",
        "test_ice_maze.py",
    ]


def test_nothing_is_overwritten(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in made.iterdir()}
    (made.parent / "taken").touch()
    for name in ("ice_maze", "taken"):
        assert main(["new-env", name, "--dir", str(made.parent)]) == 2
        assert "exists already" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in made.iterdir()} == before


@pytest.mark.parametrize(
    "name",
    [
        "class",
        "Maze",
        "my-maze",
        "1maze",
        "maze_",
        "_maze",
        "my__maze",
        "",
        "ma ze",
        "../maze",
        "a/b",
        "m\u00e4ze",
        "maze\n",
    ],
)
def test_names_that_no_module_has(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-env", name, "--dir", str(tmp_path)]) == 2
    assert "asyncrollout: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [*env_names(), "numpy", "json", "sys", "asyncrollout"])
def test_names_that_are_taken(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-env", name, "--dir", str(tmp_path)]) == 2
    assert "installed already" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["new-env", "maze", "--dir", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
