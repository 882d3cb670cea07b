"""Advantages of trajectories within their groups, and of steps among those from the same state (GiGPO).

Pure functions of flat arrays, in float64; groups may be interleaved, and results are in input order. `valid` says which
trajectories have an outcome: the others are left out of every statistic, and their advantage is 0.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from asyncrollout.errors import UsageError
from asyncrollout.grouping import (
    Floats,
    Labels,
    Members,
    Stats,
    check_range,
    discounted,
    exact_totals,
    label,
    members,
    read_flags,
    read_keys,
    read_members,
    read_numbers,
    relative,
    stats,
)
from asyncrollout.validation import check_choice

Singleton = Literal["zero", "raw"]
"""The advantage of a group's only member: 0, or its score."""

_EPS = 1e-6
_WHITEN_EPS = 1e-8


def grpo(
    scores: ArrayLike,
    groups: Iterable[Any],
    *,
    valid: ArrayLike | None = None,
    singleton: Singleton = "zero",
    eps: float = _EPS,
    variance_floor: float | None = None,
) -> Floats:
    """(s - mean) / (std + eps); a variance below `variance_floor` counts as that."""
    check_range("eps", eps)
    check_range("variance_floor", variance_floor or 0.0)
    found = _members(scores, groups, valid)
    least = math.sqrt(variance_floor or 0.0)
    advantage = relative(found.score, found.own, eps=eps, least=least)
    return _with_singletons(found, advantage, found.score / (1 + eps), singleton)


def dr_grpo(
    scores: ArrayLike, groups: Iterable[Any], *, valid: ArrayLike | None = None, singleton: Singleton = "zero"
) -> Floats:
    """s - mean: hard and easy groups are not scaled up."""
    found = _members(scores, groups, valid)
    return _with_singletons(found, found.score - found.own.mean, found.score, singleton)


def rloo(
    scores: ArrayLike, groups: Iterable[Any], *, valid: ArrayLike | None = None, singleton: Singleton = "zero"
) -> Floats:
    """s - mean of the other members: an unbiased baseline."""
    found = _members(scores, groups, valid)
    advantage = (found.score - found.own.mean) * found.own.count / np.maximum(found.own.count - 1, 1)
    return _with_singletons(found, advantage, found.score, singleton)


def reinforce_pp(
    scores: ArrayLike, groups: Iterable[Any], *, valid: ArrayLike | None = None, baseline: bool = True
) -> Floats:
    """s, minus its group's mean if `baseline`, then whitened over the batch."""
    found = _members(scores, groups, valid)
    residual = found.score - found.own.mean if baseline else found.score
    batch = stats(residual, np.zeros(len(residual), dtype=np.intp))
    # The residuals of a group add up to 0: their mean is only rounding, and would give constant groups an advantage.
    center = 0.0 if baseline else batch.mean
    return found.for_all((residual - center) / np.sqrt(batch.std**2 + _WHITEN_EPS))


def max_rl(scores: ArrayLike, groups: Iterable[Any], *, valid: ArrayLike | None = None) -> Floats:
    """(s - mean) / mean, and 0 if the mean is not positive: rare successes weigh more."""
    found = _members(scores, groups, valid)
    deviation = found.score - found.own.mean
    return found.for_all(np.divide(deviation, found.own.mean, out=np.zeros_like(deviation), where=found.own.mean > 0))


def pass_at_k(scores: ArrayLike, groups: Iterable[Any], *, valid: ArrayLike | None = None) -> Floats:
    """Only a group's best member has an advantage: its lead over the second best."""
    found = _members(scores, groups, valid)
    order = np.lexsort((found.score, found.labels))
    best = np.cumsum(np.bincount(found.labels)) - 1  # where each group ends in that order
    best = best[found.own.count[order[best]] > 1]
    advantage = np.zeros_like(found.score)
    advantage[order[best]] = found.score[order[best]] - found.score[order[best - 1]]
    return found.for_all(advantage)


class GiGPO(NamedTuple):
    """Per row: its advantage, the two parts of it, and the return and group of the step part."""

    advantage: Floats
    episode: Floats
    step: Floats
    step_return: Floats
    step_group: Labels


def gigpo(
    *,
    group: Iterable[Any],
    trajectory: Iterable[Any],
    reward: ArrayLike,
    anchor: Iterable[Any],
    valid: ArrayLike | None = None,
    episode_reward: ArrayLike | None = None,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    normalize: Literal["mean", "mean_std"] = "mean",
    stats_over: Literal["trajectories", "steps"] = "trajectories",
    invalid_penalty: float = 0.0,
    singleton: Singleton = "zero",
    similarity: float | None = None,
) -> GiGPO:
    """The episode's advantage, plus `step_weight` times the step's among all steps from the same state of its group.

    One row per step, those of a trajectory in time order. `anchor` is the state before the action: equal ones are
    compared, or texts whose difflib ratio is at least `similarity`. `valid` says whether the row's *action* was valid:
    others cost `invalid_penalty`. Trajectory ids must be unique within their group only. `episode_reward` is the
    whole trajectory's, in each of its rows, if it is not just the sum of its rewards.
    """
    check_choice("normalize", normalize, ("mean", "mean_std"))
    check_choice("stats_over", stats_over, ("trajectories", "steps"))
    check_choice("singleton", singleton, ("zero", "raw"))
    check_range("gamma", gamma, 0.0, 1.0)
    check_range("step_weight", step_weight)
    check_range("invalid_penalty", invalid_penalty)
    rewards = read_numbers("reward", reward)
    rows = len(rewards)
    group_of = label(read_keys("group", group, rows))
    trajectory_of = label(zip(group_of.tolist(), read_keys("trajectory", trajectory, rows), strict=True))
    anchors = read_keys("anchor", anchor, rows)
    penalty = np.where(read_flags("valid", valid, rows), 0.0, invalid_penalty)

    if episode_reward is None:
        whole = exact_totals(rewards, trajectory_of)[trajectory_of]
    else:
        whole = read_numbers("episode_reward", episode_reward)
        if len(whole) != rows:
            raise UsageError(f"episode_reward has {len(whole)} entries for {rows} rows")
    score = whole - penalty
    first_rows = np.unique(trajectory_of, return_index=True)[1]
    counted = first_rows if stats_over == "trajectories" else np.arange(rows)
    own = stats(score[counted], group_of[counted]).of(group_of)
    alone = np.zeros(rows) if singleton == "zero" else score / (1.0 if normalize == "mean" else 1 + _EPS)
    episode = np.where(own.count == 1, alone, _centred(score, own, normalize))

    step_return = discounted(rewards, trajectory_of, gamma) - penalty
    if similarity is None:
        step_group = label(zip(group_of.tolist(), anchors, strict=True))
    else:
        step_group = _label_similar(group_of, anchors, similarity)
    step = _centred(step_return, stats(step_return, step_group).of(step_group), normalize)
    return GiGPO(episode + step_weight * step, episode, step, step_return, step_group)


def _centred(values: Floats, own: Stats, normalize: str) -> Floats:
    return values - own.mean if normalize == "mean" else relative(values, own, eps=_EPS)


def _members(scores: ArrayLike, groups: Iterable[Any], valid: ArrayLike | None) -> Members:
    numbers, counts = read_members("scores", scores, valid)
    return members(numbers, read_keys("groups", groups, len(numbers)), counts)


def _with_singletons(found: Members, advantage: Floats, raw: Floats, singleton: Singleton) -> Floats:
    check_choice("singleton", singleton, ("zero", "raw"))
    alone = raw if singleton == "raw" else np.zeros_like(raw)
    return found.for_all(np.where(found.own.count == 1, alone, advantage))


def _label_similar(group_of: Labels, texts: Sequence[Hashable], similarity: float) -> Labels:
    """Each text joins the oldest cluster of its group whose first text is similar, or opens a new one."""
    check_range("similarity", similarity, 0.0, 1.0)
    clusters: dict[int, dict[int, SequenceMatcher[str]]] = {}
    known: dict[tuple[int, str], int] = {}  # a text that comes again finds the same clusters first, in the same order
    labels: list[int] = []
    opened = 0
    for row, (group, text) in enumerate(zip(group_of.tolist(), texts, strict=True)):
        if not isinstance(text, str):
            raise UsageError(f"anchor[{row}] is a {type(text).__name__}: similarity needs texts")
        if (group, text) not in known:
            firsts = clusters.setdefault(group, {})
            joined = next((number for number, first in firsts.items() if _alike(first, text, similarity)), opened)
            if joined == opened:
                firsts[opened] = SequenceMatcher(None, "", text, autojunk=False)  # else it passes over frequent letters
                opened += 1
            known[group, text] = joined
        labels.append(known[group, text])
    return np.array(labels, dtype=np.intp)


def _alike(first: SequenceMatcher[str], text: str, similarity: float) -> bool:
    first.set_seq1(text)
    bounds_then_ratio = (first.real_quick_ratio, first.quick_ratio, first.ratio)  # cheap upper bounds come first
    return all(ratio() >= similarity for ratio in bounds_then_ratio)
