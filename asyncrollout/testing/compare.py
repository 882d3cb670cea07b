"""Whether two values, or two episodes, are the same."""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np

from asyncrollout.types import Outcome

_CLIP = 160
_COMPARED = ("observation", "reward", "terminated", "truncated")


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, all the way down; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return _same_array(np.asarray(a), np.asarray(b))
    if isinstance(a, dict):
        return _typed(a) == _typed(b) and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set | frozenset):
        return _typed(a) == _typed(b)
    if isinstance(a, float | complex):
        return bool(a == b) or bool(a != a and b != b)  # noqa: PLR0124 (NaN)
    if isinstance(a, msgspec.Struct):
        return same(msgspec.structs.astuple(a), msgspec.structs.astuple(b))
    if dataclasses.is_dataclass(a) or getattr(type(a), "__eq__", None) is object.__eq__:
        state = a.__getstate__()
        return a is b or (state is not None and same(state, b.__getstate__()))
    return bool(a == b)


def _same_array(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.names:
        return all(_same_array(a[name], b[name]) for name in a.dtype.names)
    if a.dtype.hasobject:
        return same(a.tolist(), b.tolist())
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM")


def _typed(keys: Iterable[Any]) -> set[tuple[type, Any]]:
    return {(type(key), key) for key in keys}


def difference(expected: Sequence[Outcome], seen: Sequence[Outcome]) -> str | None:
    """Where two episodes part, in words; None if they are the same. `info` may hold times, so it is left out."""
    for turn, (one, other) in enumerate(zip_longest(expected, seen)):
        place = f"after step {turn}" if turn else "after reset"
        if one is None or other is None:
            return f"{place} the one has ended, the other has not"
        for name in _COMPARED:
            first, second = getattr(one, name), getattr(other, name)
            if not same(first, second):
                return f"{place} its {name} was {shown(first)}, then {shown(second)}"
    return None


def shown(value: Any) -> str:
    """A value in an error message."""
    text = repr(value)
    return text if len(text) <= _CLIP else f"{text[:_CLIP]}... ({len(text)} characters)"
