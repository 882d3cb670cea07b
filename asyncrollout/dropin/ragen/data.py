"""A plain stand-in for verl's `DataProto`: arrays by name, objects by name, and what goes with all of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError

Columns = dict[str, NDArray[Any]]


class DataProto:
    """`batch` has arrays, `non_tensor_batch` arrays of objects, one entry of each for a row; `meta_info` is a dict."""

    def __init__(
        self,
        batch: Mapping[str, Any] | None = None,
        non_tensor_batch: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        self.batch: Columns = {key: np.asarray(value) for key, value in (batch or {}).items()}
        self.non_tensor_batch: Columns = {key: objects(value) for key, value in (non_tensor_batch or {}).items()}
        self.meta_info = {} if meta_info is None else meta_info
        self._check()

    @classmethod
    def concat(cls, parts: Sequence["DataProto"]) -> Self:
        """All rows of all parts, which have the same columns; the first one's `meta_info`."""
        if not parts:
            return cls()
        return cls(
            {key: np.concatenate([part.batch[key] for part in parts]) for key in parts[0].batch},
            {key: np.concatenate([part.non_tensor_batch[key] for part in parts]) for key in parts[0].non_tensor_batch},
            parts[0].meta_info,
        )

    def __len__(self) -> int:
        return next((len(column) for column in self._columns()), 0)

    def __getitem__(self, rows: Any) -> "DataProto":
        """Some rows, by a slice, a list of places or a mask."""
        chosen: Any = [rows] if isinstance(rows, int | np.integer) else rows
        return DataProto(
            {key: value[chosen] for key, value in self.batch.items()},
            {key: value[chosen] for key, value in self.non_tensor_batch.items()},
            self.meta_info,
        )

    def pop(
        self,
        batch_keys: Iterable[str] = (),
        non_tensor_batch_keys: Iterable[str] = (),
        meta_info_keys: Iterable[str] = (),
    ) -> "DataProto":
        """Take columns out."""
        return DataProto(
            {key: self.batch.pop(key) for key in batch_keys},
            {key: self.non_tensor_batch.pop(key) for key in non_tensor_batch_keys},
            {key: self.meta_info.pop(key) for key in meta_info_keys},
        )

    def union(self, other: Any) -> "DataProto":
        """With the columns of another one of as many rows, which may be verl's own; its columns win."""
        return DataProto(
            {**self.batch, **_as_dict(other.batch)},
            {**self.non_tensor_batch, **_as_dict(other.non_tensor_batch)},
            {**self.meta_info, **(other.meta_info or {})},
        )

    def repeat(self, repeat_times: int, interleave: bool = True) -> "DataProto":
        """Each row several times, one after the other, or all rows again and again."""
        rows = np.arange(len(self))
        return self[np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times)]

    def _columns(self) -> Iterable[NDArray[Any]]:
        return (*self.batch.values(), *self.non_tensor_batch.values())

    def _check(self) -> None:
        sizes = {key: len(column) for key, column in {**self.batch, **self.non_tensor_batch}.items()}
        if len({*sizes.values()}) > 1:
            raise UsageError(f"DataProto: its columns have different lengths: {sizes}")


def objects(values: Any) -> NDArray[Any]:
    """An array of one dimension, whatever its entries are."""
    if isinstance(values, np.ndarray):
        return values
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def _as_dict(columns: Any) -> dict[str, Any]:
    """Of a dict, a `TensorDict` or nothing."""
    return {} if columns is None else dict(columns.items())
