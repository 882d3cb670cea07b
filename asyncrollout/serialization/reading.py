"""Values read back from JSON: `from_plain`."""

import base64
import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
import numpy as np

from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.serialization.kinds import (
    ENUMS,
    ERRORS,
    HINTS,
    KIND,
    STRUCTS,
    UNCHECKED,
    Place,
    is_bytes,
    shown,
)

_LEAVES = frozenset({str, int, float, bool, type(None)})


def from_plain(plain: Any) -> Any:
    """The value that `to_plain` was given; a `UsageError` says what is wrong, and where."""
    try:
        return _value(plain, ())
    except RecursionError as error:
        raise UsageError("the value is nested too deeply") from error


def _value(plain: Any, place: Place) -> Any:
    if type(plain) is list:
        return _values(plain, place)
    if type(plain) is not dict:
        return plain
    if KIND not in plain:
        return {key: item if type(item) in _LEAVES else _value(item, (*place, key)) for key, item in plain.items()}
    parts = dict(plain)
    kind = parts.pop(KIND)
    make = _MAKERS.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise UsageError(f"{shown(place)}no value is of kind {kind!r}")
    try:
        return make(parts, place)
    except UsageError:
        raise
    except KeyError as error:
        raise UsageError(f"{shown(place)}a {kind} without {error}") from error
    except (TypeError, ValueError, AttributeError, OverflowError, MemoryError) as error:
        raise UsageError(f"{shown(place)}not a {kind}: {error}") from error


def _values(plain: list[Any], place: Place) -> list[Any]:
    return [item if type(item) in _LEAVES else _value(item, (*place, number)) for number, item in enumerate(plain)]


def _items(parts: dict[str, Any], place: Place) -> list[Any]:
    items = parts["items"]
    if type(items) is not list:
        raise TypeError("its items are not a list")
    return _values(items, place)


def _bytes(parts: dict[str, Any]) -> bytes:
    return base64.b64decode(parts["base64"], validate=True)


def _array(parts: dict[str, Any], shape: tuple[int, ...]) -> Any:
    dtype = np.dtype(str(parts["dtype"]))
    content = bytearray(_bytes(parts))  # so that the array can be written to
    if not is_bytes(dtype) or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes for shape {shape} of {dtype}")
    return np.ndarray(shape, dtype, buffer=content)


def _scalar(parts: dict[str, Any]) -> Any:
    dtype = np.dtype(str(parts["dtype"]))
    content = _bytes(parts)[: dtype.itemsize]  # an empty text has the bytes of a zero
    if dtype.kind == "S":
        return np.bytes_(content)
    if dtype.kind == "U":  # an array would lose zeros at its end, and cannot be empty
        return np.str_(content.decode("utf-32-be" if dtype.byteorder == ">" else "utf-32-le", "surrogatepass"))
    return _array(parts, ())[()]


def _struct(kind: type[msgspec.Struct]) -> Callable[[dict[str, Any], Place], Any]:
    def make(parts: dict[str, Any], place: Place) -> Any:
        fields = _value(parts, place)
        for name, hint in HINTS[kind].items():
            if name not in fields or hint is Any or type(fields[name]) in UNCHECKED[kind][name]:
                continue
            try:
                converted = msgspec.convert(_python(fields[name]), hint)
            except msgspec.ValidationError as error:
                raise UsageError(f"{shown((*place, name))}{error}") from error
            if (
                type(converted) is not dict and type(converted) not in _LEAVES
            ):  # an enum, or records that did not say their kind
                fields[name] = converted
        return kind(**fields)

    return make


def _python(value: Any) -> Any:
    """Numpy numbers as Python numbers, for the type check."""
    if isinstance(value, np.generic):
        return value.item()
    return {key: _python(item) for key, item in value.items()} if type(value) is dict else value


def _error(kind: type[RolloutError]) -> Callable[[dict[str, Any], Place], RolloutError]:
    def make(parts: dict[str, Any], place: Place) -> RolloutError:
        fields = _value(parts, place)
        error = kind(*fields["args"])
        vars(error).update(fields["where"])
        for note in fields["notes"]:
            error.add_note(note)
        return error

    return make


def _enum(kind: type[Enum]) -> Callable[[dict[str, Any], Place], Enum]:
    return lambda parts, _: kind(parts["value"])


_MAKERS: dict[str, Callable[[dict[str, Any], Place], Any]] = {
    "tuple": lambda parts, place: tuple(_items(parts, place)),
    "set": lambda parts, place: set(_items(parts, place)),
    "frozenset": lambda parts, place: frozenset(_items(parts, place)),
    "dict": lambda parts, place: {key: item for key, item in _items(parts, place)},  # noqa: C416
    "bytes": lambda parts, _: _bytes(parts),
    "text": lambda parts, _: str(parts["text"]),
    "str": lambda parts, _: _bytes(parts).decode("utf-8", "surrogatepass"),
    "float": lambda parts, _: float(parts["value"]),
    "int": lambda parts, _: int(parts["hex"], 16),
    "array": lambda parts, _: _array(parts, tuple(parts["shape"])),
    "scalar": lambda parts, _: _scalar(parts),
    **{name: _struct(kind) for name, kind in STRUCTS.items()},
    **{name: _error(kind) for name, kind in ERRORS.items()},
    **{name: _enum(kind) for name, kind in ENUMS.items()},
}
