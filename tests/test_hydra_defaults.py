"""Hydra's `defaults` and interpolations, read without Hydra."""

from pathlib import Path
from typing import Any

import pytest

from asyncrollout import UsageError
from asyncrollout.config.document import load
from asyncrollout.dropin.hydra_defaults import compose, compose_document, interpolate


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(**files: str) -> Path:
        for name, text in files.items():
            file = tmp_path / f"{name.replace('__', '/')}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path / "main.yaml"

    return write


def test_a_file_overrides_its_defaults_which_override_each_other(write: Any) -> None:
    path = write(
        main="defaults: [base, envs]\na: {x: 1}\n",
        base="a: {x: 0, y: 0, z: 0}\nlist: [1, 2]\n",
        envs="a: {y: 2}\nlist: [3]\n",
    )
    document = compose(path)
    assert document.value == {"a": {"x": 1, "y": 2, "z": 0}, "list": [3]}
    assert document.places["a", "x"].where == "line 2"
    assert document.places["a", "y"].where == "envs.yaml, line 1"
    assert document.places["a", "z"].where == "base.yaml, line 1"
    assert ("list", 1) not in document.places


def test_self_is_where_it_stands(write: Any) -> None:
    assert compose(write(main="defaults: [_self_, base]\na: 1\nb: 1\n", base="a: 0\n")).value == {"a": 0, "b": 1}


def test_defaults_of_defaults(write: Any) -> None:
    path = write(main="defaults: [base]\na: 1\n", base="defaults: [deep]\nb: 2\n", deep="a: 0\nb: 0\nc: 0\n")
    assert compose(path).value == {"a": 1, "b": 2, "c": 0}


def test_groups_and_packages(write: Any) -> None:
    path = write(
        main="defaults:\n"
        "  - env/lake@env.eval\n"
        "  - db: mysql\n"
        "  - optional db: missing\n"
        "  - model: null\n"
        "  - /shared/paths@_global_\n"
        "  - override hydra/job_logging: stdout\n"
        "hydra: {run: {dir: .}}\n"
        "env: {eval: {size: 8}}\n",
        env__lake="defaults: [base]\nsize: 4\n",
        env__base="size: 0\nname: lake\n",
        db__mysql="port: 1\n",
        shared__paths="root: /\n",
    )
    assert compose(path).value == {
        "env": {"eval": {"size": 8, "name": "lake"}},
        "db": {"port": 1},
        "root": "/",
    }


def test_a_file_s_header_says_its_package(write: Any) -> None:
    path = write(main="defaults: [{exp: one}]\na: 0\n", exp__one="# Ours\n# @package _global_\na: 1\nb: 2\n")
    assert compose(path).value == {"a": 0, "b": 2}


def test_other_directories_are_searched(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        main="defaults: [env/lake@env]\nhydra: {searchpath: ['file://${oc.env:CONFIGS}/more/']}\n",
        more__env__lake="size: 4\n",
    )
    with pytest.raises(UsageError, match=r"hydra\.searchpath\.0: the environment variable CONFIGS is not set"):
        compose(path)
    monkeypatch.setenv("CONFIGS", str(tmp_path))
    assert compose(path).value == {"env": {"size": 4}}


def test_what_is_missing_is_an_error_unless_it_is_optional(write: Any, tmp_path: Path) -> None:
    path = write(main="defaults: [trainer, base]\na: 1\n", base="b: 2\n")
    with pytest.raises(UsageError) as caught:
        compose(path)
    assert f"defaults: 'trainer': there is no trainer.yaml in {tmp_path}" in str(caught.value)
    assert "--cfg job" in str(caught.value)
    assert compose(path, optional={"trainer"}).value == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("defaults: [main]\n", "defaults refer to each other"),
        ("defaults: {a: 1}\n", "expected a list"),
        ("defaults: [[a]]\n", "neither a name nor 'group: option'"),
        ("defaults: [{override db: mysql}]\n", "'override' of 'db' is not supported"),
        ("defaults: [{'override db': mysql}]\n", "'override' of 'db' is not supported"),
    ],
)
def test_what_cannot_be_resolved_is_refused(write: Any, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        compose(write(main=text))


def test_a_file_without_defaults_is_left_as_it_is(write: Any) -> None:
    assert compose(write(main="a: ${b}\n")).value == {"a": "${b}"}


def test_interpolations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS", "/logs")
    root = {
        "log": "${oc.env:LOGS}/run",
        "size": 4,
        "names": ["a", "b"],
        "env": {"video": "${log}/video", "size": "${size}", "twice": "${.size}", "up": "${..size}"},
        "key": "size",
        "more": {"second": "${names.1}", "unset": "${oc.env:UNSET_NAME,'x'}", "nested": "${env.${key}}"},
    }
    found = interpolate(root, root)
    assert found["env"] == {"video": "/logs/run/video", "size": 4, "twice": 4, "up": 4}
    assert found["more"] == {"second": "b", "unset": "x", "nested": 4}
    assert interpolate(root["env"], root, ("env",)) == found["env"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("${a.c}", "part.key: ${a.c} refers to a key that is not there"),
        ("${oc.env:UNSET_NAME}", "the environment variable UNSET_NAME is not set"),
        ("${now:%Y}", "the resolver 'now' is not supported"),
        ("${loop}", "references refer to each other"),
        ("x${loop}", "references refer to each other"),
    ],
)
def test_interpolations_that_cannot_be_resolved(value: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        interpolate({"key": value}, {"a": {"b": 1}, "loop": "${loop}"}, ("part",))
    assert why in str(caught.value)


def test_files_of_an_installed_package_are_found_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "trainers_own" / "config"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise AssertionError('it ran')")
    (folder / "far.yaml").write_text("d: 1")
    main = tmp_path / "main.yaml"
    main.write_text("defaults: [far]\nhydra: {searchpath: ['pkg://nowhere.config', 'pkg://trainers_own.config']}")
    monkeypatch.syspath_prepend(tmp_path)
    assert compose(main).value == {"d": 1}


def test_optional_files_that_are_missing_are_named(tmp_path: Path) -> None:
    main = tmp_path / "main.yaml"
    main.write_text("defaults: [trainer]\na: 1")
    missing: list[str] = []
    document = compose_document(load(main.read_text(), str(main)), main, optional=["trainer"], missing=missing)
    assert (document.value, missing) == ({"a": 1}, ["trainer"])


def test_a_searchpath_is_a_list(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("hydra:\n  searchpath: 5\n")
    with pytest.raises(UsageError, match=r"hydra\.searchpath: expected a list, found 5"):
        compose(tmp_path / "run.yaml")


DEEP = 30
"""Levels, each of which names the next one twice."""


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ("${{a{0}}}${{a{0}}}", "references make more than 100,000 values"),
        ("${{b}}${{a{0}}}", "references make a text of more than 1,000,000 characters"),
        (["${{a{0}}}"] * 2, "references make more than 100,000 values"),
        ({"x": "${{a{0}}}", "y": "${{a{0}}}"}, "references make more than 100,000 values"),
    ],
)
def test_references_that_double_are_refused_at_once(form: Any, why: str) -> None:
    def level(at: int) -> Any:
        if isinstance(form, str):
            return form.format(at)
        return (
            [one.format(at) for one in form] if isinstance(form, list) else {k: v.format(at) for k, v in form.items()}
        )

    root = {"b": "b" * 100_000, f"a{DEEP}": "x", **{f"a{at}": level(at + 1) for at in range(DEEP)}}
    with pytest.raises(UsageError, match=why):
        interpolate({"key": "${a0}"}, root)


def test_files_that_double_are_refused_at_once(write: Any) -> None:
    levels = {f"f{at}": f"defaults: [f{at + 1}@x, f{at + 1}@y]\n" for at in range(DEEP)}
    with pytest.raises(UsageError, match="defaults name more than 1,000 files"):
        compose(write(main="defaults: [f0]\n", **levels, **{f"f{DEEP}": "a: 1\n"}))
