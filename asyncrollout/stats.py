"""How runs compare: means with 95% confidence intervals.

The group is the unit everywhere, since its members share a task and a seed and are alike: intervals are over the means
of groups. For rewards, turns and tokens these are Student's t intervals, which hold for few groups, too, where a
bootstrap's are too narrow. For shares, such as pass rates, they are Wilson's, which hold near 0 and 1, too, where t
intervals shrink to nothing; n is what the spread among groups says that the rollouts are worth.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from asyncrollout.errors import UsageError

_LEAST_SHARED = 0.5


class Estimate(msgspec.Struct, frozen=True):
    """A mean, which is between `low` and `high` with 95 % confidence; None is what cannot be known."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None


class ComparedGroup(msgspec.Struct, frozen=True):
    """A group, as far as it is compared. `what` is equal in two runs if both played the same.

    Means of turns and tokens, like rewards, are those of members that have an outcome.
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
        return _mean(self.rewards)

    def pass_at(self, k: int) -> float:
        return pass_at(len(self.rewards), self.successes, k)


class RunFigures(msgspec.Struct, frozen=True):
    """One run, or one of its envs; the keys of `pass_at` are k. Rollouts that failed are in `failed` alone."""

    groups: int
    rollouts: int
    failed: int
    reward: Estimate
    pass_at: dict[int, Estimate]
    keep_rate: Estimate
    turns: Estimate
    tokens: Estimate


class Difference(msgspec.Struct, frozen=True):
    """By how much a run is above another; `pairs` counts the groups that both played, if they are compared by pairs."""

    pairs: int | None
    reward: Estimate
    pass_at: dict[int, Estimate]


def summarize(groups: Sequence[ComparedGroup], ks: Iterable[int]) -> RunFigures:
    """The figures of a run. All groups count, dropped ones, too: what a filter keeps is no fair sample."""
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

    What makes a task easy or hard is then the same on both sides, and only what is left makes the interval wide.
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
    """Student's t interval. Values that do not differ at all do not tell how far they may be off."""
    if not values:
        return Estimate()
    found, error = _mean(values), _standard_error(values)
    return Estimate(found) if error is None else _around(found, error, len(values) - 1)


def mean_count(values: Sequence[float]) -> Estimate:
    """As `mean`, of values that are never below 0."""
    found = mean(values)
    return found if found.low is None else Estimate(found.mean, max(found.low, 0.0), found.high)


def share(values: Sequence[float], trials: float) -> Estimate:
    """Wilson's interval for the mean of values from 0 to 1, each of a group; in all groups there are `trials`.

    If the groups are all 0 or all 1, nothing is known of how alike members are, and each group counts as one trial.
    """
    if not values:
        return Estimate()
    found, variance = _mean(values), (_standard_error(values) or 0.0) ** 2
    if len(values) < 2:
        return Estimate(found)
    if found in (0.0, 1.0):
        worth: float = len(values)
    else:
        worth = min(found * (1 - found) / variance, trials) if variance else trials
    t = student_t(len(values) - 1)
    middle = (found + t * t / (2 * worth)) / (1 + t * t / worth)
    half = t / (1 + t * t / worth) * math.sqrt(found * (1 - found) / worth + (t / (2 * worth)) ** 2)
    return Estimate(found, min(max(middle - half, 0.0), found), max(min(middle + half, 1.0), found))


def pass_at(count: int, successes: int, k: int) -> float:
    """How likely at least one of `k` rollouts succeeds, estimated without bias from `count` of the same task."""
    if not 1 <= k <= count:
        raise UsageError(f"pass@{k} of {count} rollouts: k is from 1 to {count}")
    return 1.0 - math.comb(count - successes, k) / math.comb(count, k)


def student_t(freedom: float) -> float:
    """The 97.5 % quantile of Student's t: within 0.004, or else above it."""
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
    """Groups with fewer than `k` outcomes are left out."""
    return [group.pass_at(k) for group in groups if len(group.rewards) >= k]


def _paired(pairs: Sequence[tuple[ComparedGroup, ComparedGroup]], k: int) -> list[float]:
    return [b.pass_at(k) - a.pass_at(k) for a, b in pairs if min(len(a.rewards), len(b.rewards)) >= k]


def _welch(base: Sequence[float], other: Sequence[float]) -> Estimate:
    """The difference of the means of two samples that have nothing to do with each other."""
    if not base or not other:
        return Estimate()
    found = _mean(other) - _mean(base)
    parts = [(0.0 if error is None else error) ** 2 for error in map(_standard_error, (base, other))]
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


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; None if the values do not tell."""
    middle = _mean(values)
    if len(values) < 2 or all(math.isclose(value, middle, rel_tol=1e-12) for value in values):
        return None
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))
