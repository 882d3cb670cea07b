"""Names lead to specs, and a wrong name to the nearest right one."""

import contextlib
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncrollout import (
    EnvPool,
    EnvSpec,
    MissingExtraError,
    UnknownEnvError,
    UsageError,
    env_names,
    find_env,
    register_env,
    registry,
)
from tests.envs.tiny import Counter


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    registry._entry_points.cache_clear()
    yield
    monkeypatch.undo()
    registry._entry_points.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, directory: Path, points: str) -> None:
    """Put a package with entry points on the path, as pip would."""
    metadata = directory / "someones_envs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: someones-envs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[asyncrollout.envs]\n{points}\n")
    (directory / "someones_envs.py").write_text(
        "from asyncrollout import EnvSpec\n"
        "maze = EnvSpec(name='maze', factory='tests.envs.tiny:Counter', kwargs={'limit': 3})\n"
        "not_a_spec = 5\n"
    )
    monkeypatch.syspath_prepend(directory)
    registry._entry_points.cache_clear()


def test_registered_name() -> None:
    spec = register_env("counter", Counter, kwargs={"limit": 5}, runs="light")
    assert find_env("counter") is spec
    assert spec == EnvSpec(name="counter", factory=Counter, kwargs={"limit": 5}, runs="light")
    assert "counter" in env_names()


def test_name_can_be_registered_again() -> None:
    register_env("counter", Counter, kwargs={"limit": 5})
    register_env("counter", Counter, kwargs={"limit": 6})
    assert find_env("counter").kwargs == {"limit": 6}


def test_spec_stands_for_itself() -> None:
    spec = EnvSpec(name="x", factory=Counter)
    assert find_env(spec) is spec


def test_spec_is_frozen_and_travels() -> None:
    spec = EnvSpec(name="x", factory=Counter, kwargs={"limit": 5}, text="tests.envs.tiny:CounterText", replayable=False)
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(AttributeError):
        spec.name = "y"  # type: ignore[misc]


def test_with_kwargs_adds_and_overrides() -> None:
    spec = EnvSpec(name="x", factory=Counter, kwargs={"limit": 5})
    assert spec.with_kwargs(limit=6, length=7).kwargs == {"limit": 6, "length": 7}
    assert spec.kwargs == {"limit": 5}


def test_import_path() -> None:
    spec = find_env("tests.envs.tiny:Counter")
    assert spec.text is None
    assert registry.load_factory(spec.factory) is Counter


def test_gymnasium_id() -> None:
    spec = find_env("gymnasium:CartPole-v1")
    env = registry.load_factory(spec.factory)(**spec.kwargs)
    assert env.spec.id == "CartPole-v1"
    env.close()


def test_installed_env_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "maze = someones_envs:maze")
    assert "maze" in env_names()
    assert find_env("maze").kwargs == {"limit": 3}


def test_registered_name_comes_before_an_installed_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "maze = someones_envs:maze")
    mine = register_env("maze", Counter)
    assert find_env("maze") is mine


def test_entry_point_that_is_no_spec_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "broken = someones_envs:not_a_spec")
    with pytest.raises(UsageError, match=r"'broken'.*is not an EnvSpec.*someones_envs:not_a_spec"):
        find_env("broken")


def test_name_in_two_packages_is_found_or_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        metadata = tmp_path / name / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text("[asyncrollout.envs]\nmaze = someones_envs:maze\n")
        monkeypatch.syspath_prepend(tmp_path / name)
    install(monkeypatch, tmp_path, "other = someones_envs:maze")
    with contextlib.suppress(UsageError):  # either of them, or an error of ours
        assert find_env("maze").name == "maze"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sokobam", ": did you mean 'sokoban'"),
        ("FrozenLake", ": did you mean 'frozen_lake'"),
        ("frozen-lake", ": did you mean 'frozen_lake'"),
        ("lake", ": did you mean 'frozen_lake'"),
        ("CartPole-v1", ": did you mean 'gymnasium:CartPole-v1'?"),
        ("zzz", "; available: frozen_lake, sokoban"),
        ("", "; available: frozen_lake, sokoban"),
    ],
)
def test_unknown_name_names_the_nearest(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entry_points", dict)
    register_env("sokoban", Counter)
    register_env("frozen_lake", Counter)
    with pytest.raises(UnknownEnvError) as caught:
        find_env(name)
    assert f"no env is called {name!r}{message}" in str(caught.value)


@pytest.mark.parametrize("odd", [None, 5, b"counter"])
def test_what_names_no_env_is_refused(odd: Any) -> None:
    with pytest.raises(UsageError, match="is not the name of an env, its class, a function"):
        find_env(odd)
    with pytest.raises(UsageError, match=r"factory=.* is neither a class, nor a function"):
        EnvSpec("odd", odd)


def test_an_env_itself_is_not_its_class() -> None:
    with pytest.raises(UsageError, match="but an env itself: give its class"):
        find_env(Counter())  # type: ignore[arg-type]


class Waiting(Counter):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return super().step(action)


def test_a_class_or_a_function_names_its_env() -> None:
    """Under its import path, by which the same env is found in a later run."""
    assert find_env(Counter) == EnvSpec("tests.envs.tiny:Counter", Counter)
    assert find_env(find_env(Counter).name).factory == "tests.envs.tiny:Counter"
    assert find_env(partial(Counter, limit=3)).name == "functools:partial"
    assert find_env(Waiting).runs == "io"
    with pytest.raises(UsageError, match="name must be a string"):
        EnvSpec(Counter, "counter")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a:b"])
def test_registered_name_is_checked(name: str) -> None:
    with pytest.raises(UsageError, match="env name"):
        register_env(name, Counter)


def test_placement_is_checked() -> None:
    with pytest.raises(UsageError, match="env 'x': runs='gpu' is not one of cpu, light, io"):
        EnvSpec(name="x", factory=Counter, runs="gpu")  # type: ignore[arg-type]


def test_unknown_field_is_reported() -> None:
    with pytest.raises((UsageError, TypeError), match="replayble"):
        register_env("x", Counter, replayble=False)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.envs.tiny:Countr", "module 'tests.envs.tiny' has no 'Countr': did you mean 'Counter'"),
        ("tests.envs.tiny:Counter.stop", "module 'tests.envs.tiny' has no 'Counter.stop'"),
        ("tests.envs.tiny", "not an import path: write 'module:Class'"),
        (":Counter", "not an import path: write 'module:Class'"),
        ("tests.envs.tiny:Step.nothing", "has no 'Step.nothing'"),
        ("tests.envs.tiny:__doc__", "is a str, not a class or function that makes an env"),
    ],
)
def test_bad_import_path_is_reported(path: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.load_factory(path)
    assert message in str(caught.value)


def test_missing_module_is_reported() -> None:
    with pytest.raises(ImportError, match="no_such_module"):
        registry.load_factory("no_such_module:Env")


def test_an_env_introduces_itself() -> None:
    pip = {"no_such_package": "pip install no-such-package"}
    spec = register_env("maze", Counter, summary="find the exit", actions="Left, Right", requires=pip)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert registry.missing_packages(spec) == pip
    assert registry.missing_packages(EnvSpec("x", Counter, requires={"json": "pip install json"})) == {}
    assert registry.missing_packages(EnvSpec("x", Counter, requires={"no_such.part": "pip install x"}))
    with pytest.raises(
        MissingExtraError, match=r"env 'maze' needs the package 'no_such_package'.*: pip install no-such"
    ):
        registry.check_installed(spec)
    with pytest.raises(UsageError, match="env 'x': requires='mujoco' must map packages to pip commands"):
        EnvSpec("x", Counter, requires="mujoco")  # type: ignore[arg-type]


async def test_a_missing_package_is_reported_with_its_pip_command() -> None:
    spec = EnvSpec("maze", "no_such_module:Env", requires={"no_such_module": "pip install no-such-module"})
    with pytest.raises(MissingExtraError, match="pip install no-such-module"):
        registry.check_exists(spec)
    for backend in ("inline", "process"):
        async with EnvPool(1, backend) as pool:
            with pytest.raises(UsageError, match=r"env 'maze' needs the package.*pip install no-such-module"):
                await pool.open(spec)
