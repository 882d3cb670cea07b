"""Means with 95% confidence intervals, pass@k, and how runs compare: every interval of the package is made here.

The group is the unit everywhere, since its members share a task and a seed and are alike: intervals are over the means
of groups. Rewards, turns and tokens have Student's t intervals, which hold even for few groups, where a bootstrap's are
too narrow. Shares, such as pass rates, have Wilson's, which hold even near 0 and 1, where t intervals shrink to
nothing; their n is the effective number of rollouts, estimated from the spread among groups.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from asyncrollout.errors import UsageError

_LEAST_SHARED = 0.5


class Estimate(msgspec.Struct, frozen=True):
    """A mean and its 95% confidence interval, from `low` to `high`; None is unknown."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None


class ComparedGroup(msgspec.Struct, frozen=True):
    """The figures of a group. `what` is equal in two runs if both played the same task from the same seed.

    Rewards, and the means of turns and tokens, are those of members that have an outcome.
    """

    what: str
    tag: str
    rewards: tuple[float, ...]
    successes: int
    failed: int
    turns: float
    tokens: float
    kept: bool

    @property
    def reward(self) -> float:
        return average(self.rewards)

    def pass_at(self, k: int) -> float:
        return pass_at(len(self.rewards), self.successes, k)


class RunFigures(msgspec.Struct, frozen=True):
    """One run, or one of its envs; the keys of `pass_at` are k. Failed rollouts count in `failed` alone."""

    groups: int
    rollouts: int
    failed: int
    reward: Estimate
    pass_at: dict[int, Estimate]
    keep_rate: Estimate
    turns: Estimate
    tokens: Estimate


class Difference(msgspec.Struct, frozen=True):
    """By how much a run is above another; `pairs` counts the groups that both played, None if unpaired."""

    pairs: int | None
    reward: Estimate
    pass_at: dict[int, Estimate]


def summarize(groups: Sequence[ComparedGroup], ks: Iterable[int]) -> RunFigures:
    """The figures of a run, over dropped groups, too: what a filter keeps is not a fair sample."""
    valid = [group for group in groups if group.rewards]
    return RunFigures(
        groups=len(groups),
        rollouts=sum(len(group.rewards) + group.failed for group in groups),
        failed=sum(group.failed for group in groups),
        reward=mean([group.reward for group in valid]),
        pass_at={k: _pass_rate(valid, k) for k in ks},
        keep_rate=share([float(group.kept) for group in groups], len(groups)),
        turns=mean_count([group.turns for group in valid]),
        tokens=mean_count([group.tokens for group in valid]),
    )


def difference(base: Sequence[ComparedGroup], other: Sequence[ComparedGroup], ks: Iterable[int]) -> Difference:
    """How `other` differs from `base`: by pairs, if at least half of the smaller run is also in the other one.

    Paired groups share the difficulty of their task, which then does not widen the interval.
    """
    ours = {group.what: group for group in base if group.rewards}
    theirs = {group.what: group for group in other if group.rewards}
    shared = [what for what in ours if what in theirs]
    by_pairs = len(shared) >= max(2, _LEAST_SHARED * min(len(ours), len(theirs)))
    if by_pairs:
        pairs = [(ours[what], theirs[what]) for what in shared]
        return Difference(
            pairs=len(pairs),
            reward=mean([b.reward - a.reward for a, b in pairs]),
            pass_at={k: _clipped(mean(_paired(pairs, k))) for k in ks},
        )
    return Difference(
        pairs=None,
        reward=_welch([group.reward for group in ours.values()], [group.reward for group in theirs.values()]),
        pass_at={k: _clipped(_welch(_at([*ours.values()], k), _at([*theirs.values()], k))) for k in ks},
    )


def mean(values: Sequence[float]) -> Estimate:
    """Student's t interval; none if all values are equal, which says nothing of how far off they may be."""
    if not values:
        return Estimate()
    found, error = average(values), standard_error(values)
    return Estimate(found) if error is None else _around(found, error, len(values) - 1)


def mean_count(values: Sequence[float]) -> Estimate:
    """Like `mean`, for values that are never below 0."""
    found = mean(values)
    return found if found.low is None else Estimate(found.mean, max(found.low, 0.0), found.high)


def share(values: Sequence[float], trials: float) -> Estimate:
    """Wilson's interval for the mean of values from 0 to 1, one per group; all groups together have `trials`.

    The spread among groups says how many independent trials they are worth. Near 0 and 1 few groups differ, and their
    spread says little: there, the result is drawn towards one trial per group, and reaches it if all are 0 or all 1.
    """
    if len(values) < 2:
        return Estimate(values[0]) if values else Estimate()
    found, variance = average(values), (standard_error(values) or 0.0) ** 2
    worth = min(found * (1 - found) / variance, trials) if variance else trials
    informative = 4 * len(values) * found * (1 - found)  # all groups, if half of the rollouts succeed
    worth = (informative * worth + min(worth, len(values))) / (informative + 1)
    t = student_t(len(values) - 1)
    middle = (found + t * t / (2 * worth)) / (1 + t * t / worth)
    half = t / (1 + t * t / worth) * math.sqrt(found * (1 - found) / worth + (t / (2 * worth)) ** 2)
    return Estimate(found, min(max(middle - half, 0.0), found), max(min(middle + half, 1.0), found))


def average(values: Sequence[float]) -> float:
    """The plain mean."""
    return math.fsum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None for fewer than two values, or equal ones."""
    middle = average(values)
    if len(values) < 2 or all(math.isclose(value, middle, rel_tol=1e-12) for value in values):
        return None
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))


def pass_at(count: int, successes: int, k: int) -> float:
    """Unbiased estimate, from `count` rollouts of a task, of the chance that at least one of `k` succeeds."""
    if not 1 <= k <= count:
        raise UsageError(f"pass@{k} of {count} rollouts: k must be from 1 to {count}")
    return 1.0 - math.comb(count - successes, k) / math.comb(count, k)


def student_t(freedom: float) -> float:
    """The 97.5% quantile of Student's t, at most 0.004 too low."""
    if freedom < 3:
        return (12.7062, 4.3027)[int(freedom >= 2)]
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, start=1))


def _pass_rate(groups: Sequence[ComparedGroup], k: int) -> Estimate:
    values = _at(groups, k)
    return share(values, sum(len(group.rewards) for group in groups if len(group.rewards) >= k) / k)


def _at(groups: Sequence[ComparedGroup], k: int) -> list[float]:
    """The pass@k of each group that has at least `k` outcomes."""
    return [group.pass_at(k) for group in groups if len(group.rewards) >= k]


def _paired(pairs: Sequence[tuple[ComparedGroup, ComparedGroup]], k: int) -> list[float]:
    return [b.pass_at(k) - a.pass_at(k) for a, b in pairs if min(len(a.rewards), len(b.rewards)) >= k]


def _welch(base: Sequence[float], other: Sequence[float]) -> Estimate:
    """The difference of the means of two independent samples."""
    if not base or not other:
        return Estimate()
    found = average(other) - average(base)
    parts = [(0.0 if error is None else error) ** 2 for error in map(standard_error, (base, other))]
    if min(len(base), len(other)) < 2 or not sum(parts):
        return Estimate(found)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(base) - 1) + parts[1] ** 2 / (len(other) - 1))
    return _around(found, math.sqrt(sum(parts)), freedom)


def _around(found: float, error: float, freedom: float) -> Estimate:
    half = student_t(freedom) * error
    return Estimate(found, found - half, found + half)


def _clipped(estimate: Estimate) -> Estimate:
    if estimate.low is None or estimate.high is None:
        return estimate
    return Estimate(estimate.mean, max(estimate.low, -1.0), min(estimate.high, 1.0))
