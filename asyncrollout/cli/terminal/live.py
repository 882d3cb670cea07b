"""The live view of a run: a table that stays in place, or a line every few seconds."""

import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import IO, cast

import anyio
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrollout.cli.terminal.numbers import (
    LABEL,
    NUMBER,
    clock,
    count,
    counts,
    curve,
    number,
    percentiles,
    rate,
    share,
)
from asyncrollout.cli.terminal.output import one_line
from asyncrollout.concurrency import Background
from asyncrollout.telemetry import RunMetrics

_REDRAWN_EVERY = 0.25  # seconds
_LINE_EVERY = 5.0
_LAST_WORDS = 1.0  # seconds for a slow terminal to take the last output
_MOST_UNSENT = 262_144  # bytes
_WIDEST = 100
_NARROWEST_BAR = 8
_COLOURS = {"up": "green", "down": "red"}
_FILL_THEIR_PLACE = (
    "p95",
    "recent",
    "success",
    "keep rate",
)  # as wide as NUMBER; counts are not

Cell = tuple[str, str] | tuple[str, str, str]
"""A number, what it is a number of, and a colour if it asks for attention."""


class Display:
    """Prints lines beside the live view."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """Print a line that stays, above the table if there is one."""
        self._console.print(Text(one_line(text)), soft_wrap=True)


@asynccontextmanager
async def live(
    read: Callable[[], RunMetrics],
    *,
    title: str,
    console: Console | None = None,
    every: float | None = None,
) -> AsyncIterator[Display]:
    """As `live_view`, of the metrics of a run."""
    async with live_view(
        lambda: LiveTable(read(), title), lambda: line(read()), console=console or Console(), every=every
    ) as display:
        yield display


@asynccontextmanager
async def live_view(
    draw: Callable[[], RenderableType], line: Callable[[], str], *, console: Console, every: float | None = None
) -> AsyncIterator[Display]:
    """Show what `draw` renders on a terminal, until the end; elsewhere print what `line` returns every few seconds.

    A quiet console shows nothing. A terminal that is slow, stopped or gone never blocks the run.
    """
    if console.quiet:
        yield Display(console)
        return
    file = console.file
    outlet = Outlet(file)
    console.file = cast("IO[str]", outlet)
    try:
        async with Background() as drawing:
            if console.is_interactive and file.isatty():  # a pipe may be forced to have colours, but cannot be redrawn
                with _table(draw(), console) as table:
                    drawing.start_soon(_redraw, table, draw, outlet, every or _REDRAWN_EVERY)
                    yield Display(console)
            else:
                drawing.start_soon(_print_lines, console, line, every or _LINE_EVERY)
                yield Display(console)
    finally:
        console.file = file
        await outlet.aclose()


def _table(board: RenderableType, console: Console) -> Live:
    """Other output to the terminal appears above the table; output to elsewhere is left alone."""
    return Live(
        board,
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    )


async def _redraw(table: Live, board: Callable[[], RenderableType], outlet: "Outlet", every: float) -> None:
    while True:
        await anyio.sleep(every)
        if not outlet.is_behind():
            table.update(board(), refresh=True)


async def _print_lines(console: Console, line: Callable[[], str], every: float) -> None:
    while True:
        await anyio.sleep(every)
        console.print(Text(line()), soft_wrap=True)


class Outlet:
    """A console's file that never blocks and never fails: what cannot be written is buffered, then dropped."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._fd = _reopen(file)
        self._unsent = b""
        self._gone = False

    @property
    def encoding(self) -> str:
        return getattr(self._file, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._file.isatty()

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, text: str) -> int:
        if len(self._unsent) < _MOST_UNSENT and not self._gone:
            self._unsent += text.encode(self.encoding, "replace")
        return len(text)

    def flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._send(self._unsent) :]
        except BlockingIOError:
            pass
        except (OSError, ValueError):  # the other end is closed, or the file is
            self._gone, self._unsent = True, b""

    def _send(self, data: bytes) -> int:
        if self._fd is not None:
            return os.write(self._fd, data)
        self._file.write(data.decode(self.encoding))
        self._file.flush()
        return len(data)

    def is_behind(self) -> bool:
        """Whether output is still buffered."""
        self.flush()
        return bool(self._unsent)

    async def aclose(self) -> None:
        """Write the rest, if the terminal takes it soon."""
        if self._fd is None:
            return
        try:
            with anyio.move_on_after(_LAST_WORDS, shield=True):
                while self.is_behind():
                    await anyio.wait_writable(self._fd)
        finally:
            os.close(self._fd)
            self._fd = None


def _reopen(file: IO[str]) -> int | None:
    """A non-blocking descriptor of the same terminal or pipe; changing the given one would affect other processes."""
    try:
        file.flush()
        fd = file.fileno()
        if os.isatty(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode):
            return os.open(f"/dev/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):  # it has none, or may not be opened: then it is written to as it is
        pass
    return None


class LiveTable:
    """The table; every number keeps its column."""

    def __init__(self, figures: RunMetrics, title: str) -> None:
        self._figures = figures
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST)
        inner = width - 4
        title = Text(one_line(self._title[:_WIDEST]), style="bold")
        title.truncate(max(inner - 2, 1), overflow="ellipsis")
        lines = [_progress(self._figures, inner), *_lines(self._figures, inner, ascii_only=options.ascii_only)]
        yield Panel(Group(*lines), title=title, title_align="left", border_style="dim", width=width)


def _progress(figures: RunMetrics, width: int) -> Table | Text:
    """Elapsed time, progress and estimated time left."""
    took = Text(clock(figures.seconds).ljust(LABEL))
    done = Text(_batches(figures), style="bold")
    if figures.wanted_batches is None:
        return Text.assemble(took, done, no_wrap=True, overflow="ellipsis")
    total = figures.wanted_groups or figures.wanted_batches
    bar = ProgressBar(
        total,
        min(max(figures.kept, figures.delivered), total) if figures.wanted_groups else figures.batches,
        style="dim",
        complete_style="green",
        finished_style="green",
    )
    eta = Text(f"eta {'-' if figures.eta is None else clock(figures.eta):>8}", style="dim")
    row = Table.grid(expand=True, padding=0)
    row.add_column(width=LABEL, no_wrap=True)
    row.add_column(ratio=1, min_width=_NARROWEST_BAR)
    row.add_column(width=len(done) + 4, justify="right", no_wrap=True)
    row.add_column(width=len(eta) + 3, justify="right", no_wrap=True)
    row.add_row(took, bar, done, eta)
    row.width = width
    return row


def _lines(f: RunMetrics, width: int, *, ascii_only: bool) -> Iterable[Text]:
    trend = f.reward_trend or ""
    pace, turns = (rate(f.tokens_per_second) if f.tokens else "-", "tokens/s"), (rate(f.turns_per_second), "turns/s")
    change = (number(f.reward_change, "+"), trend or "change", _COLOURS.get(trend, ""))
    restarts = (count(f.restarts), "restarts", "red" if f.restarts else "")
    other = (count(f.waiting_else), "other")
    scores: list[Cell] = [*percentiles(f.score_seconds), (count(f.waiting_score), "waiting")]
    rows: list[tuple[str, list[Cell]]] = [
        ("groups", [(count(f.groups), "done"), (count(f.kept), "kept"), (share(f.keep_rate), "keep rate")]),
        ("", [(count(f.playing), "playing"), (count(f.buffered), "buffered"), (count(f.delivered), "delivered")]),
        ("dropped", [counts(f.dropped)]),
        ("in flight", [(count(f.waiting_policy), "LLM"), (count(f.waiting_env), "env"), other]),
        ("LLM", [*percentiles(f.policy_seconds), pace]),
        ("env", [*percentiles(f.env_seconds), (count(f.queued), "queued")]),
        *([("score", scores)] if f.waiting_score or f.score_seconds.count else []),
        ("reward", [(number(f.reward_mean), "mean"), (number(f.reward_recent), "recent"), change]),
        ("", [curve(f.reward_history, ascii_only=ascii_only)]),
        ("rollouts", [(count(f.rollouts), "done"), (share(f.success_rate), "success"), turns]),
        ("weights", [(count(f.version), "version"), (count(f.lag), "lag")]),
        ("trouble", [(count(f.invalid), "invalid"), (count(f.retries), "retries"), restarts]),
        ("errors", [(*counts(f.errors), "red" if f.errors else "")]),
    ]
    if f.shards:
        rows.insert(3, ("shards", [(count(f.shards), "ready"), (count(f.nodes), "nodes")]))
    each = (width - LABEL) // 3
    for label, cells in rows:
        text = Text(label.ljust(LABEL), style="dim", no_wrap=True, overflow="ellipsis")
        gap = " " if any(name in _FILL_THEIR_PLACE for _, name, *_ in cells[1:]) else ""
        for place, (value, name, *colour) in enumerate(cells):
            if place and len(text) + NUMBER + 1 + len(name) > width:
                break  # a clipped number would read as another one
            text.append(value.rjust(NUMBER), style=" ".join(["not dim", *colour]))
            text.append(f" {name}{gap}".ljust(each - NUMBER))
        text.rstrip()
        yield text


def line(f: RunMetrics) -> str:
    """The metrics in one line, for logs and pipes."""
    parts = [
        clock(f.seconds),
        _batches(f),
        f"groups {f.kept} kept, {sum(f.dropped.values())} dropped",
        f"in flight {f.waiting_policy} LLM, {f.waiting_env} env, "
        + (f"{f.waiting_score} score, " if f.waiting_score else "")
        + f"{f.waiting_else} other",
        "LLM " + ", ".join(map(" ".join, percentiles(f.policy_seconds))),
        f"{rate(f.tokens_per_second)} tokens/s" if f.tokens else f"{rate(f.turns_per_second)} turns/s",
        f"reward {number(f.reward_recent)} {f.reward_trend or ''}".rstrip(),
        f"errors {' '.join(counts(f.errors))}".rstrip(),
        f"restarts {f.restarts}",
        f"eta {'-' if f.eta is None else clock(f.eta)}",
    ]
    return " | ".join(parts)


def _batches(figures: RunMetrics) -> str:
    wanted = "" if figures.wanted_batches is None else f"/{figures.wanted_batches}"
    return f"{figures.batches}{wanted} batches"
