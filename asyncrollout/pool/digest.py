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

_SAMPLES = 2048


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
    """Equal for equal values of deterministic envs; large arrays are sampled, so that checking costs little."""
    return crc32(wire.encode(_canonical(value)))


def _canonical(value: Any) -> Any:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        sample = value.reshape(-1)[:: max(1, value.size // _SAMPLES)]
        return [list(value.shape), value.dtype.str, sample.tobytes()]
    if isinstance(value, dict):
        return [[_canonical(key), _canonical(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(digest(item) for item in value)
    if isinstance(value, Enum):
        return [type(value).__qualname__, value.name]
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
