"""What a person sees of a run: the same on any terminal, and harmless whatever an env or a model wrote."""

import io
import os
import re
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from asyncrollout.cli.terminal.live import LiveTable, Outlet, line, live
from asyncrollout.cli.terminal.numbers import as_record, count, number, rate, seconds, share, summary
from asyncrollout.cli.terminal.output import one_line
from asyncrollout.telemetry import RunMetrics
from asyncrollout.types import Durations
from tests.playing import PATIENCE
from tests.waiting import all_tasks_blocked

EVIL = "\x1b[31m\x1b]0;owned\x07\x9b2J[red]a\u202eb\r\n\x00[/red][link=x]"
SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
WIDTHS = [30, 45, 60, 80, 120, 200]

EARLY = RunMetrics(wanted_batches=10, wanted_groups=640)
LATE = RunMetrics(
    seconds=123_456.7,
    eta=98_765.4,
    batches=9,
    wanted_batches=10,
    delivered=576,
    wanted_groups=640,
    groups=1_234_567,
    kept=987_654,
    dropped={"constant_reward": 246_000, "failed": 913, "too_long_for_the_context_of_the_model": 7, "stale": 1},
    playing=51_200,
    buffered=128,
    waiting_policy=400_000,
    waiting_env=12_345,
    waiting_else=9,
    queued=1_024,
    restarts=3,
    retries=99_999,
    version=576,
    lag=12,
    keep_rate=0.801,
    rollouts=9_876_543,
    errors={"env": 5_000, "policy": 17, "limit": 2, "score": 1},
    success_rate=1.0,
    turns=10**8,
    invalid=123_456,
    tokens=10**11,
    turns_per_second=12_345.6,
    tokens_per_second=1_234_567.8,
    policy_seconds=Durations(1_024, 13.0, 12.34, 123.4, 999.0),
    env_seconds=Durations(1_024, 0.1, 0.00123, 0.456, 1.0),
    reward_mean=-0.123,
    reward_recent=-1234.5,
    reward_change=-999.9,
    reward_trend="down",
    reward_history=tuple(float(value % 7) for value in range(32)),
)
HOSTILE = RunMetrics(dropped={EVIL: 3, EVIL + "\u0301" * 100_000: 2}, errors={EVIL: 1}, reward_history=(1.0, 2.0))


class Reader:
    """Gives figures, and tells when they have been asked for several times."""

    def __init__(self, figures: RunMetrics, times: int = 3) -> None:
        self._figures = figures
        self._left = times
        self._enough = anyio.Event()

    def __call__(self) -> RunMetrics:
        self._left -= 1
        if self._left <= 0:
            self._enough.set()
        return self._figures

    async def wait(self) -> None:
        with anyio.fail_after(PATIENCE):
            await self._enough.wait()


class Terminal:
    """A terminal of ours, and a program's end of it."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.file: IO[str] = os.fdopen(slave, "w")
        self.console = Console(file=self.file, width=80, height=30, force_terminal=True, color_system="standard")

    def shown(self) -> str:
        """All that was written so far."""
        os.set_blocking(self.master, False)
        shown = b""
        try:
            while part := os.read(self.master, 65_536):
                shown += part
        except BlockingIOError:
            pass
        return shown.decode()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    os.close(made.master)
    made.file.close()


@contextmanager
def pipe() -> Iterator[tuple[int, IO[str]]]:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        yield reading, file


def drawn(figures: RunMetrics, width: int, title: str = "sokoban", encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    outlet = cast("IO[str]", Outlet(file))
    console = Console(file=outlet, force_terminal=True, width=width, color_system="truecolor")
    console.print(LiveTable(figures, title))
    file.seek(0)
    return SEQUENCES.sub("", file.read()).splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_keeps_its_size_and_its_numbers_their_places(width: int) -> None:
    early, late = drawn(EARLY, width), drawn(LATE, width, title="a title that is long " * 20)
    assert len(early) == len(late) == 15
    assert {cell_len(line) for line in early + late} == {min(width, 100)}
    for row, name in ((2, "done"), (2, "kept"), (3, "buffered"), (5, "env"), (6, "p95"), (10, "success")):
        assert early[row].find(name) == late[row].find(name)
        assert name in late[row] or width < 60


def test_no_number_is_cut_or_runs_into_another_at_any_width() -> None:
    figures = msgspec.structs.replace(
        LATE, policy_seconds=Durations(9, 0.793, 0.793, 0.793), env_seconds=Durations(9, 0.793, 0.793, 0.793)
    )
    cell = re.compile(r"(\S+ (?:ms|us|s)) p(50|95)(\S*)")
    for width in range(20, 201):
        rows = drawn(figures, width)
        assert {cell_len(row) for row in rows} == {min(width, 100)}
        for row in rows[6:8]:  # latencies
            assert all(found.group(1, 3) == ("793 ms", "") for found in cell.finditer(row)), row
            assert width < 30 or cell.search(row)


@pytest.mark.parametrize("width", [width for width in WIDTHS if width >= 60])
def test_the_table_says_it_all_from_60_columns_on(width: int) -> None:
    text = re.sub(" +", " ", "\n".join(drawn(LATE, width)))
    said = [
        *("34:17:36", "9/10 batches", "eta 27:26:05", "1.2M done", "988k kept", "80.1% keep rate", "51.2k playing"),
        *("128 buffered", "576 delivered", "247k (246k constant_reward, ", "400k LLM", "12.3k env", "9 other"),
        *("12.3 s p50", "123 s p95", "1.2M tokens/s", "1.2 ms p50", "456 ms p95", "1024 queued", "-0.123 mean"),
        *("-1234 recent", "-999.9 down", "0.000 ▁▂▃▅▆▇█▁", "6.000", "9.9M done", "100.0% success", "12.3k turns/s"),
        *("576 version", "12 lag", "123k invalid", "100k retries", "3 restarts", "5020 (5000 env, 17 policy, "),
    ]
    assert [part for part in said if part not in text] == []


def test_tokens_that_nobody_reports_have_no_rate() -> None:
    figures = msgspec.structs.replace(LATE, tokens=0, tokens_per_second=0.0)
    assert "12.3k turns/s" in line(figures)
    assert not re.search(r"\d tokens/s", line(figures) + "".join(drawn(figures, 80)))
    assert "1.2M tokens/s" in line(LATE)


def test_a_terminal_without_unicode_gets_plain_signs() -> None:
    assert all(line.isascii() for line in drawn(LATE, 80, encoding="ascii"))


@given(st.floats(-1e99, 1e99, allow_nan=False) | st.integers(0, 10**13))
def test_every_number_fits_its_column(value: float) -> None:
    assert len(number(value)) <= 7
    assert len(number(value, "+")) <= 7
    if 0 <= value <= 9e14:
        assert max(len(count(int(value))), len(rate(value)), len(seconds(value % 1e6))) <= 6
    assert abs(value) >= 9_999 or float(number(value)) == pytest.approx(value, rel=1e-3, abs=0.06)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(9_999), "9999"),
        (count(10_000), "10.0k"),
        (count(999_499), "999k"),
        (count(999_500), "1.0M"),
        (count(2 * 10**9), "2.0G"),
        (rate(0.04), "0.0"),
        (rate(12_345), "12.3k"),
        (seconds(0), "0 us"),
        (seconds(0.000999), "999 us"),
        (seconds(0.0123), "12 ms"),
        (seconds(0.9996), "1.00 s"),
        (seconds(3_600), "3600 s"),
        (seconds(36_000), "10 h"),
        (share(None), "-"),
        (share(0.125), "12.5%"),
        (number(None), "-"),
        (number(0.5, "+"), "+0.500"),
        (number(-12.345), "-12.35"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected


@given(st.text())
def test_no_text_has_power_over_the_terminal(text: str) -> None:
    assert one_line(text).isprintable()


def test_texts_from_outside_are_shown_and_not_obeyed() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system="standard")
    console.print(LiveTable(HOSTILE, EVIL))
    console.print(summary(HOSTILE, title=EVIL, notes=[EVIL]))
    shown = SEQUENCES.sub("", file.getvalue())
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert shown.count(r"[red]a\u202eb") >= 5
    assert "[link=x]" in shown
    assert len(shown) < 10_000  # marks without width would fit any column
    assert "\x1b[31m[red]" not in file.getvalue()
    assert one_line("\x1b[1;31mred\n\x1b[0m") == r"\x1b[1;31mred \x1b[0m"


async def test_a_terminal_shows_a_table_that_goes_away(terminal: Terminal) -> None:
    read = Reader(HOSTILE)
    async with live(read, title=EVIL, console=terminal.console, every=0.001) as display:
        await read.wait()
        display.say(f"batch 7 {EVIL}")
    assert terminal.console.file is terminal.file
    shown = terminal.shown()
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # the cursor is back
    plain = SEQUENCES.sub("", shown)
    assert all(char.isprintable() or char in "\r\n" for char in plain)
    assert r"batch 7 \x1b[31m\x1b]0;owned\x07\x9b2J[red]a\u202eb" in plain
    assert plain.count("groups") >= 2
    assert "groups" not in SEQUENCES.sub("", shown[shown.rfind("\x1b[1A") :])


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
async def test_elsewhere_plain_lines_appear(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    read = Reader(LATE)
    with pipe() as (reading, file):
        async with live(read, title="sokoban", console=Console(file=file), every=0.001) as display:
            await read.wait()
            display.say(EVIL)
        written = os.read(reading, 65_536).decode()
        os.close(reading)
    lines = written.splitlines()
    assert lines[:2] == [line(LATE)] * 2
    assert lines[-1] == one_line(EVIL)
    assert "\x1b" not in written
    for part in (
        "34:17:36 | 9/10 batches",
        "246921 dropped",
        "400000 LLM",
        "reward -1234 down",
        "errors 5020 (5000 env",
    ):
        assert part in lines[0]


async def test_a_file_gets_lines() -> None:
    read = Reader(EARLY)
    with tempfile.TemporaryFile("w+") as file:
        file.write("before\n")
        async with live(read, title="sokoban", console=Console(file=file), every=0.001):
            await read.wait()
        file.seek(0)
        lines = file.read().splitlines()
    assert lines[:3] == ["before", line(EARLY), line(EARLY)]


async def test_a_quiet_console_shows_nothing(terminal: Terminal) -> None:
    terminal.console.quiet = True
    async with live(lambda: EARLY, title="sokoban", console=terminal.console, every=0.001) as display:
        display.say("batch 1")
    assert terminal.shown() == ""


async def test_a_reader_that_has_left_ends_nothing() -> None:
    read = Reader(EARLY, 10)
    with pipe() as (reading, file):
        os.close(reading)
        async with live(read, title="sokoban", console=Console(file=file), every=0.001) as display:
            display.say("batch 1")
            await read.wait()


async def test_a_terminal_that_is_closed_ends_nothing(terminal: Terminal) -> None:
    read = Reader(EARLY, 10)
    async with live(read, title="sokoban", console=terminal.console, every=0.001) as display:
        os.close(terminal.master)
        display.say("batch 1")
        await read.wait()
    terminal.master = os.open(os.devnull, os.O_RDONLY)


async def test_a_closed_file_ends_nothing() -> None:
    read, file = Reader(EARLY, 10), io.StringIO()
    async with live(read, title="sokoban", console=Console(file=file), every=0.001) as display:
        file.close()
        display.say("batch 1")
        await read.wait()


async def test_a_pipe_that_nobody_reads_holds_nobody_up() -> None:
    read = Reader(LATE, 1_000)  # many times what a pipe takes
    with pipe() as (reading, file):
        async with live(read, title="sokoban", console=Console(file=file), every=1e-9):
            await read.wait()
            os.close(reading)


async def test_a_terminal_that_is_stopped_holds_nobody_up(terminal: Terminal) -> None:
    read = Reader(EARLY)
    termios.tcflow(terminal.file.fileno(), termios.TCOOFF)
    async with live(read, title="sokoban", console=terminal.console, every=0.001) as display:
        display.say("batch 1")
        assert terminal.shown() == ""
        termios.tcflow(terminal.file.fileno(), termios.TCOON)
        await read.wait()  # it goes on where it was
    assert "batch 1" in terminal.shown()


async def test_what_a_stopped_terminal_misses_is_bounded(terminal: Terminal) -> None:
    outlet = Outlet(terminal.file)
    termios.tcflow(terminal.file.fileno(), termios.TCOOFF)
    for _ in range(1_000):
        outlet.write("x" * 1_000)
        outlet.flush()
    termios.tcflow(terminal.file.fileno(), termios.TCOON)
    shown = terminal.shown()
    while outlet.is_behind():
        shown += terminal.shown()
    await outlet.aclose()
    assert len(shown + terminal.shown()) == 263_000  # what goes beyond the bound is lost as a whole


async def test_a_slow_terminal_gets_the_last_words_of_what_is_cancelled(terminal: Terminal) -> None:
    async def go_on() -> None:
        await all_tasks_blocked()
        termios.tcflow(terminal.file.fileno(), termios.TCOON)

    termios.tcflow(terminal.file.fileno(), termios.TCOOFF)
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with live(lambda: EARLY, title="sokoban", console=terminal.console):
                tasks.start_soon(go_on)
                scope.cancel()
    assert "\x1b[?25h" in terminal.shown()


async def test_data_for_a_pipe_stays_off_the_terminal(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    async with live(lambda: EARLY, title="sokoban", console=terminal.console):
        print("data")
    assert capsys.readouterr().out == "data\n"
    assert "data" not in terminal.shown()


async def test_cancellation_passes_and_leaves_nothing(terminal: Terminal) -> None:
    stdout, read = sys.stdout, Reader(EARLY)
    with anyio.CancelScope() as scope:
        async with live(read, title="sokoban", console=terminal.console, every=0.001):
            await read.wait()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert terminal.console.file is terminal.file
    assert sys.stdout is stdout
    assert "\x1b[?25h" in terminal.shown()


@pytest.mark.parametrize("error", [ValueError("mine"), ExceptionGroup("ours", [ValueError("one"), OSError("two")])])
async def test_an_error_passes_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        async with live(lambda: EARLY, title="sokoban", console=Console(file=io.StringIO())):
            raise error
    assert raised.value is error


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_the_end_is_summed_up(encoding: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=100).print(summary(LATE, title="sokoban \u00b7 done", notes=["go on: \u2192 resume it"]))
    file.seek(0)
    text = file.read()
    for part in (
        "34:17:36",
        "9 of 10",
        "1234567 played, 987654 kept",
        "1 stale",
        "down at the end (-999.9)",
        "resume it",
    ):
        assert part in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_record_is_what_json_can_hold() -> None:
    record = as_record(LATE)
    assert record["dropped"] == LATE.dropped
    assert record["env_seconds"]["p95"] == 0.456
    assert as_record(EARLY)["eta"] is None
