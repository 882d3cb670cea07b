"""Batches as files, by suffix: `.jsonl`, a header and a line per trajectory, or `.parquet`, a row per trajectory.

A Parquet row has columns to look at, and the whole record, from which alone the batch is read back. Files are written
next to their target and renamed, so that no reader ever sees half of one.
"""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import IO, Any

from asyncrollout.batches.batch_json import Contents, assemble, encode_header, encode_record
from asyncrollout.errors import MissingExtraError, UsageError
from asyncrollout.trajectories import Group, Trajectory

_LINES = ".jsonl"
_TABLE = ".parquet"
_HEADER = b"asyncrollout.batch"
_RECORD = "record"
_ROWS = 64  # encoded at a time: a row can be large

_Member = tuple[Group, Trajectory]


def write(path: str | PathLike[str], index: int, groups: list[Group], stats: dict[str, float]) -> None:
    """Encode and write a batch; blocks, so call it in a thread."""
    place = _place(path)
    header = encode_header(index, groups, stats)
    members = [(group, trajectory) for group in groups for trajectory in group.trajectories]
    try:
        with _replacing(place) as file:
            if place.suffix == _TABLE:
                _write_table(file, header, members)
            else:
                file.write(header + b"\n")
                file.writelines(encode_record(group.id, group.tag, trajectory) + b"\n" for group, trajectory in members)
    except OSError as error:
        raise UsageError(f"cannot write {place}: {error.strerror or error}") from error


def read(path: str | PathLike[str]) -> Contents:
    """Read what `write` wrote; blocks, too."""
    place = _place(path)
    try:
        with place.open("rb") as file:
            if place.suffix == _TABLE:
                return _read_table(str(place), file)
            header = ("line 1", file.readline())
            return assemble(str(place), header, ((f"line {number}", line) for number, line in enumerate(file, start=2)))
    except OSError as error:
        raise UsageError(f"cannot read {place}: {error.strerror or error}") from error


def _place(path: str | PathLike[str]) -> Path:
    place = Path(path)
    if place.suffix not in (_LINES, _TABLE) or "\0" in str(place):
        raise UsageError(f"{str(place)!r} is not a batch file: its name must end in {_LINES} or {_TABLE}")
    return place


@contextmanager
def _replacing(place: Path) -> Iterator[IO[bytes]]:
    """A file that replaces the target once all of it is written; of a link, the target is replaced."""
    target = place.resolve()
    if target.exists() and not (target.is_file() or target.is_dir()):  # a device, which must not become a file
        raise OSError(errno.EINVAL, "Not a regular file")
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _write_table(file: IO[bytes], header: bytes, members: list[_Member]) -> None:
    arrow, parquet = _arrow()
    schema = _schema(arrow)
    with parquet.ParquetWriter(file, schema.with_metadata({_HEADER: header}), compression="zstd") as writer:
        for start in range(0, len(members), _ROWS):
            rows = [_row(group, trajectory) for group, trajectory in members[start : start + _ROWS]]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def _read_table(path: str, file: IO[bytes]) -> Contents:
    arrow, parquet = _arrow()
    try:
        with parquet.ParquetFile(file) as table:
            header = (table.schema_arrow.metadata or {}).get(_HEADER)
            if header is None or _RECORD not in table.schema_arrow.names:
                raise UsageError(f"{path}: not a batch file of asyncrollout: its header is missing")
            return assemble(path, ("header", header), _records(table))
    except UsageError:
        raise
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{path} is not a readable Parquet file: {error}") from error


def _records(table: Any) -> Iterator[tuple[str, str]]:
    batches = table.iter_batches(batch_size=_ROWS, columns=[_RECORD])
    for row, record in enumerate(chain.from_iterable(batch.column(0) for batch in batches), start=1):
        yield f"row {row}", str(record)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415 (optional, and slow to load)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            "Parquet needs pyarrow, which is not installed: pip install 'asyncrollout[parquet]'"
        ) from error
    return pyarrow, parquet


def _schema(arrow: Any) -> Any:
    text, number, whole, flag = arrow.string(), arrow.float64(), arrow.int64(), arrow.bool_()
    return arrow.schema(
        {
            "uid": text,
            "group": text,
            "tag": text,
            "env": text,
            "seed": arrow.uint64(),
            "member": whole,
            "reward": number,
            "valid": flag,
            "success": flag,
            "stop_reason": text,
            "truncated": flag,
            "error": text,
            "turns": whole,
            "sampled_tokens": whole,
            "version": whole,
            "seconds": number,
            "metrics": arrow.map_(text, number),
            "keep": flag,
            "reason": text,
            _RECORD: arrow.large_string(),
        }
    )


def _row(group: Group, trajectory: Trajectory) -> dict[str, Any]:
    error, verdict = trajectory.error, group.verdict
    return {
        "uid": _text(trajectory.uid),
        "group": _text(group.id),
        "tag": _text(group.tag),
        "env": _text(trajectory.env),
        "seed": trajectory.seed if 0 <= trajectory.seed < 2**64 else None,
        "member": trajectory.member,
        "reward": trajectory.reward,
        "valid": trajectory.valid,
        "success": trajectory.success,
        "stop_reason": trajectory.stop_reason.value,
        "truncated": trajectory.truncated,
        "error": None if error is None else _text(f"{type(error).__name__}: {error}"),
        "turns": len(trajectory.turns),
        "sampled_tokens": trajectory.sampled_tokens,
        "version": trajectory.version,
        "seconds": trajectory.seconds,
        "metrics": [(_text(name), value) for name, value in trajectory.metrics.items()],
        "keep": None if verdict is None else verdict.keep,
        "reason": None if verdict is None else _text(verdict.reason),
        _RECORD: encode_record(group.id, group.tag, trajectory),
    }


def _text(text: str) -> str:
    """Without lone surrogates, which Parquet cannot hold; the record has them."""
    return text.encode(errors="replace").decode()
