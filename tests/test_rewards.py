"""Rewards normalised, charged and discounted, against slow and obvious versions."""

import math
import statistics
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.errors import UsageError
from asyncrollout.rewards import discount, format_penalty, normalize, overlong

eighths = st.integers(-40, 40).map(lambda number: number / 8)
rows = st.lists(
    st.tuples(
        eighths,
        st.sampled_from([0.0, 0.5, -0.5]),
        st.sampled_from("abc"),
        st.sampled_from([1, 2]),
        st.booleans() | st.just(True),
    ),
    max_size=16,
)


def by_hand(net: list[float], keys: list[Any], valid: list[bool], method: str) -> list[float]:
    def peers(key: Any) -> list[float]:
        return [value for value, other, counts in zip(net, keys, valid, strict=True) if other == key and counts]

    compared = any(keys.count(key) > 1 for key in keys)  # a failure makes no group of one
    result = []
    for value, key, counts in zip(net, keys, valid, strict=True):
        same = peers(key)
        if not counts:
            result.append(0.0)
        elif method == "identity" or not compared:
            result.append(value)
        elif len(same) == 1:
            result.append(0.0)
        else:
            deviation = float(Fraction(value) - sum(map(Fraction, same)) / len(same))
            std = statistics.stdev(same)
            scaled = deviation / (std + 1e-6) if std > 1e-6 else 0.0
            result.append({"mean": deviation, "mean_std": scaled, "asym_clip": min(max(scaled, -1.0), 3.0)}[method])
    return result


def test_one_failure_does_not_make_rewards_raw() -> None:
    """Groups of two, of each of which one member failed: 9.9 is no more raw alone than beside a whole group."""
    alone = normalize([9.9, 0.0], groups=["a", "a"], valid=[True, False], method="mean_std")
    beside = normalize(
        [9.9, 0.0, 1.0, 2.0], groups=["a", "a", "b", "b"], valid=[True, False, True, True], method="mean_std"
    )
    assert alone.tolist() == beside[:2].tolist() == [0.0, 0.0]
    assert normalize([9.9, 1.0], groups=["a", "b"], valid=[True, False], method="mean").tolist() == [9.9, 0.0]


@given(
    rows,
    st.sampled_from(["state", "inductive", "batch"]),
    st.sampled_from(["identity", "mean", "mean_std", "asym_clip"]),
)
def test_normalize(rows: list[tuple[float, float, str, int, bool]], grouping: Any, method: Any) -> None:
    rewards, penalties, groups, tags, valid = (list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 5
    net = [reward - abs(penalty) for reward, penalty in zip(rewards, penalties, strict=True)]
    keys = {"state": groups, "inductive": tags, "batch": [0] * len(rows)}[grouping]
    found = normalize(
        rewards, penalties=penalties, groups=groups, tags=tags, grouping=grouping, method=method, valid=valid
    )
    assert found.tolist() == pytest.approx(by_hand(net, keys, valid, method), rel=1e-9, abs=1e-9)


def test_asym_clip_is_lenient_upwards() -> None:
    lucky = [10.0] + [0.0] * 15
    scaled = normalize(lucky, groups=[0] * 16, method="mean_std")
    clipped = normalize(lucky, groups=[0] * 16, method="asym_clip")
    assert scaled[0] > 3.0 == clipped[0]
    assert clipped[1:].tolist() == scaled[1:].tolist()
    assert normalize([-10.0] + [0.0] * 15, groups=[0] * 16, method="asym_clip")[0] == -1.0


def test_constant_groups_get_exactly_zero() -> None:
    for method in ("mean", "mean_std", "asym_clip"):
        found = normalize([0.1, 5.0, 0.1, 6.0, 0.1], groups=[0, 1, 0, 1, 0], method=method)
        assert found[[0, 2, 4]].tolist() == [0.0] * 3
        assert found[3] > 0


def test_a_std_of_a_millionth_is_none() -> None:
    assert normalize([0.0, 1.4e-6], groups=[0, 0], method="mean_std").tolist() == [0.0, 0.0]
    assert normalize([0.0, 1.5e-6], groups=[0, 0], method="mean_std")[1] > 0.3


def test_a_lonely_member_in_a_mixed_batch_gets_zero() -> None:
    assert normalize([5.0, 1.0, 3.0], groups=["a", "b", "b"], method="mean").tolist() == [0.0, -1.0, 1.0]


def test_if_all_are_lonely_nothing_is_compared() -> None:
    assert normalize([5.0, 1.0], penalties=[0.5, 0.0], groups=["a", "b"], method="mean_std").tolist() == [4.5, 1.0]
    assert normalize([5.0], grouping="batch", method="mean").tolist() == [5.0]


def test_a_penalty_costs_with_either_sign() -> None:
    assert normalize([1.0, 1.0], penalties=[0.25, -0.25], groups=[0, 0]).tolist() == [0.75, 0.75]
    assert normalize([1.0, 1.0], penalties=-0.25, groups=[0, 0]).tolist() == [0.75, 0.75]


@pytest.mark.parametrize("method", ["identity", "mean", "mean_std", "asym_clip"])
def test_the_raw_rewards_stay_as_they_are(method: Any) -> None:
    rewards = np.array([1.0, 2.0, 4.0])
    found = normalize(rewards, penalties=0.5, groups=[0, 0, 0], method=method)
    found += 100.0
    assert rewards.tolist() == [1.0, 2.0, 4.0]
    assert normalize(rewards, groups=[0, 0, 0], method=method) is not rewards


def test_overlong() -> None:
    assert overlong(80, max_length=100, buffer=20) == 0.0
    assert overlong(90, max_length=100, buffer=20) == -0.5
    assert overlong(100, max_length=100, buffer=20, factor=2.0) == -2.0
    assert overlong(110, max_length=100, buffer=20) == -1.5
    assert isinstance(overlong(90, max_length=100, buffer=20), float)
    assert overlong([10, 85, 100], max_length=100, buffer=20).tolist() == [0.0, -0.25, -1.0]
    assert not np.signbit(overlong([80, 100], max_length=100, buffer=20, factor=0.0)[0])


def test_format_penalty() -> None:
    assert format_penalty(3) == pytest.approx(-0.3)
    assert format_penalty(1, 0.5) == format_penalty(1, -0.5) == -0.5
    assert format_penalty([0, 2, True], -0.25).tolist() == [0.0, -0.5, -0.25]
    assert isinstance(format_penalty(0), float)


@given(st.lists(st.tuples(eighths, st.sampled_from("abc")), max_size=20), st.sampled_from([0.0, 0.5, 1.0]))
def test_discount(steps: list[tuple[float, str]], gamma: float) -> None:
    expected = []
    for row, (_, owner) in enumerate(steps):
        later = [reward for reward, other in steps[row:] if other == owner]
        expected.append(sum(gamma**delay * reward for delay, reward in enumerate(later)))
    found = discount([reward for reward, _ in steps], gamma, trajectories=[owner for _, owner in steps])
    assert found.tolist() == pytest.approx(expected)


def test_discount_of_one_trajectory() -> None:
    rewards = np.array([1.0, 0.0, 4.0])
    rewards.flags.writeable = False
    assert discount(rewards, gamma=0.5).tolist() == [2.0, 2.0, 4.0]
    assert discount([], gamma=0.5).tolist() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: normalize([1.0], groups=[0], grouping="states"), "grouping='states' .*: did you mean 'state'"),  # type: ignore[arg-type]
        (
            lambda: normalize([1.0], groups=[0], method="std"),  # type: ignore[arg-type]
            "method='std' is not valid: did you mean 'mean_std'",
        ),
        (lambda: normalize([1.0]), "grouping='state' needs groups="),
        (lambda: normalize([1.0], groups=[0], grouping="inductive"), "grouping='inductive' needs tags="),
        (lambda: normalize([1.0, 2.0], groups=[0]), "groups has 1 entries for 2 rows"),
        (lambda: normalize([1.0, 2.0], groups=[0, 0], penalties=[0.1]), "penalties has 1 entries for 2 rows"),
        (lambda: normalize([1.0, math.nan], groups=[0, 0]), r"rewards\[1\] is nan"),
        (lambda: normalize([1.0, 2.0], groups=[0, 0], penalties=[0.0, math.inf]), r"penalties\[1\] is inf"),
        (lambda: overlong(5, max_length=10, buffer=0), "buffer=0 must be above 0"),
        (lambda: overlong(5, max_length=10, buffer=11), "buffer=11 must be .* at most max_length=10"),
        (lambda: overlong(5, max_length=10, buffer=5, factor=-1.0), "factor=-1.0"),
        (lambda: format_penalty(-1), "invalid=-1 must be counts of invalid replies"),
        (lambda: format_penalty(1, math.nan), "amount=nan"),
        (lambda: discount([1.0], 1.01), "gamma=1.01 must be a finite number, from 0 to 1"),
        (lambda: discount([1.0], trajectories=[0, 1]), "trajectories has 2 entries for 1 rows"),
    ],
)
def test_misuse(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()
