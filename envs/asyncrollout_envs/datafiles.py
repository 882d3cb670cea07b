"""Rows of a data set from a JSON, JSONL or Parquet file, and how they are divided among train, val and test.

Of every ten rows, in the order of the file, the first eight are for train, the ninth for val and the tenth for test.
Rows about the same thing (the same puzzle; a question asked in other words) count once, where the first of them stands,
and all go where it goes: what is tested on was never trained on.
"""

import os
import stat
from codecs import BOM_UTF8
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from asyncrollout.errors import MissingExtraError, UsageError
from asyncrollout.splits import row_of
from asyncrollout_envs.seeding import PARTS, fresh_seed, split_of

_KINDS = {".json": "row", ".jsonl": "line", ".ndjson": "line", ".parquet": "row"}
_FILES_KEPT = 16

Row = TypeVar("Row", bound=msgspec.Struct)
Item = TypeVar("Item")


class Rows(msgspec.Struct, Generic[Item], frozen=True):
    """One split of a file; `skipped` counts the rows of the whole file that are of no use."""

    items: tuple[Item, ...]
    skipped: int


class File(msgspec.Struct, Generic[Item], frozen=True):
    """All rows of a file in their order, and the same by split."""

    items: tuple[Item, ...]
    splits: dict[str, tuple[Item, ...]]
    skipped: int


def load_split(
    env: str,
    data_path: str | Path,
    split: str,
    row: type[Row],
    read: Callable[[Row], tuple[Hashable, Item] | None],
    *,
    most: int | None = None,
) -> Rows[Item]:
    """The rows of a split, as `load_file` reads them; one that has none is an error."""
    file = load_file(env, data_path, row, read, most=most)
    if not file.splits[split]:
        raise UsageError(
            f"{env}: data_path={str(data_path)!r} has too few different rows for split={split!r}: it gets one of every "
            f"ten, from number {PARTS.index(split) + 1} on"
        )
    return Rows(file.splits[split], file.skipped)


def load_file(
    env: str,
    data_path: str | Path,
    row: type[Row],
    read: Callable[[Row], tuple[Hashable, Item] | None],
    *,
    most: int | None = None,
) -> File[Item]:
    """The rows of a file, each decoded as a `row` and read; a file is read once per process, until it changes.

    `most` is how many rows to read, all without it.
    `read` gives an item and what it is about, or None for a row to skip; its ValueErrors are told with their place.
    """
    if not isinstance(data_path, str | Path):
        raise UsageError(f"{env}: data_path={data_path!r} is not a path")
    path = Path(data_path)
    if path.suffix.lower() not in _KINDS:
        raise UsageError(f"{env}: data_path={str(path)!r} must end in one of {', '.join(_KINDS)}")
    path, status = _found(env, path)
    try:
        file: File[Item] = _load(env, path, status.st_mtime_ns, status.st_size, row, read, most)
    except OSError as error:
        raise UsageError(f"{env}: data_path={str(path)!r} cannot be read: {error.strerror or error}") from error
    if not file.items:
        raise UsageError(f"{env}: data_path={str(path)!r} holds no usable row ({file.skipped} skipped)")
    return file


def choose_row(env: str, count: int, split: str, seed: int | None, task: Any) -> int:
    """The index of an episode's row in its split: the task, or the row of the seed, drawn if there is none."""
    if task is None:
        return row_of(fresh_seed() if seed is None else seed, count)
    if isinstance(task, bool) or not isinstance(task, int | np.integer) or not 0 <= task < count:
        raise UsageError(f"{env}: task={task!r} is not the index of a row: split={split!r} has 0 to {count - 1}")
    return int(task)


def _found(env: str, path: Path) -> tuple[Path, os.stat_result]:
    try:
        whole = path.expanduser().absolute()
        status = whole.stat()
    except (OSError, ValueError, RuntimeError) as error:  # also for a NUL, and for the home of an unknown user
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{env}: data_path={str(path)!r} cannot be read: {reason}") from error
    if not stat.S_ISREG(status.st_mode):  # to open a pipe would wait for a writer
        raise UsageError(f"{env}: data_path={str(path)!r} is not a regular file")
    return whole, status


@lru_cache(maxsize=_FILES_KEPT)
def _load(
    env: str,
    path: Path,
    _modified: int,
    _size: int,
    row: type[Any],
    read: Callable[[Any], tuple[Hashable, Any] | None],
    most: int | None,
) -> File[Any]:
    kind = _KINDS[path.suffix.lower()]
    is_parquet = path.suffix.lower() == ".parquet"
    rows = _parquet_rows(env, path, row.__struct_fields__) if is_parquet else _json_rows(env, path, kind)
    decode = partial(msgspec.convert, type=row) if is_parquet else msgspec.json.Decoder(row).decode
    items: list[Any] = []
    splits: dict[str, list[Any]] = {part: [] for part in PARTS}
    numbers: dict[Hashable, int] = {}
    skipped = 0
    for place, raw in islice(rows, most):
        try:
            found = read(decode(raw))
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            raise UsageError(f"{env}: {path}, {kind} {place}: {error}") from error
        if found is None:
            skipped += 1
            continue
        about, item = found
        items.append(item)
        splits[split_of(numbers.setdefault(about, len(numbers)))].append(item)
    return File(tuple(items), {part: tuple(mine) for part, mine in splits.items()}, skipped)


def _json_rows(env: str, path: Path, kind: str) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        if kind == "line":
            yield from ((place, line) for place, line in enumerate(file, start=1) if line.strip())
            return
        content = file.read()
    try:
        rows = msgspec.json.decode(content, type=list[msgspec.Raw])
    except (RecursionError, msgspec.DecodeError) as error:
        raise UsageError(f"{env}: {path} is not a JSON list (one object per line is .jsonl): {error}") from error
    yield from enumerate(rows, start=1)


def _parquet_rows(env: str, path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    try:
        import pyarrow  # noqa: PLC0415 (optional, and slow to load)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            f"{env}: reading {path} needs pyarrow, which is not installed: pip install 'asyncrollout[parquet]'"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if name in wanted]
            batches = (batch.to_pylist() for batch in file.iter_batches(columns=columns))
            yield from enumerate(chain.from_iterable(batches), start=1)
    except (pyarrow.ArrowException, ValueError) as error:
        raise UsageError(f"{env}: {path} is not a readable Parquet file: {error}") from error
