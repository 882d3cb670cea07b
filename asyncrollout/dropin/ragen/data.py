"""A stand-in for verl's `DataProto`, with numpy arrays: its interface for programs that run without torch."""

import copy
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.ragen.columns import are_equal, are_same, as_array, choose, find, take
from asyncrollout.errors import UsageError

Columns = dict[str, NDArray[Any]]

_LOADER_OPTIONS = frozenset({"shuffle", "drop_last"})


class DataProtoItem(msgspec.Struct):
    """One row."""

    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any]


class DataProto:
    """`batch` has arrays, `non_tensor_batch` arrays of objects, one entry of each for a row; `meta_info` is a dict.

    Methods do what verl's do, and raise `UsageError` where those fail. A batch without arrays is empty, not None.
    """

    def __init__(
        self,
        batch: Mapping[str, Any] | None = None,
        non_tensor_batch: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        self.batch: Columns = {key: np.asarray(value) for key, value in (batch or {}).items()}
        self.non_tensor_batch: Columns = {key: objects(value) for key, value in (non_tensor_batch or {}).items()}
        self.meta_info = {} if meta_info is None else meta_info
        self.check_consistency()

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, Any] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> "DataProto":
        return cls(tensors, non_tensors, meta_info)

    @classmethod
    def from_single_dict(cls, data: Mapping[str, Any], meta_info: dict[str, Any] | None = None) -> "DataProto":
        """Arrays of objects and of text are the `non_tensor_batch`, all others the `batch`."""
        columns = {key: np.asarray(value) for key, value in data.items()}
        are_objects = {key: column.dtype.kind in "OUS" for key, column in columns.items()}
        return cls(
            {key: column for key, column in columns.items() if not are_objects[key]},
            {key: column for key, column in columns.items() if are_objects[key]},
            meta_info,
        )

    @staticmethod
    def concat(data: Sequence["DataProto"]) -> "DataProto":
        """All rows of all parts, which have the same columns; the first one's `meta_info`."""
        if not data:
            return DataProto()
        columns = [({*part.batch}, {*part.non_tensor_batch}) for part in data]
        for found in columns:
            if found != columns[0]:
                raise UsageError(f"DataProto.concat: the parts have different columns: {columns[0]} and {found}")
        return DataProto(
            {key: np.concatenate([part.batch[key] for part in data]) for key in data[0].batch},
            {key: np.concatenate([part.non_tensor_batch[key] for part in data]) for key in data[0].non_tensor_batch},
            data[0].meta_info,
        )

    def __len__(self) -> int:
        return next((len(column) for column in (*self.batch.values(), *self.non_tensor_batch.values())), 0)

    def __getitem__(self, item: Any) -> Any:
        """One row by its number, a `DataProtoItem`; or some, by a slice, a list of numbers or a mask."""
        if isinstance(item, slice):
            return self._rows(item)
        if isinstance(item, int | np.integer):
            return DataProtoItem(
                {key: column[item] for key, column in self.batch.items()},
                {key: column[item] for key, column in self.non_tensor_batch.items()},
                self.meta_info,
            )
        return self.select_idxs(item)

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> "DataProto":
        return self._rows(slice(start, end, step))

    def select_idxs(self, idxs: Any) -> "DataProto":
        """Rows by their numbers or by a mask."""
        rows = np.asarray(idxs)
        return self._rows(rows if rows.dtype == bool else rows.astype(np.int64))

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
        deepcopy: bool = False,
    ) -> "DataProto":
        """Some columns; of a part that no keys are given for, all. `batch_keys` must exist, the others need not."""
        non_tensors = choose(self.non_tensor_batch, non_tensor_batch_keys)
        meta_info = choose(self.meta_info, meta_info_keys)
        tensors = self.batch if batch_keys is None else {key: find(self.batch, key) for key in batch_keys}
        if deepcopy:
            non_tensors, meta_info = copy.deepcopy((non_tensors, meta_info))
        return DataProto(tensors, non_tensors, meta_info)

    def pop(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
    ) -> "DataProto":
        """Take columns out."""
        parts = (
            (self.batch, batch_keys),
            (self.non_tensor_batch, non_tensor_batch_keys),
            (self.meta_info, meta_info_keys),
        )
        return DataProto(*({key: take(part, key) for key in keys or ()} for part, keys in parts))

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> "DataProto":
        """Rename arrays of the `batch`, in place."""
        old, new = ([keys] if isinstance(keys, str) else [*keys] for keys in (old_keys, new_keys))
        if len(old) != len(new):
            raise UsageError(f"DataProto.rename: {len(old)} old keys for {len(new)} new ones")
        moved = {after: find(self.batch, before) for before, after in zip(old, new, strict=True)}
        if taken := moved.keys() & (self.batch.keys() - {*old}):
            raise UsageError(f"DataProto.rename: {min(taken)!r} exists already")
        self.batch = {key: column for key, column in self.batch.items() if key not in old} | moved
        return self

    def union(self, other: Any) -> "DataProto":
        """Add the columns of another one of as many rows, in place; those that both have must be equal."""
        added = from_any(other)
        for mine, theirs in ((self.batch, added.batch), (self.non_tensor_batch, added.non_tensor_batch)):
            for key in mine.keys() & theirs.keys():
                if not are_equal(mine[key], theirs[key]):
                    raise UsageError(f"DataProto.union: {key!r} is in both, and differs")
        for key in self.meta_info.keys() & added.meta_info.keys():
            if not are_same(self.meta_info[key], added.meta_info[key]):
                raise UsageError(f"DataProto.union: meta_info[{key!r}] is in both, and differs")
        joined = merged(self, added)
        self.batch, self.non_tensor_batch, self.meta_info = joined.batch, joined.non_tensor_batch, joined.meta_info
        return self

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> "DataProto":
        """Each row several times, one after the other, or all rows again and again."""
        rows = np.arange(len(self))
        return self._rows(np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times))

    def sample_level_repeat(self, repeat_times: Sequence[int]) -> "DataProto":
        """Each row as often as its own number says."""
        return self._rows(np.repeat(np.arange(len(self)), np.asarray(repeat_times, dtype=np.int64)))

    def reorder(self, indices: Any) -> None:
        """Put the rows into another order, in place."""
        found = self.select_idxs(indices)
        self.batch, self.non_tensor_batch = found.batch, found.non_tensor_batch

    def chunk(self, chunks: int) -> list["DataProto"]:
        """As many parts of equal size."""
        if chunks < 1 or len(self) % chunks:
            raise UsageError(f"DataProto.chunk: {len(self)} rows cannot be divided into {chunks} equal parts")
        size = len(self) // chunks
        return [self._rows(slice(start * size, (start + 1) * size)) for start in range(chunks)]

    def split(self, split_size: int) -> list["DataProto"]:
        """Parts of a size; the last one may be smaller."""
        if split_size < 1:
            raise UsageError(f"DataProto.split: split_size={split_size} is below 1")
        return [self._rows(slice(start, start + split_size)) for start in range(0, len(self), split_size)]

    def to(self, device: Any) -> "DataProto":
        """Numpy's arrays are on the CPU and stay there."""
        if str(device).partition(":")[0] != "cpu":
            raise UsageError(
                f"DataProto.to({str(device)!r}): numpy arrays stay on the CPU; pass verl's own DataProto instead"
            )
        return self

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator["DataProto"]:
        """Batches of a size, `epochs` times over. Of a DataLoader's options `shuffle` and `drop_last` are accepted.

        Shuffled orders follow from the seed, but are not those of torch.
        """
        options = dict(dataloader_kwargs or {})
        if unknown := options.keys() - _LOADER_OPTIONS:
            raise UsageError(f"DataProto.make_iterator: dataloader_kwargs[{min(unknown)!r}] needs torch")
        if mini_batch_size < 1 or len(self) % mini_batch_size:
            raise UsageError(f"DataProto.make_iterator: {len(self)} rows are not a multiple of {mini_batch_size}")
        return self._mini_batches(mini_batch_size, epochs, np.random.default_rng(seed), bool(options.get("shuffle")))

    def save_to_disk(self, filepath: str | Path) -> None:
        with Path(filepath).open("wb") as file:
            pickle.dump(self, file)

    @staticmethod
    def load_from_disk(filepath: str | Path) -> "DataProto":
        """What `save_to_disk` wrote. It is a pickle, which can run code: load only files that you trust."""
        with Path(filepath).open("rb") as file:
            loaded = pickle.load(file)  # noqa: S301
        if not isinstance(loaded, DataProto):
            raise UsageError(f"{filepath} has a {type(loaded).__name__}, not a DataProto")
        return loaded

    def check_consistency(self) -> None:
        sizes = {key: len(column) for key, column in {**self.batch, **self.non_tensor_batch}.items()}
        if len({*sizes.values()}) > 1:
            raise UsageError(f"DataProto: its columns have different lengths: {sizes}")

    def _rows(self, rows: Any) -> "DataProto":
        return DataProto(
            {key: column[rows] for key, column in self.batch.items()},
            {key: column[rows] for key, column in self.non_tensor_batch.items()},
            self.meta_info,
        )

    def _mini_batches(
        self, size: int, epochs: int, rng: np.random.Generator, is_shuffled: bool
    ) -> Iterator["DataProto"]:
        for _ in range(epochs):
            rows = rng.permutation(len(self)) if is_shuffled else np.arange(len(self))
            for start in range(0, len(self), size):
                yield self._rows(rows[start : start + size])


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """With its first rows again at the end, until the number of rows can be divided; and how many these are."""
    count = len(data)
    missing = -count % size_divisor
    return (data[np.arange(count + missing) % count], missing) if missing else (data, 0)


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    return data.slice(0, len(data) - pad_size) if pad_size else data


def objects(values: Any) -> NDArray[Any]:
    """An array of one dimension, whatever its entries are."""
    if isinstance(values, np.ndarray):
        return values
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def from_any(batch: Any) -> DataProto:
    """A stand-in, or verl's own as one; tensors that are on the CPU are not copied."""
    if isinstance(batch, DataProto):
        return batch
    tensors = {} if batch.batch is None else dict(batch.batch.items())
    return DataProto(
        {key: as_array(value) for key, value in tensors.items()}, batch.non_tensor_batch or {}, batch.meta_info or {}
    )


def merged(data: DataProto, other: Any) -> DataProto:
    """All columns of two batches of as many rows; where both have one, the other's."""
    added = from_any(other)
    return DataProto(
        {**data.batch, **added.batch},
        {**data.non_tensor_batch, **added.non_tensor_batch},
        {**data.meta_info, **added.meta_info},
    )
