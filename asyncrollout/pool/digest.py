"""Short digests of what an env returned, the same in every process, to check a replay against the original."""

import dataclasses
import pickle
from enum import Enum
from typing import Any, Protocol
from zlib import crc32

import msgspec
import numpy as np

from asyncrollout.pictures import is_pil
from asyncrollout.pool import wire

_COLUMNS = 1021  # a prime, so that rows of pictures do not fall on the same columns


class Room(Protocol):
    """Where the large arrays of a value go; `used` tells whether there were any since `begin`."""

    used: bool

    def begin(self) -> None: ...

    def place(self, array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext | None: ...


class Nowhere:
    """For values that stay: large arrays are looked at, not copied."""

    used = False

    def begin(self) -> None:
        self.used = False

    def place(self, _array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext:
        self.used = True
        return _NOTHING


_BASES: tuple[type[Any], ...] = (str, bytes, int, float)
_NOTHING = msgspec.msgpack.Ext(wire.Code.MAPPED, b"")


def encode_with_digest(value: list[Any], room: Room) -> tuple[bytes, int]:
    """The wire form and the digest in one go. The digest does not depend on how the value travels."""
    room.begin()
    try:
        body = wire.encode_exact(value, room.place)
    except wire.INEXACT:
        return wire.encode(value, room.place), digest(value)
    return body, digest(value) if room.used else crc32(body)


def digest(value: Any) -> int:
    """Equal for equal values of deterministic envs. Any one value that changed is found, in large arrays, too."""
    return crc32(wire.encode(_canonical(value)))


def _canonical(value: Any) -> Any:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [list(value.shape), value.dtype.str, _crc(value)]
    if isinstance(value, dict):
        return [[_canonical(key), _canonical(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(digest(item) for item in value)
    if isinstance(value, Enum):
        return [type(value).__qualname__, value.name]
    return _canonical_object(value)


def _canonical_object(value: Any) -> Any:
    if type(value) not in wire.PLAIN and not isinstance(value, np.generic):
        for base in _BASES:
            if isinstance(value, base):  # a subclass, whose own attributes are not what it is compared by
                return [type(value).__qualname__, base(value)]
    if isinstance(value, msgspec.Struct):
        return [_canonical(getattr(value, name)) for name in value.__struct_fields__]
    if is_pil(value):  # its attributes are those of the file that it came from
        return [value.mode, list(value.size), _canonical(np.frombuffer(value.tobytes(), np.uint8))]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_canonical(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return [type(value).__qualname__, _canonical(vars(value))]
    try:
        wire.encode_exact(value)
    except wire.INEXACT:
        return [type(value).__qualname__, pickle.dumps(value)]
    return value


def _crc(array: np.ndarray[Any, Any]) -> int:
    """Of all bytes. Those of a large array are first added up in columns of 64 bits, which takes a tenth of the time.

    One changed value always changes the sum of its column. What moved within the array is in other columns, unless it
    moved by a multiple of their number.
    """
    if not array.nbytes:
        return 0
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rows = content.size // (8 * _COLUMNS)
    if rows < 2:
        return crc32(content.data)
    whole = 8 * _COLUMNS * rows
    sums = np.add.reduce(content[:whole].view(np.uint64).reshape(rows, _COLUMNS), axis=0)
    return crc32(content[whole:].data, crc32(sums.data))
