"""The files of a run, line by line."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from asyncrollout.batches.records import located_at
from asyncrollout.errors import JournalError
from asyncrollout.logs import get_logger

log = get_logger(__name__)

_BLOCK = 65_536  # bytes that are read at a time, from the end


class JournalLine(NamedTuple):
    """A whole line, and where it stands: in words, and in bytes from the beginning."""

    place: str
    start: int
    content: bytes


class RecordHead(msgspec.Struct):
    """As much of a trajectory's record as tells whose it is."""

    uid: str
    group: str


def whole_lines(path: Path) -> Iterator[JournalLine]:
    """All but a last line that was not written to its end; none if there is no such file."""
    start = 0
    try:
        with path.open("rb") as file:
            for number, content in enumerate(file, start=1):
                if content.endswith(b"\n"):
                    yield JournalLine(f"{path}, line {number}", start, content)
                start += len(content)
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror or error}") from error


def cut_torn_end(path: Path) -> None:
    """Remove a last line that was not written to its end, so that others can be written after it."""
    try:
        with path.open("rb+") as file:
            size = end = file.seek(0, 2)
            torn = b""
            while end and b"\n" not in torn:
                start = max(end - _BLOCK, 0)
                file.seek(start)
                torn, end = file.read(end - start), start
            whole = end + torn.rfind(b"\n") + 1
            if whole < size:
                file.truncate(whole)
                log.warning("torn_line_cut", file=str(path), bytes=size - whole)
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"cannot mend {path}: {error.strerror or error}") from error


def read_head(line: JournalLine) -> RecordHead:
    with located_at(line.place):
        return msgspec.json.decode(line.content, type=RecordHead)
