"""Numbers as text: as many digits as are known, and never two that differ shown as one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.cli.terminal.numbers import number
from asyncrollout.report.precision import as_estimate, as_shares, as_texts
from asyncrollout.stats import Estimate

POWERS = {"": 1.0, "M": 1e6, "G": 1e9, "T": 1e12}


@pytest.mark.parametrize(
    ("found", "sign", "text"),
    [
        (Estimate(3.883, 2.719, 5.047), "", "3.883 [2.719, 5.047]"),
        (Estimate(-0.117, -0.150, -0.084), "+", "-0.117 [-0.150, -0.084]"),
        (Estimate(3e-4, 2.5e-4, 3.5e-4), "", "3.000e-4 [2.500e-4, 3.500e-4]"),
        (Estimate(1e-4), "", "1.000e-4"),
        (Estimate(12_300_000.0, 12_250_000.0, 12_350_000.0), "", "12.300M [12.250M, 12.350M]"),
        (Estimate(12_500_000.0), "", "12.500M"),
        (Estimate(0.5, 0.49999, 0.50001), "", "0.500000 [0.499990, 0.500010]"),
        (Estimate(0.0), "", "0.000"),
        (Estimate(), "", "-"),
    ],
)
def test_digits_follow_the_interval(found: Estimate, sign: str, text: str) -> None:
    assert as_estimate(found, sign) == text


def test_shares_have_digits_for_their_interval() -> None:
    assert as_estimate(Estimate(0.859, 0.779, 0.913), share=True) == "85.9% [77.9%, 91.3%]"
    assert as_estimate(Estimate(0.0004, 0.0001, 0.0016), share=True) == "0.04% [0.01%, 0.16%]"
    assert as_shares([None, 0.0]) == ["-", "0.0%"]


def value_of(text: str) -> float:
    return float(text[:-1]) * POWERS[text[-1]] if text[-1] in POWERS else float(text)


@given(st.lists(st.floats(-1e14, 1e14), min_size=1, max_size=3))
def test_what_is_shown_is_the_value_to_a_hundredth_of_the_width(values: list[float]) -> None:
    width, size = max(values) - min(values), max(map(abs, values))
    for value, text in zip(values, as_texts(values), strict=True):
        assert (
            math.isclose(value_of(text), value, abs_tol=max(width / 10, size * 1e-11) or 1e-300) or width < size * 1e-10
        )
        assert not (text.startswith("-") and value_of(text) == 0)


@pytest.mark.parametrize(
    ("one", "other"), [(3e-4, 1e-4), (12.3e6, 12.5e6), (-3e-4, -1e-4), (123_456.0, 123_999.0), (1.2e9, 1.3e9)]
)
def test_the_live_table_distinguishes_small_and_large_rewards(one: float, other: float) -> None:
    assert number(one) != number(other)
    assert max(len(number(one)), len(number(other))) <= 6
