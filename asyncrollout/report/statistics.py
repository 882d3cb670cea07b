"""Histograms, percentiles and timelines of a report: pure functions of numbers."""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrollout.stats import Estimate

T = TypeVar("T")
Floats = Sequence[float] | NDArray[np.float64]

_PERCENTILES = (50, 90, 95, 99)
_LEAST_IN_BIN = 4


class Span(NamedTuple):
    """A rollout in time: its start and end, and how long it spent on what, in order."""

    start: float
    end: float
    parts: list[tuple[str, float]]


def percentiles(values: Floats) -> dict[str, float]:
    """Count, mean, some percentiles and the largest; only the count if there are none."""
    if not len(values):
        return {"count": 0}
    found = np.percentile(values, _PERCENTILES)
    named = {f"p{which}": float(value) for which, value in zip(_PERCENTILES, found, strict=True)}
    return {"count": len(values), "mean": float(np.mean(values)), **named, "max": float(np.max(values))}


def edges(values: Floats, most: int = 40, *, whole: bool = False) -> list[float]:
    """The edges of a histogram's bars; for whole numbers, bars have a whole width."""
    if not len(values):
        return [0.0, 1.0]
    low, high = float(np.min(values)), float(np.max(values))
    if whole:
        width = max(math.ceil((high - low + 1) / most), 1)
        bars = math.ceil((high - low + 1) / width)
        return [low - 0.5 + width * bar for bar in range(bars + 1)]
    if high - low < 1e-9 * max(abs(low), abs(high), 1.0):
        half = 0.5 * max(1e-6 * abs(low), 1.0)
        return [low - half, low + half]
    return [float(edge) for edge in np.linspace(low, high, most + 1)]


def shares(values: Floats, at: Sequence[float]) -> list[float]:
    """The share of the values in each bar; all are 0 without values."""
    counts, _ = np.histogram(np.asarray(values, dtype=np.float64), np.asarray(at, dtype=np.float64))
    return [float(count) / max(len(values), 1) for count in counts]


def distribution(values: Floats, most: int = 100) -> list[tuple[float, float]]:
    """Points (value, share of values up to it) of the cumulative distribution."""
    if not len(values):
        return []
    at = np.linspace(0.0, 1.0, most + 1)
    return [(float(value), float(share)) for value, share in zip(np.quantile(values, at), at, strict=True)]


Point = tuple[float, float | None, float | None, float | None]
"""Of a line: x, the mean there, and its 95% interval."""


def point(x: float, found: Estimate) -> Point:
    return (x, found.mean, found.low, found.high)


def estimates_over(
    items: Iterable[tuple[float, T]], end: float, bins: int, estimate: Callable[[list[T]], Estimate]
) -> list[Point]:
    """The estimate of each bin's items, by their times, at the middle of the bin; empty bins are left out.

    A bin of two or three has no interval: it would be wider than the rest of the plot.
    """
    by_bin: dict[int, list[T]] = {}
    for at, item in items:
        by_bin.setdefault(min(int(at * bins / max(end, 1e-9)), bins - 1), []).append(item)
    found = []
    for index, chosen in sorted(by_bin.items()):
        one = estimate(chosen)
        found.append(point((index + 0.5) * end / bins, one if len(chosen) >= _LEAST_IN_BIN else Estimate(one.mean)))
    return found


def lanes(spans: Sequence[Span]) -> list[int]:
    """The first free lane for each span; spans are ordered by their start."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    found = []
    for span in spans:
        while busy and busy[0][0] <= span.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (span.end, lane))
        found.append(lane)
    return found


def at_once(starts: Floats, ends: Floats, end: float, bins: int) -> list[float]:
    """How many intervals were open, on average over each bin of the time up to `end`."""
    at = np.linspace(0.0, max(end, 1e-9), bins + 1)
    passed = _time_since(starts, at) - _time_since(ends, at)
    return [float(max(value, 0.0)) for value in np.diff(passed) / (at[1] - at[0])]


def _time_since(moments: Floats, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """At each time: the time that has passed since each earlier moment, summed."""
    ordered = np.sort(np.asarray(moments, dtype=np.float64))
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, at)
    result: NDArray[np.float64] = at * before - sums[before]
    return result


def every_nth(count: int, most: int) -> list[int]:
    """At most `most` indices below `count`, evenly spaced."""
    return [index * count // most for index in range(most)] if count > most else list(range(count))
