"""Which groups are worth training on. Filters see raw rewards; failed members are left out of every statistic.

A group filter is any callable from a `Group` to a `Verdict`. One that compares groups needs a whole batch: a
`BatchFilter`. Reasons for dropping: `no_valid_member`, `single_member`, `constant_reward`, `success_unknown`,
`success_rate_low`, `success_rate_high`, `too_few_valid`, `truncated`, and of batch filters `no_score` (one member has
no std), `zero_score` and `outranked`; `any_of` joins those of its filters with "+".
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from asyncrollout.errors import UsageError
from asyncrollout.grouping import Floats, check_range, read_numbers
from asyncrollout.successes import Successes, result_of
from asyncrollout.trajectories import Group, Verdict
from asyncrollout.validation import check_choice

GroupFilter = Callable[[Group], Verdict]
Strategy = Literal["top_p", "top_k", "top_k_abs", "min_p", "ratio"]
Metric = Literal["reward_variance", "reward", "reward_sum"]

_KEEP = Verdict(keep=True)
_TINY = 1e-10


def varies(rewards: ArrayLike) -> bool:
    """Whether any two differ, compared exactly: the std of three times 0.1 is above 0."""
    numbers = read_numbers("rewards", rewards)
    return bool((numbers != numbers[:1]).any())


@overload
def reward_varies(group: Group, *, singleton: Literal["drop", "keep"] = "drop") -> Verdict: ...
@overload
def reward_varies(*, singleton: Literal["drop", "keep"]) -> GroupFilter: ...
def reward_varies(group: Group | None = None, *, singleton: Literal["drop", "keep"] = "drop") -> Verdict | GroupFilter:
    """Keep a group unless all its rewards are equal; `singleton` decides for those with one member.

    Called without a group it returns a filter: `keep=reward_varies(singleton="keep")`.
    """
    check_choice("singleton", singleton, ("drop", "keep"))
    if group is None:
        return partial(reward_varies, singleton=singleton)
    rewards = _rewards(group)
    if not rewards.size:
        return _drop("no_valid_member")
    if rewards.size == 1:
        return _KEEP if singleton == "keep" else _drop("single_member")
    return _KEEP if varies(rewards) else _drop("constant_reward")


def success_between(low: float, high: float) -> GroupFilter:
    """Keep groups whose success rate is from `low` to `high`, inclusive.

    If the env reports success for any member, one that was truncated without a report counts as a failure.
    """
    check_range("low", low, 0.0, 1.0)
    check_range("high", high, low, 1.0)

    def judge(group: Group) -> Verdict:
        rate = Successes(map(result_of, group.completed)).rate
        if rate is None:
            return _drop("success_unknown" if group.completed else "no_valid_member")
        if rate < low:
            return _drop("success_rate_low")
        return _drop("success_rate_high") if rate > high else _KEEP

    return judge


def min_valid(k: int) -> GroupFilter:
    """Keep groups in which at least `k` members completed."""
    check_range("k", k, 1)
    return lambda group: _KEEP if len(group.completed) >= k else _drop("too_few_valid")


def not_truncated(group: Group) -> Verdict:
    """Keep a group if none of its members was truncated."""
    return _drop("truncated") if any(trajectory.truncated for trajectory in group.completed) else _KEEP


def all_of(*filters: GroupFilter) -> GroupFilter:
    """Keep what all filters keep; the first to drop a group gives the reason."""
    _check_filters("all_of", filters)

    def judge(group: Group) -> Verdict:
        return next((verdict for each in filters if not (verdict := as_verdict(each(group), each)).keep), _KEEP)

    return judge


def any_of(*filters: GroupFilter) -> GroupFilter:
    """Keep what any filter keeps; the reasons are joined with "+"."""
    _check_filters("any_of", filters)

    def judge(group: Group) -> Verdict:
        reasons: dict[str, None] = {}
        for each in filters:
            verdict = as_verdict(each(group), each)
            if verdict.keep:
                return verdict
            reasons[verdict.reason] = None
        return _drop("+".join(reasons))

    return judge


def as_verdict(found: Any, keep: Any) -> Verdict:
    """The result of the filter `keep` as a `Verdict`; Python's and numpy's bools are accepted."""
    if isinstance(found, bool | np.bool_):
        return Verdict(keep=bool(found))
    if not isinstance(found, Verdict):
        raise UsageError(f"the filter {name_of(keep)} returned {found!r:.100}: return a Verdict(keep, reason)")
    return found


def name_of(keep: Any) -> str:
    """A filter's name, for error messages."""
    function = getattr(keep, "judge", getattr(keep, "func", keep))  # of a `BatchFilter`, or of a partial function
    return getattr(function, "__qualname__", None) or type(function).__name__


@dataclass(frozen=True)
class BatchFilter:
    """Marks a callable as one that judges a whole batch; it can be a decorator."""

    judge: Callable[[Sequence[Group]], Sequence[Verdict]]

    def __call__(self, groups: Sequence[Group]) -> list[Verdict]:
        """One verdict per group, in order."""
        verdicts = list(self.judge(groups))
        if len(verdicts) != len(groups):
            raise UsageError(f"batch filter {self.judge!r} returned {len(verdicts)} verdicts for {len(groups)} groups")
        return verdicts


def top_std(ratio: float, largest: bool = True) -> BatchFilter:
    """Keep the int(ratio * groups) whose rewards vary most, or least."""
    return ranked("ratio", ratio, largest=largest)


def ranked(
    strategy: Strategy,
    value: float,
    *,
    metric: Metric = "reward_variance",
    largest: bool = True,
    include_zero: bool = True,
    softmax: bool = False,
    selection_eps: float = 0.01,
) -> BatchFilter:
    """A batch filter that keeps the groups which `select` selects."""
    return BatchFilter(_Ranking(strategy, value, metric, largest, include_zero, softmax, selection_eps))


def select(
    rewards_of_groups: Iterable[ArrayLike],
    strategy: Strategy,
    value: float,
    *,
    metric: Metric = "reward_variance",
    largest: bool = True,
    include_zero: bool = True,
    softmax: bool = False,
    selection_eps: float = 0.01,
) -> list[int]:
    """The groups to keep, by index, in input order. They are scored by their std, mean or sum, and ranked stably.

    `top_p` keeps the first that together make up `value` of all scores (or of their softmax), `top_k` a share of the
    groups and `top_k_abs` a number of them, at least one; `min_p` all that reach that share of the best; `ratio` a
    share, rounded down. Without `include_zero`, scores of 0 are removed first. A group without a score is kept only
    where `top_p` keeps everything.
    """
    ranking = _Ranking(strategy, value, metric, largest, include_zero, softmax, selection_eps)
    named = enumerate(rewards_of_groups)
    return ranking.kept(ranking.scores([read_numbers(f"rewards_of_groups[{row}]", rewards) for row, rewards in named]))


@dataclass(frozen=True)
class _Ranking:
    strategy: Strategy
    value: float
    metric: Metric
    largest: bool
    include_zero: bool
    softmax: bool
    selection_eps: float

    def __post_init__(self) -> None:
        check_choice("strategy", self.strategy, ("top_p", "top_k", "top_k_abs", "min_p", "ratio"))
        check_choice("metric", self.metric, ("reward_variance", "reward", "reward_sum"))
        if self.strategy == "ratio":
            check_range("ratio", self.value, 0.0, 1.0)
        check_range("value", self.value)
        check_range("selection_eps", self.selection_eps)

    def __call__(self, groups: Sequence[Group]) -> list[Verdict]:
        scores = self.scores([_rewards(group) for group in groups])
        kept = set(self.kept(scores))
        return [_KEEP if row in kept else _drop(self._reason(score)) for row, score in enumerate(scores.tolist())]

    def scores(self, rewards_of_groups: Sequence[Floats]) -> Floats:
        return np.array([self._score(rewards) for rewards in rewards_of_groups], dtype=np.float64)

    def kept(self, scores: Floats) -> list[int]:
        if self._keeps_all:
            return list(range(len(scores)))
        candidates = np.flatnonzero([not self._left_out(score) for score in scores.tolist()])
        if not candidates.size:
            return []
        order = np.argsort(-scores[candidates] if self.largest else scores[candidates], kind="stable")
        best_first = candidates[order]
        return sorted(best_first[: self._count(scores[best_first], len(scores))].tolist())

    @property
    def _keeps_all(self) -> bool:
        return self.strategy == "top_p" and self.value >= 1 and self.include_zero

    def _left_out(self, score: float) -> bool:
        return math.isnan(score) or (not self.include_zero and abs(score) <= _TINY)

    def _reason(self, score: float) -> str:
        if math.isnan(score):
            return "no_score"
        return "zero_score" if self._left_out(score) else "outranked"

    def _score(self, rewards: Floats) -> float:
        """Rounded once, at the end: the same rewards in another order must tie."""
        if not rewards.size:
            return math.nan
        if self.metric == "reward":
            return statistics.fmean(rewards)
        if self.metric == "reward_sum":
            return math.fsum(rewards)
        return statistics.stdev(rewards.tolist()) if rewards.size > 1 else math.nan

    def _count(self, best_first: Floats, groups: int) -> int:
        """How many of the sorted scores are kept."""
        match self.strategy:
            case "top_k":
                return max(1, int(self.value * groups))
            case "top_k_abs":
                return max(1, int(self.value))
            case "ratio":
                return int(self.value * groups)
            case "min_p" if self.largest:
                return int(np.count_nonzero(best_first >= _loosened(self.value * best_first[0], -_TINY)))
            case "min_p":
                return int(np.count_nonzero(best_first <= _loosened(best_first[0] / max(self.value, _TINY), _TINY)))
        if self.value >= 1:
            return len(best_first)
        return self._probable(best_first) if self.softmax else self._nucleus(best_first)

    def _probable(self, best_first: Floats) -> int:
        odds = np.exp(-np.abs(best_first - best_first[0]))  # the best has 1, in either direction
        return int(np.searchsorted(odds.cumsum() / odds.sum(), self.value)) + 1

    def _nucleus(self, best_first: Floats) -> int:
        threshold = self.value * best_first.sum() - self.selection_eps
        gathered, taken = 0.0, 0
        for score in best_first.tolist():
            if gathered >= threshold or score <= 0:
                break
            gathered += score
            taken += 1
        return taken if gathered >= threshold else 0


def _loosened(bound: float, by: float) -> float:
    """A bound that includes equality, however it was rounded."""
    return bound + by * max(1.0, abs(bound))


def _rewards(group: Group) -> Floats:
    valid = np.array([trajectory.valid for trajectory in group.trajectories], dtype=np.bool_)
    return read_numbers(f"group {group.id!r}: rewards", group.rewards, valid)[valid]


def _drop(reason: str) -> Verdict:
    return Verdict(keep=False, reason=reason)


def _check_filters(name: str, filters: Sequence[GroupFilter]) -> None:
    if not filters:
        raise UsageError(f"{name}() needs at least one filter")
    for each in filters:
        if isinstance(each, BatchFilter) or not callable(each):
            raise UsageError(f"{name} takes group filters, not {each!r}")
