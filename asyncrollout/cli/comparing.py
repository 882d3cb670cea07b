"""Several runs side by side."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Group as Stacked
from rich.table import Table
from rich.text import Text

from asyncrollout.cli.app import DONE, Output, Told
from asyncrollout.cli.summary import harmless, number
from asyncrollout.comparison import Estimate, Played, as_played, difference, summarize
from asyncrollout.errors import UsageError
from asyncrollout.journal.batches import RunRecords

_ALL = ""  # instead of a tag


class _Run(msgspec.Struct, frozen=True):
    name: str
    group_size: int
    groups: list[Played]

    def of(self, tag: str) -> list[Played]:
        return [group for group in self.groups if tag in (_ALL, group.tag)]


def compare(
    directory: Annotated[Path, Parameter(help="The directory of a run, which the others are compared with.")],
    *directories: Annotated[Path, Parameter(help="Those of other runs.")],
    k: Annotated[int | None, Parameter(help="Of pass@k: at most, and by default, the size of a group.")] = None,
    output: Told,
) -> int:
    """Tell how runs differ, and what may be chance."""
    paths = [directory, *directories]
    runs = [_read(path, name) for path, name in zip(paths, _names(paths), strict=True)]
    most = min(run.group_size for run in runs)
    if k is not None and not 1 <= k <= most:
        raise UsageError(f"--k {k}: valid is a whole number from 1 to {most}, the size of the smallest group")
    ks = sorted({1, k or most})
    tags = {group.tag: None for run in runs for group in run.groups}
    parts = [_ALL, *tags] if len(tags) > 1 else [_ALL]
    compared = [_Compared(tag, runs, ks) for tag in parts]
    for part in compared:
        part.record(output)
    drawn = [line for part in compared for line in (part.table(), Text())]
    output.show(Stacked(*drawn, Text("In brackets: confidence intervals of 95 %, over groups.")))
    return DONE


class _Compared:
    """All runs, or what they played of one env."""

    def __init__(self, tag: str, runs: Sequence[_Run], ks: Sequence[int]) -> None:
        self._tag = tag
        self._names = [run.name for run in runs]
        self._figures = [summarize(run.of(tag), ks) for run in runs]
        self._differences = [difference(runs[0].of(tag), run.of(tag), ks) for run in runs[1:]]
        self._ks = ks

    def record(self, output: Output) -> None:
        env = self._tag or None
        for name, figures in zip(self._names, self._figures, strict=True):
            output.record({"run": name, "env": env, **msgspec.to_builtins(figures, str_keys=True)})
        for name, found in zip(self._names[1:], self._differences, strict=True):
            builtin = msgspec.to_builtins(found, str_keys=True)
            output.record({"run": name, "less": self._names[0], "env": env, **builtin})

    def table(self) -> Table:
        """A block of rows for each figure, with a row for each run."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(Text(harmless(self._tag or "all")))
        table.add_column("run")
        table.add_column("mean", justify="right")
        table.add_column("")
        if self._differences:
            table.add_column(Text(harmless(f"less {self._names[0]}")), justify="right")
            table.add_column("")
        for label, cells in self._rows():
            for place, (name, cell) in enumerate(zip(self._names, cells, strict=True)):
                table.add_row("" if place else label, Text(harmless(name)), *map(Text, cell))
        return table

    def _rows(self) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
        how = ["by all groups" if found.pairs is None else f"{found.pairs} pairs" for found in self._differences]
        counts = [str(figures.groups) for figures in self._figures]
        yield "groups", [(count, "", pairs) for count, pairs in zip(counts, ["", *how], strict=True)]
        yield "rollouts", [(str(figures.rollouts),) for figures in self._figures]
        yield "failed", [(str(figures.failed),) for figures in self._figures]
        yield "reward", self._cells([one.reward for one in self._figures], [one.reward for one in self._differences])
        for k in self._ks:
            rates = [one.pass_at[k] for one in self._figures]
            yield f"pass@{k}", self._cells(rates, [one.pass_at[k] for one in self._differences])
        yield "kept", self._cells([one.keep_rate for one in self._figures])
        yield "turns", self._cells([one.turns for one in self._figures])
        yield "tokens", self._cells([one.tokens for one in self._figures])

    def _cells(self, own: Sequence[Estimate], less: Sequence[Estimate] = ()) -> list[tuple[str, ...]]:
        differences = [("", ""), *(_told(estimate, "+") for estimate in less)] if less else [()] * len(own)
        return [(*_told(estimate), *other) for estimate, other in zip(own, differences, strict=True)]


def _read(directory: Path, name: str) -> _Run:
    records = RunRecords(directory)
    envs: Any = records.given.get("envs", {})
    size: Any = records.given.get("group_size", 1)
    return _Run(name, size, [as_played(group, envs.get(group.tag)) for group in records.groups()])


def _names(paths: Sequence[Path]) -> list[str]:
    """Their last parts, if these tell them apart."""
    short = [path.resolve().name for path in paths]
    return short if len({*short}) == len(short) else [str(path) for path in paths]


def _told(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    interval = f"[{number(estimate.low, sign)}, {number(estimate.high, sign)}]"
    return number(estimate.mean, sign), "" if estimate.low is None else interval
