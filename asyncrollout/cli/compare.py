"""`compare`: several runs side by side."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import anyio.to_thread
import msgspec
from anyio.from_thread import check_cancelled
from cyclopts import Parameter
from rich.console import Console
from rich.console import Group as Stacked
from rich.table import Table
from rich.text import Text

from asyncrollout.cli.terminal.output import DONE, WHOLE, Output, OutputParam, one_line
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.report.compared_run import ComparedRun, decide, names_of, read_side, which_k
from asyncrollout.report.comparison import MOST_SIDES, RunComparison, compared, comparison_page
from asyncrollout.report.precision import mean_and_interval
from asyncrollout.report.single_file import replacing
from asyncrollout.stats import Estimate

PAGE = Path("compare.html")


async def compare(
    directory: Annotated[Path, Parameter(help="Directory of the run to compare the others with.")],
    *directories: Annotated[Path, Parameter(help="Directories of the other runs.")],
    k: Annotated[
        int | None, WHOLE, Parameter(help="k of pass@k, at most the group size (default: the group size).")
    ] = None,
    to: Annotated[Path, Parameter(help="Where to write the page (default: compare.html).")] = PAGE,
    output: OutputParam,
) -> int:
    """Compare runs: rewards and pass rates with confidence intervals.

    Runs that played the same tasks from the same seeds as the first one are compared with it task by task. A page with
    plots is written to compare.html.

    Example: asyncrollout compare runs/before runs/after
    """
    paths = [directory, *directories]
    if len(paths) > MOST_SIDES:
        raise UsageError(f"{len(paths)} runs: at most {MOST_SIDES} can be compared on one page")
    sides = await _read([*zip(paths, names_of(paths), strict=True)], output)
    decide(sides)
    ks = which_k(sides, k)
    found = compared(sides, ks)
    page = await anyio.to_thread.run_sync(comparison_page, sides, ks, found)
    _write(to, page)
    shown = [_Shown(one) for one in found]
    for part in shown:
        part.record(output)
    drawn = [line for part in shown for line in (part.table(), Text())]
    text = "In brackets: 95% confidence intervals over groups."
    output.show(Stacked(*drawn, Text(text), Text(one_line(f"Plots: {to}"))))
    return DONE


async def _read(runs: Sequence[tuple[Path, str]], output: Output) -> list[ComparedRun]:
    """Read one run after the other, showing which: each may take seconds."""
    sides = []
    console = Console(stderr=True, quiet=output.quiet or output.json)
    with console.status("") as status:
        for path, name in runs:
            status.update(Text(f"reading {one_line(name)}"))
            sides.append(await anyio.to_thread.run_sync(read_side, path, name, check_cancelled))
    return sides


def _write(path: Path, page: str) -> None:
    try:
        with replacing(path) as file:
            file.write(page.encode())
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror or error}") from error


class _Shown:
    """All runs, or what they played of one env."""

    def __init__(self, found: RunComparison) -> None:
        self._tag = found.env
        self._names, self._ks = found.names, found.ks
        self._figures, self._differences = found.figures, found.differences

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
        table.add_column(Text(one_line(self._tag or "all")))
        table.add_column("run")
        table.add_column("mean", justify="right")
        table.add_column("")
        if self._differences:
            table.add_column(Text(one_line(f"less {self._names[0]}")), justify="right")
            table.add_column("")
        for label, cells in self._rows():
            for place, (name, cell) in enumerate(zip(self._names, cells, strict=True)):
                table.add_row("" if place else label, Text(one_line(name)), *map(Text, cell))
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
        differences = [("", ""), *(mean_and_interval(estimate, "+") for estimate in less)] if less else [()] * len(own)
        return [(*mean_and_interval(estimate), *other) for estimate, other in zip(own, differences, strict=True)]
