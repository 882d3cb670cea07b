"""The package's face: its names, what importing it costs, and errors that travel."""

import copy
import inspect
import math
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncrollout
from asyncrollout import (
    EnvError,
    Generation,
    Observation,
    Outcome,
    Parsed,
    RolloutError,
    Sampling,
    TextOptions,
    UsageError,
    errors,
)
from asyncrollout.trajectories import Group, Limits, StopReason, Trajectory
from asyncrollout.types import STEP_REWARDS, Durations, exact_sum, total_reward

EXPORTED: list[str] = vars(asyncrollout)["__all__"]
ALL_ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RolloutError)]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_every_exported_name_resolves_and_is_exported_once() -> None:
    assert [name for name in EXPORTED if getattr(asyncrollout, name, None) is None] == []
    assert dir(asyncrollout) == sorted(set(EXPORTED))
    assert len(dir(asyncrollout)) == len(EXPORTED)


def test_a_star_import_has_every_exported_name() -> None:
    assert run("from asyncrollout import *; print(__version__, EnvPool.__name__)").split()[1:] == ["EnvPool"]


def test_package_works_from_a_zip_file(tmp_path: Path) -> None:
    package = Path(asyncrollout.__file__).parent
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        for path in package.rglob("*"):
            if path.suffix != ".pyc":
                packed.write(path, path.relative_to(package.parent))
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "packed.zip")!r})
import asyncrollout
from asyncrollout.cli.app import app
print(asyncrollout.__file__, asyncrollout.EnvPool.__name__, "doctor" in [*app])
"""
    assert run(code).split() == [f"{tmp_path}/packed.zip/asyncrollout/__init__.py", "EnvPool", "True"]


def test_every_error_is_exported() -> None:
    assert {kind.__name__ for kind in ALL_ERRORS} <= set(EXPORTED)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Pool'"):
        _ = asyncrollout.Pool  # type: ignore[attr-defined]


def test_importing_the_package_loads_little() -> None:
    heavy = "{'aiohttp', 'rich', 'numpy', 'msgspec', 'anyio', 'gymnasium', 'structlog', 'uvloop'}"
    assert run(f"import sys, asyncrollout; print({heavy} & set(sys.modules))").strip() == "set()"


def test_a_worker_loads_neither_web_client_nor_display() -> None:
    heavy = "{'aiohttp', 'rich', 'cyclopts', 'gymnasium', 'structlog', 'imageio_ffmpeg', 'yaml'}"
    assert run(f"import sys, asyncrollout.pool.worker.main; print({heavy} & set(sys.modules))").strip() == "set()"


def test_star_import_gives_every_name() -> None:
    assert (
        run("from asyncrollout import *; print(EnvPool.__name__, testing.__name__)") == "EnvPool asyncrollout.testing\n"
    )


@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_errors_travel_with_their_place_and_notes(copied: Any) -> None:
    assert len(ALL_ERRORS) > 10
    for kind in ALL_ERRORS:
        error = kind.at("it broke", env="maze", seed=7, turn=3, worker=1, notes="Traceback: line 1")
        seen = copied(error)
        assert type(seen) is kind
        assert str(seen) == "it broke"
        assert (seen.env, seen.seed, seen.turn, seen.worker) == ("maze", 7, 3, 1)
        assert seen.__notes__ == ["Traceback: line 1"]


def test_remote_traceback_travels() -> None:
    error = EnvError.at("it broke", remote_type="ValueError", remote_traceback="Traceback ...")
    seen = pickle.loads(pickle.dumps(error))
    assert (seen.remote_type, seen.remote_traceback) == ("ValueError", "Traceback ...")


def test_error_without_a_place_has_none() -> None:
    error = RolloutError("it broke")
    assert (error.env, error.seed, error.turn, error.worker) == (None, None, None, None)
    assert not hasattr(error, "__notes__")


def test_errors_are_also_what_python_expects() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(errors.MissingExtraError, ImportError)
    assert issubclass(errors.EnvCheckError, AssertionError)
    assert not issubclass(UsageError, EnvError)


def test_outcomes_are_frozen_and_share_no_info() -> None:
    first, second = Outcome("a"), Outcome("b")
    first.info["x"] = 1
    assert second.info == {}
    with pytest.raises(AttributeError):
        first.reward = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(("terminated", "truncated"), [(False, False), (True, False), (False, True), (True, True)])
def test_outcome_is_done_at_either_end(terminated: bool, truncated: bool) -> None:
    assert Outcome("a", 0.0, terminated, truncated).done is (terminated or truncated)


def test_defaults() -> None:
    assert Observation("a") == Observation(text="a", images=(), data=None, anchor=None)
    assert Parsed([1]).valid
    assert TextOptions() == TextOptions(
        strict=False, format_penalty=0.1, max_actions_per_turn=5, max_actions_per_traj=None, separator="||"
    )


def test_unknown_text_option_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="penalty"):
        msgspec.convert({"penalty": 1.0}, TextOptions)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_percentiles_are_those_of_numpy(seconds: list[float]) -> None:
    found = Durations.of(seconds)
    assert (found.p50, found.p95) == pytest.approx(tuple(np.percentile(seconds, [50, 95])))


def test_percentile_of_two_is_between_them() -> None:
    assert Durations.of([100, 1]).p95 == pytest.approx(95.05)


@given(st.lists(st.floats(-1e6, 1e6), max_size=20), st.data())
def test_sum_of_rewards_does_not_depend_on_turns(rewards: list[float], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rewards)), max_size=5)))
    turns = [rewards[start:end] for start, end in pairwise([0, *cuts, len(rewards)])]
    earned = [(exact_sum(turn), {STEP_REWARDS: turn} if len(turn) > 1 else {}) for turn in turns]
    assert total_reward(earned) == math.fsum(rewards)


@pytest.mark.parametrize("odd", ["x", [1.0], [1, 2], [0.5, "1"], [], None, [math.nan, 1.0]])
def test_what_an_env_calls_the_same_is_left_alone(odd: object) -> None:
    assert total_reward([(3.5, {STEP_REWARDS: odd})]) == 3.5


def test_sums_that_are_not_finite() -> None:
    assert exact_sum([1e308, 1e308]) == math.inf
    assert math.isnan(exact_sum([math.inf, -math.inf]))


def test_key_of_a_state_sees_its_pictures() -> None:
    black = np.zeros((2, 3, 3), np.uint8)
    white, tall = black + 255, black.reshape(3, 2, 3)
    shown = [Observation("a", images) for images in ((), (black,), (white,), (tall,), (black, black), ("data:,",))]
    assert len({one.key for one in shown}) == len(shown)
    assert Observation("a", (black,)).key == Observation("a", (black.copy(),)).key
    assert (Observation("a").key, Observation("a", (black,), anchor=7).key) == ("a", 7)


@pytest.mark.parametrize(
    ("parsed", "is_valid"),
    [
        (Parsed([1]), True),
        (Parsed(()), False),
        (Parsed([]), False),
        (Parsed([], reason="say a number"), False),
        (Parsed([1], reason="say only one"), False),
        (Parsed([], valid=True), True),
        (Parsed([1], valid=True, reason="taken all the same"), True),
        (Parsed([1], valid=False), False),
    ],
    ids=str,
)
def test_reply_without_actions_or_with_a_reason_is_invalid_unless_said_otherwise(
    parsed: Parsed, is_valid: bool
) -> None:
    assert parsed.valid is is_valid


def test_generation_of_a_numeric_policy_needs_no_text() -> None:
    generation = Generation(action=1)
    assert (generation.text, generation.action) == ("", 1)
    assert msgspec.json.decode(msgspec.json.encode(generation), type=Generation) == generation


def test_valid_of_a_group_is_the_old_name_of_completed() -> None:
    played = Trajectory("g0.0", "env", 0, [], 1.0, StopReason.TERMINATED)
    failed = Trajectory("g0.1", "env", 0, [], 0.0, StopReason.ENV_ERROR, error=EnvError("broken"))
    group = Group("g0", [played, failed])
    assert group.completed == [played]
    with pytest.warns(DeprecationWarning, match=r"use Group\.completed"):
        assert group.valid == group.completed


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Sampling(temperature=-0.1), "Sampling: temperature=-0.1 must be at least 0"),
        (lambda: Sampling(temperature=math.nan), "temperature=nan must be at least 0"),
        (lambda: Sampling(temperature=math.inf), "temperature=inf must be finite"),
        (lambda: Sampling(top_p=0), "top_p=0 must be above 0 and at most 1"),
        (lambda: Sampling(top_p=1.5), r"top_p=1\.5 must be above 0 and at most 1"),
        (lambda: Sampling(max_tokens=0), "max_tokens=0 must be at least 1"),
        (lambda: Limits(turns=0), "Limits: turns=0 must be at least 1"),
        (lambda: Limits(invalid=-1), "invalid=-1 must be at least 1"),
        (lambda: Limits(seconds=0), "seconds=0 must be above 0"),
    ],
)
def test_bounds_hold_for_what_is_made_in_python(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
