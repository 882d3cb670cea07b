"""Batches as files, by suffix: `.jsonl`, a header and a line for each trajectory, or `.parquet`.

A file is written beside its place and renamed into it, so that no reader ever sees half of one.
"""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO

from asyncrollout.batches.parquet import read_table, write_table
from asyncrollout.batches.records import Contents, assemble, encode_header, encode_record
from asyncrollout.errors import UsageError
from asyncrollout.trajectories import Group

LINES = ".jsonl"
TABLE = ".parquet"


def write(path: str | PathLike[str], index: int, groups: list[Group], stats: dict[str, float]) -> None:
    """Encodes and writes; takes as long as it takes, so call it in a thread."""
    place = _place(path)
    header = encode_header(index, groups, stats)
    members = [(group, trajectory) for group in groups for trajectory in group.trajectories]
    try:
        with _replacing(place) as file:
            if place.suffix == TABLE:
                write_table(file, header, members)
            else:
                file.write(header + b"\n")
                file.writelines(encode_record(group.id, group.tag, trajectory) + b"\n" for group, trajectory in members)
    except OSError as error:
        raise UsageError(f"cannot write {place}: {error.strerror or error}") from error


def read(path: str | PathLike[str]) -> Contents:
    """What `write` was given."""
    place = _place(path)
    try:
        with place.open("rb") as file:
            if place.suffix == TABLE:
                return read_table(str(place), file)
            header = ("line 1", file.readline())
            return assemble(str(place), header, ((f"line {number}", line) for number, line in enumerate(file, start=2)))
    except OSError as error:
        raise UsageError(f"cannot read {place}: {error.strerror or error}") from error


def _place(path: str | PathLike[str]) -> Path:
    place = Path(path)
    if place.suffix not in (LINES, TABLE) or "\0" in str(place):
        raise UsageError(f"{str(place)!r} names no file of a batch: it must end in {LINES} or {TABLE}")
    return place


@contextmanager
def _replacing(place: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place only when all of it is written; a link's target is replaced, not the link."""
    target = place.resolve()
    if target.exists() and not (target.is_file() or target.is_dir()):  # a device, which must not become a file
        raise OSError(errno.EINVAL, "It is not a regular file")
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
