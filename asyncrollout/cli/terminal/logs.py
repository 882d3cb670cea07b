"""Where events go while a command runs: all of them to a file, warnings to stderr, none to stdout."""

import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import structlog

from asyncrollout.cli.terminal.output import printable
from asyncrollout.errors import UsageError
from asyncrollout.logs import event_line
from asyncrollout.redaction import HIDDEN, hide, is_secret, known_secrets

_DEEPEST = 8
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}


@contextmanager
def logging_to(
    directory: Path | None, *, console: bool, secrets: Sequence[str] = (), later: bool = False
) -> Iterator["EventSink"]:
    """Send structlog's events to `directory`/events.jsonl, and warnings to stderr if `console`.

    Both hide these secrets and those of the environment. With `later`, nothing is written before `sink.open()`.
    """
    before = structlog.get_config() if structlog.is_configured() else None
    with ExitStack() as stack:
        sink = EventSink(None, console, [*known_secrets(), *secrets], directory)
        stack.callback(sink.close)
        if not later:
            sink.open()
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                structlog.processors.format_exc_info,
                sink,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
            logger_factory=structlog.ReturnLoggerFactory(),
            cache_logger_on_first_use=False,
        )
        try:
            yield sink
        finally:
            sink.report_dropped()
            structlog.reset_defaults()
            if before is not None:
                structlog.configure(**before)


@dataclass
class EventSink:
    """The last processor. It never raises into the code that logs; `dropped` counts the events that were lost."""

    file: BinaryIO | None
    console: bool
    secrets: Sequence[str]
    directory: Path | None = None
    dropped: int = 0
    _torn: bool = False
    _held: list[bytes] = field(default_factory=list)

    def open(self) -> None:
        """Start writing, beginning with the events held back so far."""
        if self.directory is not None and self.file is None:
            self.file = _opened(self.directory)
            held, self._held = self._held, []
            for line in held:
                self._put(line)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def __call__(self, _logger: Any, _method: str, event: structlog.typing.EventDict) -> NoReturn:
        try:
            self._write(event)
        except Exception:  # noqa: BLE001 (a full disk, a repr that raises)
            self.dropped += 1
        raise structlog.DropEvent

    def report_dropped(self) -> None:
        if self.dropped:
            structlog.get_logger(__name__).warning("events_dropped", count=self.dropped)

    def _write(self, event: structlog.typing.EventDict) -> None:
        plain: dict[str, Any] = self._plain(event)
        first = {name: plain.pop(name, "") for name in ("time", "level", "event")}
        if self.console and first["level"] in _COLOURS:
            _show(first, dict(plain))
        if self.file is None and self.directory is None:
            return
        self._put(json.dumps(first | plain).encode() + b"\n")  # in ASCII, so that no control code gets through

    def _put(self, line: bytes) -> None:
        if self.file is None:
            self._held.append(line)
            return
        line = b"\n" * self._torn + line  # on a line of its own, also after one that a full disk cut off
        self._torn = self.file.write(line) < len(line)
        self.dropped += self._torn

    def _plain(self, value: Any, depth: int = 0) -> Any:
        """The value as JSON has it, without secrets."""
        if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        if isinstance(value, Mapping) and depth < _DEEPEST:
            return {
                self._hide(str(name)): HIDDEN if is_secret(str(name)) else self._plain(one, depth + 1)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset) and depth < _DEEPEST:
            return [self._plain(one, depth + 1) for one in value]
        return self._hide(value if isinstance(value, str) else repr(value))

    def _hide(self, text: str) -> str:
        return hide(text, self.secrets)


def _opened(directory: Path) -> BinaryIO:
    path = directory / "events.jsonl"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)
    except (OSError, ValueError) as error:  # no path has a NUL
        raise UsageError(f"events cannot be written to {str(path)!r}: {error}") from error


def _show(first: Mapping[str, str], fields: dict[str, Any]) -> None:
    level, stream = first["level"], sys.stderr
    trace = [str(fields.pop("exception"))] if "exception" in fields else []
    is_coloured = stream.isatty() and not os.environ.get("NO_COLOR")
    start, end = (_COLOURS[level], "\x1b[0m") if is_coloured else ("", "")
    text = "\n".join([event_line(first["event"], fields), *trace])
    indented = printable(text).replace("\n", "\n  ")  # so that no text from outside begins a line
    print(f"{start}{level}{end}: {indented}", file=stream, flush=True)
