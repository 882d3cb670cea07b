"""Whether what a trainer is given is what was drawn: lengths and rewards of delivered groups against all groups.

    python benchmarks/bench_bias.py [--batches N] [--all] [--json]

Episodes have lognormal lengths, take as long as they are, and gain less the longer they are. The population are the
same draws, each played to its end without a sampler; a turn limit belongs to the task. With a filter, they are those
that it keeps, and "by filter" is how much longer these are than all draws, in percent. Time is virtual. Each
figure is the difference between what was delivered and the population, in percent, with its 95% interval; it counts as
a bias if it is more than three standard errors, and more than one percent. `--all` plays every combination.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks` and `tests`

import itertools
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from benchmarks.bias_sampling import Sampled, Setting, sample
from benchmarks.harness import new_parser, show

BATCHES = 20
WAYS = [(0, "start"), *itertools.product((1, 2, None), ("finish", "start"))]  # without a lag there is one order
FILTERS = ("none", "by chance", "by length", "batch")
METRICS = ("mean length", "over 3 medians", "mean reward")


class Difference(NamedTuple):
    """Of delivered groups from the population, in percent of the latter."""

    population: float
    delivered: float
    percent: float
    half_interval: float

    @property
    def is_bias(self) -> bool:
        return abs(self.percent) > max(1.0, 1.5 * self.half_interval)

    def __str__(self) -> str:
        return f"{self.percent:+.1f} ± {self.half_interval:.1f}"


class Row(NamedTuple):
    setting: Setting
    delivered: int
    lost: float
    """Groups that should have been delivered and were not, in percent."""
    by_filter: float
    """How much the filter alone changes the mean length, in percent."""
    differences: list[Difference]

    @property
    def told(self) -> str:
        if not any(one.is_bias for one in self.differences):
            return "biased: by the filter alone" if self.setting.keep == "by length" else "unbiased"
        if self.setting.limit == "seconds":
            return "biased: long ones exceed the seconds"
        if self.setting.failing == "by length":
            return "biased: long ones fail more often"
        is_stale = self.setting.updates and self.setting.max_lag
        return "biased: long ones become stale" if is_stale else "biased: by the sampler"


def differences(sampled: Sampled) -> list[Difference]:
    """Each draw is one observation, delivered or not, so that both means vary together."""
    chosen, base = sampled.is_delivered, sampled.is_eligible
    psi = _influence(sampled.population, chosen) - _influence(sampled.population, base)
    error = psi.std(axis=0) / np.sqrt(len(psi))
    all_of_them, some = _mean(sampled.population, base), _mean(sampled.population, chosen)
    rows = zip(all_of_them, some, 100 * (some / all_of_them - 1), 1.96 * 100 * error / all_of_them, strict=True)
    return [Difference(*map(float, row)) for row in rows]


def _mean(values: Any, weights: Any) -> Any:
    return np.average(values, axis=0, weights=weights)


def _influence(values: Any, weights: Any) -> Any:
    """How much each draw moves the weighted mean."""
    return weights[:, None] * (values - _mean(values, weights)) / weights.mean()


def measure(setting: Setting, batches: int) -> Row:
    is_rare = setting.limit != "none" or setting.failing != "none"
    sampled = sample(setting, 3 * batches if is_rare else batches)
    count, lengths = sampled.is_delivered.sum(), sampled.population[:, 0]
    lost = float(100 * (1 - count / sampled.is_eligible.sum()))
    by_filter = float(100 * (_mean(lengths, sampled.is_eligible) / lengths.mean() - 1))
    return Row(setting, int(count), lost, by_filter, differences(sampled))


def settings(*, everything: bool) -> list[Setting]:
    if everything:
        rest = itertools.product(
            (False, True), FILTERS, ("none", "turns", "seconds"), ("none", "by chance", "by length")
        )
        return [Setting(*way, *others) for way, others in itertools.product(WAYS, rest)]
    filtered = [Setting(*way, updates, keep) for way in WAYS for updates in (False, True) for keep in FILTERS]
    trouble = [
        Setting(lag, order, True, "none", limit, failing)
        for lag, order in ((0, "start"), (1, "finish"))
        for limit, failing in (("turns", "none"), ("seconds", "none"), ("none", "by chance"), ("none", "by length"))
    ]
    return [*filtered, *trouble]


ASKED = ("max_lag", "order", "weights", "filter", "limit", "failures")
HEAD = (*ASKED, "groups", "lost", "by filter", "length", *METRICS, "")


def cells(row: Row) -> tuple[str, ...]:
    lag, order, updates, *others = row.setting
    weights = "new" if updates else "same"
    lost = f"{row.lost:.1f} %"
    lengths = f"{row.differences[0].population:.2f} -> {row.differences[0].delivered:.2f}"
    found = [f"{row.by_filter:+.1f}", lengths, *map(str, row.differences)]
    return str(lag), order, weights, *others, str(row.delivered), lost, *found, row.told


def values(row: Row) -> dict[str, Any]:
    reported = {**row.setting._asdict(), "told": row.told}
    reported |= {"delivered": row.delivered, "lost_percent": row.lost, "filter_percent": row.by_filter}
    return {**reported, **{name: one._asdict() for name, one in zip(METRICS, row.differences, strict=True)}}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--all", action="store_true", help="every combination")
    chosen = parser.parse_args()
    with ProcessPoolExecutor() as processes:
        rows = [*processes.map(measure, settings(everything=chosen.all), itertools.repeat(chosen.batches))]
    show(rows, as_json=chosen.json, head=HEAD, cells=cells, values=values)


if __name__ == "__main__":
    main()
