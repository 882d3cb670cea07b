"""The files of a run, line by line, as every reader of them needs it."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from asyncrollout.batches.batch_json import located_at
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.events import AnyEvent, Began, decode
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.logs import get_logger

log = get_logger(__name__)

_BLOCK = 65_536  # bytes that are read at a time, from the end


class JournalLine(NamedTuple):
    """A complete line, and where it is: for error messages, and in bytes from the start of the file."""

    place: str
    start: int
    content: bytes


class RecordHead(msgspec.Struct):
    """The fields of a trajectory's record that say whose it is."""

    uid: str
    group: str


def whole_lines(path: Path) -> Iterator[JournalLine]:
    """All lines but an unfinished last one; none if the file does not exist."""
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
    """Remove an unfinished last line, so that others can be appended."""
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


def read_events(directory: Path, add: Callable[[AnyEvent], None]) -> None:
    """Call `add` with each event of a run, in order; a `UsageError` names the wrong line or the missing run.

    Nothing is locked or changed: the run may still be playing.
    """
    if not (directory / JOURNAL).is_file():
        raise UsageError(f"{directory} holds no run: it has no {JOURNAL}")
    for line in whole_lines(directory / JOURNAL):
        with located_at(line.place):
            event = decode(line.content)
            if not line.start and not isinstance(event, Began):
                raise UsageError("the first line does not say what run this is")
            add(event)


class TrajectoryFile:
    """The records of finished rollouts on disk, by group and uid; of several of one rollout, the last counts."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / TRAJECTORIES
        self.groups: dict[str, dict[str, JournalLine]] = {}
        self.counts: Counter[str] = Counter()
        """How many records each rollout has."""
        for line in whole_lines(self.path):
            head = read_head(line)
            self.counts[head.uid] += 1
            self.groups.setdefault(head.group, {})[head.uid] = line._replace(content=b"")

    def read(self, line: JournalLine) -> bytes:
        """The content of a record."""
        try:
            with self.path.open("rb") as file:
                file.seek(line.start)
                return file.readline()
        except OSError as error:
            raise JournalError(f"cannot read {self.path}: {error.strerror or error}") from error


def read_head(line: JournalLine) -> RecordHead:
    with located_at(line.place):
        return msgspec.json.decode(line.content, type=RecordHead)
