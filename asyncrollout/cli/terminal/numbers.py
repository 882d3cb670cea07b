"""Numbers formatted for people in little space, and the summary at the end of a run."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from asyncrollout.cli.terminal.output import one_line
from asyncrollout.report.precision import as_estimate
from asyncrollout.report.summary import Totals
from asyncrollout.telemetry import RunMetrics
from asyncrollout.types import Durations

LABEL = 10
NUMBER = 6
"""How many characters a row's name has, and a number at most."""

_LONGEST_NAME = 80
_UNITS = ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
_LEAST, _HUGE = 0.01, 9.995e14
_EXPONENT = re.compile(r"e\+?(-?)0*(\d)")
_BLOCKS = "▁▂▃▄▅▆▇█"
_BLOCKS_ASCII = "_.-:=+*#"

Rows = list[tuple[str, str]]


def summary(
    figures: RunMetrics, *, title: str, notes: Sequence[str] = (), totals: Totals | None = None
) -> RenderableType:
    """The metrics of a whole run, with `notes` as lines below, such as how to resume it.

    `totals` are read from the run's files and cover all its attempts; `figures` cover the last one.
    """
    shown = figures if totals is None else with_totals(figures, totals)
    return Summary(
        title,
        lambda ascii_only: _rows(shown, totals, ascii_only=ascii_only),
        notes,
        alarm="errors" if shown.errors else "",
    )


def with_totals(figures: RunMetrics, totals: Totals) -> RunMetrics:
    return msgspec.structs.replace(
        figures,
        seconds=totals.seconds,
        rollouts=totals.rollouts,
        turns=totals.turns,
        invalid=totals.invalid,
        tokens=totals.tokens,
        errors=totals.errors,
        reward_mean=totals.reward.mean,
    )


def as_record(figures: RunMetrics) -> dict[str, Any]:
    """The metrics for programs: plain values by field name."""
    record: dict[str, Any] = msgspec.to_builtins(figures)
    return record


class Summary:
    """A title, rows of labels and figures, and notes below; `rows` are made for a terminal with or without Unicode."""

    def __init__(self, title: str, rows: Callable[[bool], Rows], notes: Sequence[str], alarm: str = "") -> None:
        self._title = title
        self._rows = rows
        self._notes = notes
        self._alarm = alarm

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def shown(text: str) -> str:
            text = one_line(text)
            return text.encode("ascii", "replace").decode() if options.ascii_only else text

        yield Text(shown(self._title), style="bold")
        for label, content in self._rows(options.ascii_only):
            yield Text.assemble((label.ljust(LABEL), "dim"), (shown(content), "red" if label == self._alarm else ""))
        for note in self._notes:
            yield Text(shown(note))


def _rows(f: RunMetrics, totals: Totals | None, *, ascii_only: bool) -> list[tuple[str, str]]:
    llm, env = (", ".join(map(" ".join, percentiles(taken))) for taken in (f.policy_seconds, f.env_seconds))
    tokens = f"{count(f.tokens)}, {rate(f.tokens / max(f.seconds, 1e-9))} per second"
    wanted = "" if f.wanted_batches is None else f" of {f.wanted_batches}"
    reward = number(f.reward_mean) if totals is None else as_estimate(totals.reward)
    passed = (
        ("success", share(f.success_rate)) if totals is None else ("pass@1", as_estimate(totals.pass_rate, share=True))
    )
    trend = "" if f.reward_trend is None else f", {f.reward_trend} at the end ({number(f.reward_change, '+')})"
    return [
        ("time", clock(f.seconds)),
        ("batches", f"{f.batches}{wanted}"),
        ("groups", f"{f.groups} played, {f.kept} kept, {f.delivered} delivered"),
        ("dropped", " ".join(counts(f.dropped))),
        ("rollouts", f"{f.rollouts}, {f.retries} retries, {count(f.turns)} turns, {count(f.invalid)} invalid replies"),
        ("tokens", tokens if f.tokens else "not reported"),
        ("LLM", llm),
        ("env", f"{env}, {f.restarts} worker restarts"),
        ("reward", f"{reward} mean, {number(f.reward_recent)} recent{trend}"),
        ("", " ".join(curve(f.reward_history, ascii_only=ascii_only))),
        passed,
        ("errors", " ".join(counts(f.errors))),
    ]


def clock(value: float) -> str:
    minutes, left = divmod(int(value), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"


def count(value: float) -> str:
    """A count in at most six characters."""
    if value < 10_000:
        return f"{value:.0f}"
    for unit in "kMG":
        value /= 1_000
        if value < 999.5:
            return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"
    return f"{value / 1_000:.0f}T"


def rate(value: float) -> str:
    return f"{value:.1f}" if value < 999.95 else count(value)


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def seconds(value: float | None) -> str:
    """A duration in at most six characters."""
    if value is None:
        return "-"
    if value < 0.0009995:
        return f"{value * 1e6:.0f} us"
    if value < 0.9995:
        return f"{value * 1e3:.1f} ms" if value < 0.00995 else f"{value * 1e3:.0f} ms"
    if value < 9_999.5:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else f"{value:.0f} s"
    return f"{value / 3600:.0f} h"


def percentiles(taken: Durations) -> tuple[tuple[str, str], tuple[str, str]]:
    p50, p95 = (taken.p50, taken.p95) if taken.count else (None, None)
    return (seconds(p50), "p50"), (seconds(p95), "p95")


def number(value: float | None, sign: str = "") -> str:
    """Any number in six characters, seven with a sign: up to three decimals, small and huge ones with an exponent."""
    if value is None:
        return "-"
    size = abs(value)
    if size and not _LEAST <= size < _HUGE:
        texts = [f"{value:{sign}.{decimals}e}" for decimals in (2, 1, 0)]
        texts = [_EXPONENT.sub(r"e\1\2", text) for text in texts]
    else:
        factor, unit = (
            next((one for one in _UNITS if size < 999.95 * one[0]), _UNITS[-1]) if size >= 99_999.5 else (1, "")
        )
        texts = [f"{value / factor:{sign}.{decimals}f}{unit}" for decimals in (3, 2, 1, 0)]
    return next((text for text in texts if len(text) <= NUMBER), texts[-1])


def counts(by_name: dict[str, int]) -> tuple[str, str]:
    """The total, and the count of each name, largest first."""
    ordered = sorted(by_name.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{count(times)} {one_line(name[:_LONGEST_NAME])}" for name, times in ordered)
    return count(sum(by_name.values())), named and f"({named})"


def curve(values: tuple[float, ...], *, ascii_only: bool = False) -> tuple[str, str]:
    """The lowest value, and a sparkline that ends with the highest one."""
    if len(values) < 2:
        return "", ""
    blocks = _BLOCKS_ASCII if ascii_only else _BLOCKS
    low, high = min(values), max(values)
    step = (high - low) / (len(blocks) - 1)
    drawn = "".join(blocks[round((value - low) / step) if step else 0] for value in values)
    return number(low), f"{drawn} {number(high)}"
