"""The arithmetic of a report: pure functions of numbers."""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncrollout.stats import student_t

Floats = Sequence[float] | NDArray[np.float64]

_PERCENTILES = (50, 90, 95, 99)
_LEAST_IN_BIN = 4


class Estimate(NamedTuple):
    """A mean, and half the width of its 95% interval; None if the values do not differ, which tells nothing of it."""

    mean: float | None
    half: float | None = None


class Span(NamedTuple):
    """A rollout in time: when it began and ended, and for how long it did what, in order."""

    start: float
    end: float
    parts: list[tuple[str, float]]


def estimate(values: Floats) -> Estimate:
    """The mean of values that are independent of each other, as means of groups are."""
    if not len(values):
        return Estimate(None)
    mean = float(np.mean(values))
    if len(values) < 2 or float(np.ptp(values)) == 0:
        return Estimate(mean)
    return Estimate(mean, student_t(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values)))


def percentiles(values: Floats) -> dict[str, float]:
    """Count, mean, some percentiles and the largest; only the count if there are no values."""
    if not len(values):
        return {"count": 0}
    found = np.percentile(values, _PERCENTILES)
    named = {f"p{which}": float(value) for which, value in zip(_PERCENTILES, found, strict=True)}
    return {"count": len(values), "mean": float(np.mean(values)), **named, "max": float(np.max(values))}


def edges(values: Floats, most: int = 40, *, whole: bool = False) -> list[float]:
    """Where the bars of a histogram of these values end; those of whole numbers are as wide as whole numbers."""
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
    """The share of the values in each bar; all are 0 if there are no values."""
    counts, _ = np.histogram(np.asarray(values, dtype=np.float64), np.asarray(at, dtype=np.float64))
    return [float(count) / max(len(values), 1) for count in counts]


def distribution(values: Floats, most: int = 100) -> list[tuple[float, float]]:
    """Points (value, share of values up to it) of the cumulative distribution."""
    if not len(values):
        return []
    at = np.linspace(0.0, 1.0, most + 1)
    return [(float(value), float(share)) for value, share in zip(np.quantile(values, at), at, strict=True)]


def means_over(times: Floats, values: Floats, end: float, bins: int) -> list[tuple[float, float, float | None]]:
    """(middle of the bin, mean, half of its 95% interval) for each bin of the time up to `end` that has values.

    A bin of two or three has no interval: it would be wider than all the rest of a plot.
    """
    which = np.minimum((np.asarray(times) * bins / max(end, 1e-9)).astype(int), bins - 1)
    array = np.asarray(values, dtype=np.float64)
    found = []
    for index in np.unique(which):
        of_bin = array[which == index]
        mean, half = estimate(of_bin)
        assert mean is not None
        found.append(((float(index) + 0.5) * end / bins, mean, half if len(of_bin) >= _LEAST_IN_BIN else None))
    return found


def lanes(spans: Sequence[Span]) -> list[int]:
    """A lane for each span, the first one that is free; spans are in the order in which they began."""
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
    """How many of the stretches of time were under way, on average over each bin of the time up to `end`."""
    at = np.linspace(0.0, max(end, 1e-9), bins + 1)
    passed = _time_since(starts, at) - _time_since(ends, at)
    return [float(max(value, 0.0)) for value in np.diff(passed) / (at[1] - at[0])]


def _time_since(moments: Floats, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """At each time: the sum, over all moments before it, of the time that has passed since."""
    ordered = np.sort(np.asarray(moments, dtype=np.float64))
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, at)
    result: NDArray[np.float64] = at * before - sums[before]
    return result


def every_nth(count: int, most: int) -> list[int]:
    """At most `most` places among `count`, evenly apart."""
    return [index * count // most for index in range(most)] if count > most else list(range(count))
