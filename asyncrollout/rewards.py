"""Rewards before they become advantages: normalized, penalized for length and format, discounted. Pure, in float64."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from asyncrollout.errors import UsageError
from asyncrollout.grouping import (
    Floats,
    check_range,
    discounted,
    label,
    members,
    read_keys,
    read_members,
    read_numbers,
    relative,
)
from asyncrollout.validation import check_choice

Grouping = Literal["state", "inductive", "batch"]
Method = Literal["identity", "mean", "mean_std", "asym_clip"]

_EPS = 1e-6
_CLIP = (-1.0, 3.0)


def normalize(
    rewards: ArrayLike,
    *,
    penalties: ArrayLike = 0.0,
    groups: Iterable[Any] | None = None,
    tags: Iterable[Any] | None = None,
    grouping: Grouping = "state",
    method: Method = "identity",
    valid: ArrayLike | None = None,
) -> Floats:
    """Rewards minus their penalties (of either sign), normalized within each group, each env tag or the whole batch.

    If all groups have one member, failed ones included, nothing is normalized. Trajectories that are not `valid` are
    left out of every statistic, and get 0.
    """
    check_choice("grouping", grouping, ("state", "inductive", "batch"))
    check_choice("method", method, ("identity", "mean", "mean_std", "asym_clip"))
    raw, counts = read_members("rewards", rewards, valid)
    given = np.full(len(raw), penalties) if np.ndim(penalties) == 0 else penalties
    costs = np.abs(read_numbers("penalties", given, counts))
    if len(costs) != len(raw):
        raise UsageError(f"penalties has {len(costs)} entries for {len(raw)} rows")
    keys = _keys(grouping, groups, tags, len(raw))
    found = members(raw - costs, keys, counts)
    if method == "identity" or len({*keys}) == len(keys):
        return found.for_all(found.score)
    if method == "mean":
        return found.for_all(found.score - found.own.mean)
    scaled = np.where(found.own.std > _EPS, relative(found.score, found.own, eps=_EPS), 0.0)
    return found.for_all(scaled.clip(*_CLIP) if method == "asym_clip" else scaled)


@overload
def overlong(length: float, *, max_length: float, buffer: float, factor: float = 1.0) -> float: ...
@overload
def overlong(
    length: Sequence[float] | np.ndarray[Any, Any], *, max_length: float, buffer: float, factor: float = 1.0
) -> Floats: ...
def overlong(length: ArrayLike, *, max_length: float, buffer: float, factor: float = 1.0) -> float | Floats:
    """The penalty of length: 0 up to `max_length - buffer`, then linear, -factor at the maximum, and on beyond."""
    check_range("max_length", max_length)
    check_range("factor", factor)
    if not 0 < buffer <= max_length:
        raise UsageError(f"buffer={buffer!r} must be above 0 and at most max_length={max_length!r}")
    room = (max_length - buffer) - np.asarray(length, dtype=np.float64)
    costs: float | Floats = np.minimum(room / buffer * factor, 0.0)
    return costs


@overload
def format_penalty(invalid: float, amount: float = 0.1) -> float: ...
@overload
def format_penalty(invalid: Sequence[float] | np.ndarray[Any, Any], amount: float = 0.1) -> Floats: ...
def format_penalty(invalid: ArrayLike, amount: float = 0.1) -> float | Floats:
    """The penalty of so many invalid replies; an amount of -0.1 is the same as 0.1."""
    check_range("amount", amount, -math.inf)
    counts = np.asarray(invalid, dtype=np.float64)
    if not (counts >= 0).all():
        raise UsageError(f"invalid={invalid!r} must be counts of invalid replies")
    costs: float | Floats = 0.0 - abs(amount) * counts
    return costs


def discount(rewards: ArrayLike, gamma: float = 0.95, *, trajectories: Iterable[Any] | None = None) -> Floats:
    """r[t] + gamma * return[t + 1], without a bootstrap at the end; `trajectories` has the owner of each row."""
    check_range("gamma", gamma, 0.0, 1.0)
    numbers = read_numbers("rewards", rewards)
    owners = [0] * len(numbers) if trajectories is None else read_keys("trajectories", trajectories, len(numbers))
    return discounted(numbers, label(owners), gamma)


def _keys(grouping: Grouping, groups: Iterable[Any] | None, tags: Iterable[Any] | None, rows: int) -> list[Hashable]:
    if grouping == "batch":
        return [0] * rows
    name, values = ("groups", groups) if grouping == "state" else ("tags", tags)
    if values is None:
        raise UsageError(f"grouping={grouping!r} needs {name}=, one per reward")
    return read_keys(name, values, rows)
