"""Files that Hydra would compose: the same order, the same places, and errors that name the file."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrollout import UsageError
from asyncrollout.config.document import load
from asyncrollout.dropin.hydra_files import compose, interpolate


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def composed(folder: Path, name: str = "main", **options: Any) -> Any:
    path = folder / f"{name}.yaml"
    return compose(load(path.read_text(), str(path)), str(path), **options).value


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("defaults: [base]\na: 1", {"a": 1, "b": 0, "c": {"x": 0, "y": 0}}),
        ("defaults: [base, _self_]\na: 1", {"a": 1, "b": 0, "c": {"x": 0, "y": 0}}),
        ("defaults: [_self_, base]\na: 1\nz: 1", {"a": 0, "b": 0, "c": {"x": 0, "y": 0}, "z": 1}),
        ("defaults: [base, other]\nc: {x: 1}", {"a": 2, "b": 0, "c": {"x": 1, "y": 2}}),
        ("defaults: [other, base]", {"a": 0, "b": 0, "c": {"x": 0, "y": 0}}),
        ("defaults: [base]\nc: null", {"a": 0, "b": 0, "c": None}),
        ("defaults: [base]\nc: [1]", {"a": 0, "b": 0, "c": [1]}),
        ("defaults: [above]", {"a": 0, "b": 3, "c": {"x": 0, "y": 0}}),
        ("defaults: [other@c]\nd: 1", {"c": {"a": 2, "c": {"y": 2}}, "d": 1}),
        ("defaults: [group: one]", {"group": {"k": 1}}),
        ("defaults: [group@here: one]", {"here": {"k": 1}}),
        ("defaults: [group@_global_: one]", {"k": 1}),
        ("defaults: [group: [one, two]]", {"group": {"k": 2}}),
        ("defaults: [group: null]\na: 1", {"a": 1}),
        ("defaults: [group: packaged]", {"q": 1}),
        ("defaults: [group/one]", {"k": 1}),
        ("defaults: [optional group: nothing]\na: 1", {"a": 1}),
        ("defaults: [override hydra/job_logging: none]\na: 1", {"a": 1}),
        ("defaults: []\na: 1", {"a": 1}),
        ("a: 1", {"a": 1}),
    ],
)
def test_files_are_merged_in_their_order(tmp_path: Path, main: str, expected: Any) -> None:
    write(
        tmp_path,
        main=main,
        base="a: 0\nb: 0\nc: {x: 0, y: 0}",
        other="a: 2\nc: {y: 2}",
        above="defaults: [base]\nb: 3",
        group__one="k: 1",
        group__two="k: 2",
        group__packaged="# @package _global_\nq: 1",
    )
    assert composed(tmp_path) == expected


@pytest.mark.parametrize(
    ("main", "error"),
    [
        ("defaults: [nothing]", r"main.yaml: defaults: found 'nothing', but there is no nothing.yaml in "),
        ("defaults: [group: nothing]", r"found 'group/nothing', but there is no group/nothing.yaml in "),
        ("defaults: [main]", r"main.yaml: defaults: this file includes itself"),
        ("defaults: [round]", r"main.yaml: defaults: this file includes itself"),
        ("defaults: base", r"defaults: expected a list of files"),
        ("defaults: [3]", r"defaults: found 3, expected the name of a file"),
        ("defaults: [{a: b, c: d}]", r"expected the name of a file, or group: name"),
        ("defaults: [group: 3]", r"found 'group': 3, expected group: name"),
        ("defaults: [override group: one]", r"'override group' is not supported: write the keys"),
        ("defaults: [items]", r"items.yaml: found no mapping"),
        ("defaults: [broken]", r"broken.yaml, line 1, column \d+: not valid YAML"),
    ],
)
def test_what_cannot_be_composed_is_an_error(tmp_path: Path, main: str, error: str) -> None:
    write(tmp_path, main=main, round="defaults: [main]", items="[1]", broken="a: [", group__one="k: 1")
    with pytest.raises(UsageError, match=error):
        composed(tmp_path)


def test_files_are_found_beside_the_one_that_names_them_and_in_the_search_path(tmp_path: Path) -> None:
    write(
        tmp_path,
        main="defaults: [group/top, far]\nhydra: {searchpath: ['file://elsewhere', 'pkg://no_such_package.config']}",
        group__top="defaults: [beside, /root]\na: 1",
        group__beside="b: 1",
        root="c: 1",
        elsewhere__far="d: 1",
    )
    found = composed(tmp_path)
    assert {key: value for key, value in found.items() if key != "hydra"} == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_packages_of_the_search_path_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "trainers_own"
    (package / "config").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "config" / "far.yaml").write_text("d: 1")
    write(tmp_path, main="defaults: [far]\nhydra: {searchpath: ['pkg://trainers_own.config']}")
    monkeypatch.syspath_prepend(tmp_path)
    assert composed(tmp_path)["d"] == 1


def test_a_dispensable_file_may_be_missing_and_is_named(tmp_path: Path) -> None:
    write(tmp_path, main="defaults: [trainer]\na: 1")
    assert composed(tmp_path, dispensable=["trainer"]) == {"a": 1, "defaults": ["trainer"]}
    write(tmp_path, trainer="b: 1")
    assert composed(tmp_path, dispensable=["trainer"]) == {"a": 1, "b": 1}


def test_places_name_the_file(tmp_path: Path) -> None:
    write(tmp_path, main="defaults: [base]\nc: {x: 1}", base="a: 0\nc:\n  x: 0\n  y: 0\nd: {e: 1}")
    path = tmp_path / "main.yaml"
    places = compose(load(path.read_text(), str(path)), str(path)).places
    found = {key: places[key].where for key in [("a",), ("c", "x"), ("c", "y")]}
    assert found == {("a",): "base.yaml, line 1", ("c", "x"): "line 2", ("c", "y"): "base.yaml, line 4"}


def test_a_replaced_mapping_leaves_no_places(tmp_path: Path) -> None:
    write(tmp_path, main="defaults: [base]\nd: 3", base="d: {e: 1}")
    path = tmp_path / "main.yaml"
    places = compose(load(path.read_text(), str(path)), str(path)).places
    assert ("d", "e") not in places
    assert places[("d",)].where == "line 2"


def test_references_become_what_they_name() -> None:
    values = yaml.safe_load("""
a: {b: 3, c: [1, 2]}
whole: ${a.b}
through: ${whole}
mapping: ${a}
text: "${a.b} of ${a.c} and ${a.b}"
nothing: ${a.z}
round: ${round}
env: ${oc.env:HOME}
""")
    assert interpolate(values) == {
        "a": {"b": 3, "c": [1, 2]},
        "whole": 3,
        "through": 3,
        "mapping": {"b": 3, "c": [1, 2]},
        "text": "3 of ${a.c} and 3",
        "nothing": "${a.z}",
        "round": "${round}",
        "env": "${oc.env:HOME}",
    }
