"""Where events go while a command runs: whole lines of JSON, without keys, and nothing that steers a terminal."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrollout.cli.terminal.logs import logging_to
from asyncrollout.errors import UsageError
from asyncrollout.pool.process import supervisor

CANARY = "canary-0123456789-\u00e9\"'"
log = structlog.get_logger(__name__)


def events(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_every_event_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to(tmp_path / "new" / "run", console=True), structlog.contextvars.bound_contextvars(env="maze"):
        log.debug("begun", seed=7, places=("a", {"b": None}), share=float("nan"), what=Path("x"))
        supervisor.log.warning("worker_died", worker=3, cause="SIGKILL")
        try:
            raise ValueError("what went wrong")
        except ValueError:
            log.exception("failed", time="mine")
    begun, died, failed = events(tmp_path / "new" / "run")
    assert list(begun)[:3] == ["time", "level", "event"]
    assert begun.pop("time").endswith("Z")
    assert begun == {
        "level": "debug",
        "event": "begun",
        "env": "maze",
        "seed": 7,
        "places": ["a", {"b": None}],
        "share": "nan",
        "what": "PosixPath('x')",
    }
    assert (died["level"], died["worker"], died["cause"]) == ("warning", 3, "SIGKILL")
    assert failed["exception"].endswith("ValueError: what went wrong")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[0] == "warning: worker_died worker=3 cause=SIGKILL env=maze"
    assert "begun" not in printed.err
    assert printed.err.endswith("ValueError: what went wrong\n")


def test_nothing_is_reported_without_a_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to(tmp_path, console=False):
        log.error("bad")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert len(events(tmp_path)) == 1


def test_the_configuration_before_comes_back(tmp_path: Path) -> None:
    seen: list[str] = []

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        seen.append(event["event"])
        raise structlog.DropEvent

    try:
        structlog.configure(processors=[keep])
        with logging_to(None, console=False), logging_to(tmp_path, console=False):
            log.info("inside")
        log.info("outside")
    finally:
        structlog.reset_defaults()
    with pytest.raises(KeyError), logging_to(None, console=False):
        raise KeyError
    assert not structlog.is_configured()
    assert seen == ["outside"]
    assert [event["event"] for event in events(tmp_path)] == ["inside"]


def test_events_continue_where_they_ended(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with logging_to(tmp_path, console=False):
            log.info(name)
    assert [event["event"] for event in events(tmp_path)] == ["first", "second"]


@pytest.mark.parametrize("place", ["file", "missing/\0"])
def test_a_bad_directory_is_reported_at_once(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"events\.jsonl"), logging_to(tmp_path / place, console=False):
        pytest.fail("it went on")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has such a device")
def test_a_full_disk_never_reaches_who_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    with logging_to(tmp_path, console=True) as sink:
        for _ in range(3):
            log.info("lost")
        assert sink.dropped == 3
    assert capsys.readouterr().err == "warning: events_dropped count=3\n"


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with logging_to(tmp_path, console=False) as sink:
        log.info("first")
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "events.jsonl").stat().st_size + 10, hard))
        try:
            log.info("cut off")
            log.info("not even begun")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert sink.dropped == 2
        log.info("last")
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines.pop(1)) == 10
    assert [json.loads(line)["event"] for line in lines] == ["first", "last", "events_dropped"]


def test_a_value_without_words_is_dropped(tmp_path: Path) -> None:
    with logging_to(tmp_path, console=False) as sink:
        log.info("odd", value=Unspeakable())
        log.info("fine")
    assert sink.dropped == 1
    assert [event["event"] for event in events(tmp_path)] == ["fine", "events_dropped"]


def test_keys_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("HF_TOKEN", "hf_other-canary")
    with logging_to(tmp_path, console=True):
        log.warning("asked with %s", CANARY, header=f"Bearer {CANARY}", nested=[{"deep": (CANARY, {CANARY: 1})}])
        log.warning("others", api_key="given-canary", authorization="any-canary", said="{'k': 'hf_other-canary'}")
        log.warning("shaped", said="Incorrect API key: sk-proj-canary-canary-canary.", headers="Bearer abc-canary'")
        try:
            raise ValueError(CANARY)
        except ValueError:
            log.exception("failed", tokens=12)
    printed = (tmp_path / "events.jsonl").read_text() + capsys.readouterr().err
    assert "canary" not in printed
    assert "[hidden]" in printed
    assert events(tmp_path)[-1]["tokens"] == 12


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(), st.text() | st.binary() | st.floats() | st.integers()), st.text())
def test_whatever_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], event: str
) -> None:
    (tmp_path / "events.jsonl").unlink(missing_ok=True)
    fields.pop("exc_info", None)
    with logging_to(tmp_path, console=True) as sink:
        log.bind(**fields).warning(event.replace("%", ""))
    assert sink.dropped == 0
    assert len(events(tmp_path)) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_on_a_terminal_only_the_level_has_a_colour() -> None:
    script = (
        "import structlog; from asyncrollout.cli.terminal.logs import logging_to\n"
        "with logging_to(None, console=True):\n"
        "    structlog.get_logger().warning('said', text='\\x1b[2Jgone\\nerror: forged')"
    )
    printed = {}
    for no_colour in ("", "1"):
        ours, theirs = os.openpty()
        environ = {**os.environ, "NO_COLOR": no_colour}
        subprocess.run([sys.executable, "-c", script], stderr=theirs, env=environ, timeout=120, check=True)
        printed[no_colour] = os.read(ours, 1000).decode()
        os.close(ours)
        os.close(theirs)
    assert printed[""] == "\x1b[33mwarning\x1b[0m: said text='\\x1b[2Jgone\\nerror: forged'\r\n"
    assert printed["1"] == "warning: said text='\\x1b[2Jgone\\nerror: forged'\r\n"
