"""Whether two values, or two episodes, are the same."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np

from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.digest import digest
from asyncrollout.types import Outcome

_CLIP = 160
_COMPARED = ("observation", "reward", "terminated", "truncated")


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, all the way down; NaN equals NaN."""
    try:
        return _same(a, b)
    except RecursionError:  # it holds itself
        return digest(a) == digest(b)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if type(a) is np.ndarray or isinstance(a, np.generic):
        return _same_array(np.asarray(a), np.asarray(b))
    if type(a) is dict:
        return _typed(a) == _typed(b) and all(_same(value, b[key]) for key, value in a.items())
    if type(a) is list or type(a) is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    if type(a) is set or type(a) is frozenset:
        return _typed(a) == _typed(b)
    if type(a) is float or type(a) is complex:
        return bool(a == b) or bool(a != a and b != b)  # noqa: PLR0124 (NaN)
    if isinstance(a, msgspec.Struct):
        return _same(msgspec.structs.astuple(a), msgspec.structs.astuple(b))
    return a is b or (type(a) in codec.PLAIN and bool(a == b)) or _same_object(a, b)


def _same_object(a: Any, b: Any) -> bool:
    """As the pool compares a replay with its original."""
    try:
        return digest(a) == digest(b)
    except codec.UnsendableError:
        return bool(a == b)


def _same_array(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.names:
        return all(_same_array(a[name], b[name]) for name in a.dtype.names)
    if a.dtype.hasobject:
        return _same(list(a.flat), list(b.flat))
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
            if not (same(first, second) and _same_object(first, second)):  # as values, and to the pool
                return f"{place} its {name} was {shown(first)}, then {shown(second)}{_hint(first, second)}"
    return None


def _hint(first: Any, second: Any) -> str:
    try:
        equal = bool(first == second)
    except Exception:  # noqa: BLE001 (a user's __eq__ may raise anything)
        equal = False
    note = " (equal by ==, but not in type, in the order of a dict, or in what a pickle keeps: ids, addresses, times)"
    return note if equal else ""


def shown(value: Any) -> str:
    """A value in an error message."""
    text = repr(value)
    return text if len(text) <= _CLIP else f"{text[:_CLIP]}... ({len(text)} characters)"
