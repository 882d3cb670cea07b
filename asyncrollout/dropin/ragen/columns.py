"""Columns of a batch by their names, and arrays of numpy or torch as numpy's."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError

V = TypeVar("V")


def choose(part: dict[str, V], keys: Iterable[str] | None) -> dict[str, V]:
    """Those of the keys that exist; without keys, all."""
    wanted = part.keys() if keys is None else {*keys}
    return {key: value for key, value in part.items() if key in wanted}


def find(part: Mapping[str, V], key: str) -> V:
    if key not in part:
        raise UsageError(f"DataProto: there is no {key!r}; available: {', '.join(part) or 'none'}")
    return part[key]


def take(part: dict[str, V], key: str) -> V:
    find(part, key)
    return part.pop(key)


def as_array(value: Any) -> NDArray[Any]:
    """A tensor, which is not copied if it is on the CPU, or anything that numpy takes."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    on_cpu = value.detach().cpu()
    if str(on_cpu.dtype) == "torch.bfloat16":  # numpy has no such type
        on_cpu = on_cpu.float()
    array: NDArray[Any] = on_cpu.numpy()
    return array


def are_equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """NaN is equal to NaN."""
    if one.shape != other.shape:
        return False
    if "O" not in (one.dtype.kind, other.dtype.kind):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f")
    return all(map(are_same, one.ravel(), other.ravel()))


def are_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other) or all(isinstance(value, float) and math.isnan(value) for value in (one, other))
