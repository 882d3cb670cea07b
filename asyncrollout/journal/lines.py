"""The files of a run, line by line."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from asyncrollout.arrays.records import told_at
from asyncrollout.errors import JournalError

log = structlog.get_logger(__name__)


class Line(NamedTuple):
    """A whole line, and where it stands: in words, and in bytes from the beginning."""

    place: str
    start: int
    content: bytes


class Head(msgspec.Struct):
    """As much of a trajectory's record as tells whose it is."""

    uid: str
    group: str


def whole_lines(path: Path) -> Iterator[Line]:
    """All but a last line that was not written to its end; none if there is no such file."""
    start = 0
    try:
        with path.open("rb") as file:
            for number, content in enumerate(file, start=1):
                if content.endswith(b"\n"):
                    yield Line(f"{path}, line {number}", start, content)
                start += len(content)
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror or error}") from error


def cut_torn_end(path: Path) -> None:
    """Remove a last line that was not written to its end, so that others can be written after it."""
    end = sum(len(line.content) for line in whole_lines(path))
    try:
        size = path.stat().st_size if path.exists() else 0
        if size > end:
            with path.open("rb+") as file:
                file.truncate(end)
            log.warning("torn_line_cut", file=str(path), bytes=size - end)
    except OSError as error:
        raise JournalError(f"cannot mend {path}: {error.strerror or error}") from error


def read_head(line: Line) -> Head:
    with told_at(line.place):
        return msgspec.json.decode(line.content, type=Head)
