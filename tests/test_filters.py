"""Filters: their pure cores against slow and obvious versions, and what they say of groups."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.errors import EnvError, UsageError
from asyncrollout.filters import (
    BatchFilter,
    all_of,
    any_of,
    min_valid,
    not_truncated,
    ranked,
    reward_varies,
    select,
    success_between,
    top_std,
    varies,
)
from asyncrollout.trajectories import Group, StopReason, Trajectory, Turn, Verdict

rewards_of_groups = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]), min_size=1, max_size=4), max_size=8)


def member(
    reward: float, *, failed: bool = False, success: bool | None = None, stop: StopReason = StopReason.TERMINATED
) -> Trajectory:
    info = {} if success is None else {"success": success}
    error = EnvError("it fell over") if failed else None
    return Trajectory("uid", "env", 0, [Turn("seen", reward=reward, info=info)], reward, stop, error)


def group(*rewards: float, failed: Sequence[float] = ()) -> Group:
    return Group("g", [*(member(reward) for reward in rewards), *(member(reward, failed=True) for reward in failed)])


# The cores


def test_varies() -> None:
    assert np.std([0.1] * 3) > 0
    assert not varies([0.1] * 3)
    assert varies([0.1, 0.1, math.nextafter(0.1, 1)])
    assert not varies([2.0])
    assert not varies([])
    with pytest.raises(UsageError, match=r"rewards\[1\] is nan"):
        varies([0.0, math.nan])


def score(rewards: list[float], metric: str) -> float:
    if metric == "reward":
        return sum(rewards) / len(rewards)
    if metric == "reward_sum":
        return sum(rewards)
    if len(rewards) == 1:
        return math.nan
    exact = [Fraction(reward) for reward in rewards]
    return math.sqrt(sum((reward - sum(exact) / len(exact)) ** 2 for reward in exact) / (len(exact) - 1))


def select_by_hand(
    groups: list[list[float]],
    strategy: str,
    value: float,
    *,
    metric: str,
    largest: bool,
    include_zero: bool,
    softmax: bool,
    selection_eps: float,
) -> list[int]:
    if strategy == "top_p" and value >= 1 and include_zero:
        return list(range(len(groups)))
    scored = [(score(rewards, metric), row) for row, rewards in enumerate(groups)]
    left = [(found, row) for found, row in scored if not math.isnan(found) and (include_zero or abs(found) > 1e-10)]
    left.sort(key=lambda each: -each[0] if largest else each[0])
    if not left:
        return []
    scores = [found for found, _ in left]
    taken: list[tuple[float, int]] = []
    if strategy in ("top_k", "top_k_abs"):
        taken = left[: max(1, min(int(value * len(groups)) if strategy == "top_k" else int(value), len(left)))]
    elif strategy == "ratio":
        taken = left[: int(value * len(groups))]
    elif strategy == "min_p" and largest:
        taken = [each for each in left if each[0] >= value * max(scores) - 1e-10]
    elif strategy == "min_p":
        bound = min(scores) / max(value, 1e-10)
        taken = [each for each in left if each[0] <= bound + 1e-10 * max(1.0, abs(bound))]
    elif value >= 1:
        taken = left
    elif softmax:
        odds = [math.exp(found if largest else -found) for found in scores]
        reached = 0.0
        for each, share in zip(left, odds, strict=True):
            taken.append(each)
            reached += share / sum(odds)
            if reached >= value:
                break
    else:
        threshold = value * sum(scores) - selection_eps
        for each in left:
            if sum(found for found, _ in taken) >= threshold or each[0] <= 0:
                break
            taken.append(each)
        if sum(found for found, _ in taken) < threshold:
            taken = []
    return sorted(row for _, row in taken)


@given(
    rewards_of_groups,
    st.sampled_from(["top_p", "top_p", "top_k", "top_k_abs", "min_p", "ratio"]),
    st.sampled_from([0.0, 0.3, 0.55, 0.9, 1.0, 2.0]),
    st.fixed_dictionaries(
        {
            "metric": st.sampled_from(["reward_variance", "reward", "reward_sum"]),
            "largest": st.booleans(),
            "include_zero": st.booleans(),
            "softmax": st.booleans(),
            "selection_eps": st.sampled_from([0.0123, 0.234]),
        }
    ),
)
def test_select(groups: list[list[float]], strategy: Any, value: float, options: Any) -> None:
    value = min(value, 1.0) if strategy == "ratio" else value
    assert select(groups, strategy, value, **options) == select_by_hand(groups, strategy, value, **options)


SPREAD = [[0.0, 0.0], [0.0, 2.0], [0.0, 1.0], [0.0, 4.0]]


def test_top_p_walks_until_the_share_is_reached() -> None:
    assert select(SPREAD, "top_p", 0.5) == [3]  # 4 of 7
    assert select(SPREAD, "top_p", 0.6) == [1, 3]
    assert select(SPREAD, "top_p", 0.99) == [1, 2, 3]  # a score of 0 is never taken
    assert select(SPREAD, "top_p", 1.0) == [0, 1, 2, 3]
    assert select(SPREAD, "top_p", 1.0, include_zero=False) == [1, 2, 3]


def test_top_p_out_of_reach_keeps_nothing() -> None:
    assert select(SPREAD, "top_p", 0.5, largest=False) == []  # stops at the first score, which is 0
    assert select([[3.0, 3.0], [-1.0, -1.0], [5.0, 5.0]], "top_p", 0.9, metric="reward", largest=False) == []


def test_top_p_of_constant_groups_keeps_nothing() -> None:
    assert select([[0.1] * 3, [1.0] * 3], "top_p", 0.9, selection_eps=0.0) == []  # the std of the first is exactly 0


def test_top_p_by_softmax_always_keeps_one() -> None:
    assert select(SPREAD, "top_p", 0.0, softmax=True) == [3]
    assert select(SPREAD, "top_p", 0.0, softmax=True, largest=False) == [0]
    assert select([[0.0, 2000.0], [0.0, 0.0]], "top_p", 0.9, softmax=True) == [0]  # without overflow


def test_top_k_keeps_at_least_one_and_at_most_what_is_left() -> None:
    assert select(SPREAD, "top_k", 0.0) == select(SPREAD, "top_k_abs", 0) == [3]
    assert select(SPREAD, "top_k", 0.5) == select(SPREAD, "top_k_abs", 2.9) == [1, 3]
    assert select(SPREAD, "top_k_abs", 9, include_zero=False) == [1, 2, 3]
    assert select([[1.0, 1.0]], "top_k", 1.0, include_zero=False) == []


@pytest.mark.parametrize("scale", [1.0, 7.0, 1e9, 0.3])
def test_min_p_keeps_what_is_equal_to_its_bound(scale: float) -> None:
    groups = [[0.0, scale], [0.0, 2 * scale], [0.0, 4 * scale]]
    assert select(groups, "min_p", 1.0, largest=False, metric="reward") == [0]
    assert select(groups, "min_p", 0.5, largest=False, metric="reward") == [0, 1]
    assert select(groups, "min_p", 0.5, metric="reward") == [1, 2]
    assert select(groups, "min_p", 0.0, largest=False, metric="reward") == [0, 1, 2]


def test_min_p_compares_with_the_best() -> None:
    assert select(SPREAD, "min_p", 0.5) == [1, 3]
    assert select(SPREAD, "min_p", 0.5, largest=False) == [0]
    assert select(SPREAD, "min_p", 0.49, largest=False, include_zero=False) == [1, 2]


def test_ratio_is_rounded_down() -> None:
    assert select(SPREAD, "ratio", 0.5) == [1, 3]
    assert select(SPREAD, "ratio", 0.24) == []
    assert select(SPREAD, "ratio", 0.25, largest=False) == [0]


def test_ties_keep_the_order_of_the_groups() -> None:
    same = [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]
    for largest in (True, False):
        assert select(same[:3], "top_k_abs", 2, largest=largest) == [0, 1]
    assert select(same, "ratio", 0.5) == [0, 1]
    shuffled = [[0.1, 0.3, 0.7, 0.2], [0.7, 0.3, 0.2, 0.1], [0.2, 0.7, 0.1, 0.3], [0.3, 0.2, 0.7, 0.1]]
    assert len({np.std(rewards) for rewards in shuffled}) > 1  # rounding depends on the order
    for metric in ("reward_variance", "reward", "reward_sum"):
        assert select(shuffled, "top_k_abs", 2, metric=metric) == [0, 1]
        assert select(shuffled, "top_k_abs", 2, metric=metric, largest=False) == [0, 1]


def test_one_member_has_no_std() -> None:
    lonely = [[1.0], [0.0]]
    assert select(lonely, "top_p", 1.0) == [0, 1]
    assert select(lonely, "top_p", 1.0, include_zero=False) == []
    for strategy in ("top_p", "top_k", "top_k_abs", "min_p", "ratio"):
        assert select(lonely, strategy, 0.9) == []
    assert select([[1.0], [0.0, 1.0], []], "top_k", 1.0) == [1]
    assert select([[1.0], [2.0], []], "top_k", 1.0, metric="reward") == [0, 1]


def test_select_takes_arrays_and_leaves_them_alone() -> None:
    rewards = np.array(SPREAD)
    rewards.flags.writeable = False
    assert select(rewards, "ratio", 0.5) == [1, 3]
    assert select([], "top_k", 0.5) == []


# Group filters


def test_reward_varies() -> None:
    assert reward_varies(group(0.0, 1.0)) == Verdict(keep=True)
    assert reward_varies(group(0.1, 0.1, 0.1)) == Verdict(keep=False, reason="constant_reward")
    assert reward_varies(group(0.1)) == Verdict(keep=False, reason="single_member")
    assert reward_varies(group()) == Verdict(keep=False, reason="no_valid_member")


def test_reward_varies_leaves_failed_members_out() -> None:
    assert reward_varies(group(1.0, 1.0, failed=[0.0, math.nan])).reason == "constant_reward"
    assert reward_varies(group(1.0, failed=[0.0])).reason == "single_member"
    assert reward_varies(group(failed=[0.0, 1.0])).reason == "no_valid_member"


def test_reward_varies_with_options() -> None:
    lonely = group(1.0, failed=[0.0])
    assert reward_varies(lonely, singleton="keep").keep
    assert partial(reward_varies, singleton="keep")(lonely).keep
    assert reward_varies(singleton="keep")(lonely).keep
    assert not reward_varies(singleton="keep")(group(1.0, 1.0)).keep


def test_a_reward_that_is_no_number_names_the_group() -> None:
    with pytest.raises(UsageError, match=r"group 'g': rewards\[1\] is nan"):
        reward_varies(group(0.0, math.nan))


def test_success_between() -> None:
    judge = success_between(0.25, 0.75)

    def verdict(*reported: bool | None, failed: int = 0) -> Verdict:
        losses = [member(0.0, success=False, failed=True)] * failed
        return judge(Group("g", [*(member(0.0, success=success) for success in reported), *losses]))

    assert verdict(True, False).keep
    assert verdict(True, False, False, False).keep  # the bounds are included
    assert verdict(True, True, True, False).keep
    assert verdict(True, True).reason == "success_rate_high"
    assert verdict(False, False).reason == "success_rate_low"
    assert verdict(True, True, failed=2).reason == "success_rate_high"
    assert verdict(True, None, False).keep
    assert verdict(None, None).reason == "success_unknown"
    assert verdict(failed=1).reason == "no_valid_member"


def test_member_that_was_cut_off_without_a_report_is_no_success() -> None:
    reported = member(1.0, success=True)
    cut = [member(0.5, success=None, stop=StopReason.TURNS) for _ in range(3)]
    assert success_between(0.0, 0.5)(Group("g", [reported, *cut])).keep
    assert success_between(0.5, 1.0)(Group("g", [reported, *cut])).reason == "success_rate_low"
    assert success_between(0.0, 1.0)(Group("g", cut)).reason == "success_unknown"


def test_verdicts_of_numpy_are_those_of_python() -> None:
    rewards = np.array([1.0, 2.0])
    verdict = Verdict(rewards.std() > 0, reason=np.str_("why"))
    assert (type(verdict.keep), type(verdict.reason)) == (bool, str)
    bare = all_of(lambda group: rewards.std() > 0, any_of(lambda group: rewards.std() < 0, reward_varies))
    assert bare(group(1.0, 2.0)).keep
    with pytest.raises(TypeError, match="keep=1 must be True or False"):
        Verdict(1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"the filter .*<lambda> returned None: return a Verdict"):
        all_of(lambda group: None)(group(1.0, 2.0))  # type: ignore[arg-type, return-value]


def test_min_valid() -> None:
    assert min_valid(2)(group(0.0, 0.0)).keep
    assert min_valid(2)(group(0.0, failed=[0.0])) == Verdict(keep=False, reason="too_few_valid")


def test_not_truncated() -> None:
    cut = member(0.0, stop=StopReason.TURNS)
    assert not_truncated(group(0.0, 1.0)).keep
    assert not_truncated(Group("g", [member(0.0), cut])) == Verdict(keep=False, reason="truncated")
    assert not_truncated(Group("g", [member(0.0), member(0.0, failed=True, stop=StopReason.SECONDS)])).keep


def test_all_of_and_any_of() -> None:
    both, either = all_of(min_valid(2), reward_varies), any_of(min_valid(3), reward_varies)
    assert both(group(0.0, 1.0)).keep
    assert both(group(0.0)).reason == "too_few_valid"  # the first that drops it
    assert both(group(0.0, 0.0)).reason == "constant_reward"
    assert either(group(0.0, 0.0, 0.0)).keep
    assert either(group(0.0, 1.0)).keep
    assert either(group(0.0, 0.0)).reason == "too_few_valid+constant_reward"
    assert any_of(reward_varies, both)(group(0.0, 0.0)).reason == "constant_reward"


# Batch filters


def verdicts(judge: BatchFilter, *groups: Group) -> list[str]:
    return ["kept" if verdict.keep else verdict.reason for verdict in judge(groups)]


def test_top_std() -> None:
    groups = [group(*rewards) for rewards in SPREAD]
    assert verdicts(top_std(0.5), *groups) == ["outranked", "kept", "outranked", "kept"]
    assert verdicts(top_std(0.25, largest=False), *groups) == ["kept", "outranked", "outranked", "outranked"]
    assert verdicts(top_std(1.0), *groups) == ["kept"] * 4
    assert verdicts(top_std(0.5)) == []


def test_ranked_says_why() -> None:
    groups = [group(1.0, failed=[0.0]), group(0.1, 0.1, 0.1), group(0.0, 1.0), group(0.0, 2.0, failed=[math.nan])]
    judge = ranked("top_k_abs", 1, include_zero=False)
    assert verdicts(judge, *groups) == ["no_score", "zero_score", "outranked", "kept"]
    assert verdicts(ranked("top_p", 1.0), *groups) == ["kept"] * 4
    assert verdicts(ranked("top_k_abs", 1, metric="reward", largest=False), *groups)[1] == "kept"


def test_any_callable_can_be_a_batch_filter() -> None:
    @BatchFilter
    def first_only(groups: Sequence[Group]) -> list[Verdict]:
        return [Verdict(keep=row == 0, reason="late") for row, _ in enumerate(groups)]

    assert verdicts(first_only, group(0.0), group(0.0)) == ["kept", "late"]
    with pytest.raises(UsageError, match="returned 0 verdicts for 1 groups"):
        BatchFilter(lambda groups: [])([group(0.0)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ranked("topk", 1), "strategy='topk' is not valid: did you mean 'top_k'"),  # type: ignore[arg-type]
        (lambda: ranked("top_k", 1, metric="variance"), "metric='variance' .*: did you mean 'reward_variance'"),  # type: ignore[arg-type]
        (lambda: ranked("top_k", -1), "value=-1 must be a finite number, at least 0"),
        (lambda: ranked("min_p", math.nan), "value=nan"),
        (lambda: ranked("top_p", 0.5, selection_eps=-1), "selection_eps=-1"),
        (lambda: top_std(1.5), "ratio=1.5 must be a finite number, from 0 to 1"),
        (lambda: select([[0.0], [math.inf]], "top_k", 1), r"rewards_of_groups\[1\]\[0\] is inf"),
        (lambda: reward_varies(singleton="zero"), "singleton='zero' is not valid; available: drop, keep"),  # type: ignore[call-overload]
        (lambda: success_between(0.5, 0.4), "high=0.4 must be a finite number, from 0.5 to 1"),
        (lambda: success_between(-0.5, 0.4), "low=-0.5"),
        (lambda: min_valid(0), "k=0 must be a finite number, at least 1"),
        (all_of, r"all_of\(\) needs at least one filter"),
        (lambda: any_of(reward_varies, top_std(0.5)), "any_of takes group filters, not BatchFilter"),  # type: ignore[arg-type]
    ],
)
def test_misuse(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()
