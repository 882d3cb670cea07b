"""Flat arrays whose rows belong to groups: validation, and statistics per group."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncrollout.errors import UsageError
from asyncrollout.types import exact_sum

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Labels = NDArray[np.intp]
"""Per row, the number of its group: 0, 1, 2, ..."""


@dataclass(frozen=True, eq=False)
class Stats:
    """Per group; `std` uses ddof=1, and is 0 for one row."""

    count: Labels
    mean: Floats
    std: Floats

    def of(self, labels: Labels) -> "Stats":
        """Per row: the statistics of its group."""
        return Stats(self.count[labels], self.mean[labels], self.std[labels])


def stats(values: Floats, labels: Labels) -> Stats:
    """Statistics per label. If all values of a group are equal, its mean is that value, and its std exactly 0."""
    count = np.bincount(labels)
    low, high = np.full(len(count), np.inf), np.full(len(count), -np.inf)
    np.minimum.at(low, labels, values)
    np.maximum.at(high, labels, values)
    mean = np.where(low == high, low, totals(values, labels) / count)
    squares = totals((values - mean[labels]) ** 2, labels)
    return Stats(count, mean, np.sqrt(squares / np.maximum(count - 1, 1)))


def totals(values: Floats, labels: Labels) -> Floats:
    return np.bincount(labels, values).astype(np.float64, copy=False)


def exact_totals(values: Floats, labels: Labels) -> Floats:
    """Sums per label, each rounded once, so that equal sums compare equal however they are composed."""
    parts: list[list[float]] = [[] for _ in range(int(labels.max(initial=-1)) + 1)]
    for owner, value in zip(labels.tolist(), values.tolist(), strict=True):
        parts[owner].append(value)
    return np.array([exact_sum(each) for each in parts], dtype=np.float64)


def relative(values: Floats, own: Stats, *, eps: float, least: float = 0.0) -> Floats:
    """(value - mean) / (std + eps), with a std of at least `least`, and 0 where nothing varies."""
    return np.divide(values - own.mean, np.maximum(own.std, least) + eps, out=np.zeros_like(values), where=own.std > 0)


@dataclass(frozen=True, eq=False)
class Members:
    """The members with an outcome, each with the statistics of its own group."""

    valid: Flags
    score: Floats
    labels: Labels
    own: Stats

    def for_all(self, found: Floats) -> Floats:
        """Values for these in input order, with 0 for members without an outcome."""
        everyone = np.zeros(len(self.valid))
        everyone[self.valid] = found
        return everyone


def members(score: Floats, keys: Sequence[Hashable], valid: Flags) -> Members:
    labels = label(key for key, counts in zip(keys, valid.tolist(), strict=True) if counts)
    return Members(valid, score[valid], labels, stats(score[valid], labels).of(labels))


def label(keys: Iterable[Hashable]) -> Labels:
    """Equal keys get equal labels, numbered by first appearance."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.intp)


def discounted(rewards: Floats, trajectory: Labels, gamma: float) -> Floats:
    """r[t] + gamma * return[t + 1] within each trajectory, whose rows are in time order."""
    following = [0.0] * (int(trajectory.max(initial=-1)) + 1)
    returns = np.empty(len(rewards))
    steps = list(enumerate(zip(trajectory.tolist(), rewards.tolist(), strict=True)))
    for row, (owner, reward) in reversed(steps):
        returns[row] = following[owner] = reward + gamma * following[owner]
    return returns


def read_numbers(name: str, values: ArrayLike, valid: Flags | None = None) -> Floats:
    """A flat array in float64; only rows that are not valid may be NaN or infinite."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be a flat array of numbers: {error}") from error
    if numbers.ndim != 1:
        raise UsageError(f"{name} must be a flat array of numbers, not one of shape {numbers.shape}")
    bad = ~np.isfinite(numbers) if valid is None else ~np.isfinite(numbers) & valid
    if bad.any():
        row = int(bad.argmax())
        raise UsageError(f"{name}[{row}] is {numbers[row]}: a reward must be finite")
    return numbers


def read_members(name: str, scores: ArrayLike, valid: ArrayLike | None) -> tuple[Floats, Flags]:
    """Scores, and flags that say which of them count."""
    rows = _length(name, scores)
    counts = read_flags("valid", valid, rows)
    return read_numbers(name, scores, counts), counts


def read_flags(name: str, values: ArrayLike | None, rows: int) -> Flags:
    """True or False for each row; all True if not given."""
    if values is None:
        return np.ones(rows, dtype=np.bool_)
    _check_length(name, _length(name, values), rows)
    flags = np.asarray(values)
    if flags.ndim != 1 or not np.isin(flags, (False, True)).all():
        raise UsageError(f"{name} must be a flat array of True and False")
    return flags.astype(np.bool_)


def read_keys(name: str, values: Iterable[Any], rows: int) -> list[Hashable]:
    """A hashable per row, equal for equal values."""
    if not isinstance(values, Iterable):
        raise UsageError(f"{name}={values!r} must have one entry per row ({rows})")
    entries = values.tolist() if isinstance(values, np.ndarray) else list(values)
    _check_length(name, len(entries), rows)
    keys: list[Hashable] = []
    for row, entry in enumerate(entries):
        try:
            keys.append(_frozen(entry))
        except TypeError as error:
            raise UsageError(f"{name}[{row}] is a {type(entry).__name__} that cannot be compared: {error}") from error
    return keys


def check_range(name: str, value: Any, least: float = 0.0, most: float = math.inf) -> None:
    if not (
        isinstance(value, (int, float, np.integer, np.floating)) and math.isfinite(value) and least <= value <= most
    ):
        bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise UsageError(f"{name}={value!r} must be a finite number, {bounds}")


def _frozen(value: Any) -> Hashable:
    """The value itself if it is hashable; lists and arrays as tuples, dicts as sets of pairs."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    key = tuple(value) if isinstance(value, list) else value
    try:
        hash(key)
    except TypeError:
        if isinstance(key, tuple):
            return tuple(map(_frozen, key))
        if isinstance(key, dict):
            return frozenset((name, _frozen(part)) for name, part in key.items())
        raise
    return key


def _length(name: str, values: ArrayLike) -> int:
    try:
        return len(values)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(f"{name}={values!r} must be a flat array") from error


def _check_length(name: str, length: int, rows: int) -> None:
    if length != rows:
        raise UsageError(f"{name} has {length} entries for {rows} rows")
