"""Advantages, against slow and obvious versions of themselves and the examples they are defined by."""

import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.advantages import dr_grpo, grpo, max_rl, pass_at_k, reinforce_pp, rloo
from asyncrollout.errors import UsageError

EVERY: list[Callable[..., Any]] = [grpo, dr_grpo, rloo, reinforce_pp, max_rl, pass_at_k]
SINGLETONS: list[Callable[..., Any]] = [grpo, dr_grpo, rloo]

eighths = st.integers(-40, 40).map(lambda number: number / 8)  # sums of these are exact
few = st.sampled_from([0.0, 1.0, 2.5])
keys = st.sampled_from(["a", "b", 3, ("c", 4), None])


@dataclass(frozen=True)
class Members:
    scores: list[float]
    groups: list[Any]
    valid: list[bool]

    def others(self, row: int) -> list[float]:
        """The scores that count in the group of a row, its own left out."""
        return [
            score
            for other, score in enumerate(self.scores)
            if other != row and self.valid[other] and self.groups[other] == self.groups[row]
        ]


@st.composite
def members(draw: st.DrawFn) -> Members:
    rows = draw(st.lists(st.tuples(eighths | few, keys, st.booleans() | st.just(True)), max_size=24))
    scores = [score if valid else draw(st.sampled_from([score, math.nan, math.inf])) for score, _, valid in rows]
    return Members(scores, [group for _, group, _ in rows], [valid for *_, valid in rows])


def mean(values: list[float]) -> float:
    return float(sum(map(Fraction, values)) / len(values))


def by_hand(
    case: Members, formula: Callable[[float, list[float]], float], alone: Callable[[float], float]
) -> list[float]:
    advantages = []
    for row, score in enumerate(case.scores):
        others = case.others(row)
        if not case.valid[row]:
            advantages.append(0.0)
        elif not others:
            advantages.append(alone(score))
        else:
            advantages.append(formula(score, others))
    return advantages


def zero(score: float) -> float:
    return 0.0


def close(found: Any, expected: list[float]) -> None:
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(members(), st.sampled_from([None, 0.0, 0.25, 4.0]), st.sampled_from([1e-6, 0.5]))
def test_grpo(case: Members, floor: float | None, eps: float) -> None:
    def formula(score: float, others: list[float]) -> float:
        every = [score, *others]
        if len(set(every)) == 1:
            return 0.0
        return (score - mean(every)) / (math.sqrt(max(statistics.variance(every), floor or 0.0)) + eps)

    given_options: dict[str, Any] = {"valid": case.valid, "eps": eps, "variance_floor": floor}
    close(grpo(case.scores, case.groups, **given_options), by_hand(case, formula, zero))
    raw = by_hand(case, formula, lambda score: score / (1 + eps))
    close(grpo(case.scores, case.groups, singleton="raw", **given_options), raw)


@given(members())
def test_dr_grpo(case: Members) -> None:
    def formula(score: float, others: list[float]) -> float:
        return score - mean([score, *others])

    close(dr_grpo(case.scores, case.groups, valid=case.valid), by_hand(case, formula, zero))
    raw = by_hand(case, formula, lambda score: score)
    close(dr_grpo(case.scores, case.groups, valid=case.valid, singleton="raw"), raw)


@given(members())
def test_rloo(case: Members) -> None:
    def formula(score: float, others: list[float]) -> float:
        return score - mean(others)

    close(rloo(case.scores, case.groups, valid=case.valid), by_hand(case, formula, zero))
    raw = by_hand(case, formula, lambda score: score)
    close(rloo(case.scores, case.groups, valid=case.valid, singleton="raw"), raw)


@given(members(), st.booleans())
def test_reinforce_pp(case: Members, baseline: bool) -> None:
    rows = [row for row, valid in enumerate(case.valid) if valid]
    residuals = {
        row: case.scores[row] - (mean([case.scores[row], *case.others(row)]) if baseline else 0.0) for row in rows
    }
    center = mean(list(residuals.values())) if rows else 0.0
    variance = statistics.variance(residuals.values()) if len(rows) > 1 else 0.0
    expected = [
        (residuals[row] - center) / math.sqrt(variance + 1e-8) if row in residuals else 0.0
        for row in range(len(case.scores))
    ]
    close(reinforce_pp(case.scores, case.groups, valid=case.valid, baseline=baseline), expected)


@given(members())
def test_max_rl(case: Members) -> None:
    def formula(score: float, others: list[float]) -> float:
        average = mean([score, *others])
        return (score - average) / average if average > 0 else 0.0

    close(max_rl(case.scores, case.groups, valid=case.valid), by_hand(case, formula, zero))


@given(members())
def test_pass_at_k(case: Members) -> None:
    def formula(score: float, others: list[float]) -> float:
        return max(score - max(others), 0.0)

    close(pass_at_k(case.scores, case.groups, valid=case.valid), by_hand(case, formula, zero))


@pytest.mark.parametrize("function", EVERY)
def test_constant_groups_get_exactly_zero(function: Callable[..., Any]) -> None:
    assert np.std([0.1] * 3) > 0  # why the std does not decide
    rng = np.random.default_rng(0)
    for size in range(2, 40):
        constant = rng.normal(size=5)
        scores = np.concatenate([np.repeat(constant, size), rng.normal(size=size)])
        groups = np.repeat(np.arange(6), size)
        mixed = rng.permutation(len(scores))  # interleaved
        found = function(scores[mixed], groups[mixed])
        assert (found[groups[mixed] < 5] == 0.0).all()
        assert (found[groups[mixed] == 5] != 0.0).any() or function is max_rl
    assert function([0.1] * 3, ["a"] * 3).tolist() == [0.0] * 3


def test_constant_discounted_returns_get_exactly_zero() -> None:
    """In float32, with the std to decide, a good part of these had advantages above 0.01."""
    for length in range(1, 60):
        total = sum(0.95**step * 0.1 for step in range(length))
        for size in (2, 3, 5, 7, 8):
            assert not grpo(np.full(size, total), [0] * size).any()


def test_grpo_without_eps_divides_by_no_zero() -> None:
    assert grpo([0.1, 0.1, 0.0, 2.0], [0, 0, 1, 1], eps=0.0) == pytest.approx([0, 0, -(0.5**0.5), 0.5**0.5])


def test_reinforce_pp_without_baseline_compares_with_the_whole_batch() -> None:
    found = reinforce_pp([1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"], baseline=False)
    assert found == pytest.approx([0.75**0.5, 0.75**0.5, -(0.75**0.5), -(0.75**0.5)])
    assert reinforce_pp([0.1] * 3, [1, 2, 3], baseline=False).tolist() == [0.0] * 3


def test_small_examples() -> None:
    assert grpo([1.0, 0.0], [7, 7]) == pytest.approx([0.5 / (0.5**0.5 + 1e-6), -0.5 / (0.5**0.5 + 1e-6)])
    assert grpo([3.0], [0], singleton="raw").tolist() == [3.0 / (1 + 1e-6)]
    assert dr_grpo([3.0], [0], singleton="raw").tolist() == rloo([3.0], [0], singleton="raw").tolist() == [3.0]
    assert rloo([1.0, 0.0, 0.0], "aaa").tolist() == [1.0, -0.5, -0.5]
    assert max_rl([1.0, 0.0, 0.0, 0.0], [0] * 4).tolist() == [3.0, -1.0, -1.0, -1.0]
    assert max_rl([-1.0, 1.0], [0, 0]).tolist() == [0.0, 0.0]
    assert pass_at_k([1.0, 3.0, 2.5, 3.0, 0.0], ["a", "a", "a", "b", "b"]).tolist() == [0, 0.5, 0, 3.0, 0]
    assert pass_at_k([2.0, 2.0, 0.0], [0] * 3).tolist() == [0.0] * 3


def test_a_member_without_outcome_leaves_a_singleton() -> None:
    scores, groups, valid = [3.0, math.nan], [0, 0], [True, False]
    assert dr_grpo(scores, groups, valid=valid).tolist() == [0.0, 0.0]
    assert dr_grpo(scores, groups, valid=valid, singleton="raw").tolist() == [3.0, 0.0]


@pytest.mark.parametrize("function", EVERY)
def test_nothing_in_nothing_out(function: Callable[..., Any]) -> None:
    assert function([], []).tolist() == []
    assert function([math.nan], [1], valid=[False]).tolist() == [0.0]


@pytest.mark.parametrize("function", EVERY)
def test_scores_that_are_no_numbers(function: Callable[..., Any]) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(UsageError, match=rf"scores\[1\] is {bad}"):
            function([0.0, bad, bad], [0, 0, 0], valid=[True, True, False])


@pytest.mark.parametrize("function", EVERY)
def test_the_input_stays_as_it_is(function: Callable[..., Any]) -> None:
    scores, groups, valid = np.array([1.0, 2.0, 4.0]), np.array([0, 0, 0]), np.array([True, True, False])
    for array in (scores, groups, valid):
        array.flags.writeable = False
    assert function(scores, groups, valid=valid)[:2].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grpo([1.0, 2.0], [0]), "groups has 1 entries for 2 rows"),
        (lambda: rloo([1.0, 2.0], [0, 0], valid=[True]), "valid has 1 entries for 2 rows"),
        (lambda: rloo([1.0, 2.0], [0, 0], valid=["yes", "no"]), "valid must be a flat array of True and False"),
        (lambda: dr_grpo([[1.0, 2.0]], [0]), r"scores must be a flat array of numbers, not one of shape \(1, 2\)"),
        (lambda: dr_grpo(["one"], [0]), "scores must be a flat array of numbers"),
        (lambda: dr_grpo(1.0, [0]), "scores=1.0 must be a flat array"),
        (lambda: dr_grpo([1.0], [{1}]), r"groups\[0\] is a set that cannot be compared"),
        (lambda: dr_grpo([1.0], 0), "groups=0 must have one entry per row"),  # type: ignore[arg-type]
        (lambda: grpo([1.0], [0], eps=-1.0), "eps=-1.0 must be a finite number, at least 0"),
        (lambda: grpo([1.0], [0], variance_floor=math.nan), "variance_floor=nan"),
        (
            lambda: grpo([1.0], [0], singleton="zeros"),  # type: ignore[arg-type]
            "singleton='zeros' is not valid: did you mean 'zero'",
        ),
    ],
)
def test_misuse(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


def test_the_page_about_algorithms_tells_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "algorithms.md").read_text()
    code = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^print.*# (.*)$", code, re.MULTILINE)
