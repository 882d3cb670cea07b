"""The kinds of values that files may hold, and where in a value something is."""

import typing
from enum import Enum
from types import UnionType
from typing import Any

import msgspec
import numpy as np

from asyncrollout import errors, trajectories, types
from asyncrollout.errors import RolloutError

KIND = "$"
"""The key that names the kind of a value that JSON does not have."""
_DTYPES = "biufcmMSUV"  # kinds that are nothing but bytes

Place = tuple[Any, ...]
"""Where in a value: names of fields, keys of dicts, positions in lists."""


def _members(kind: type) -> dict[str, Any]:
    found = {**vars(types), **vars(trajectories), **vars(errors)}
    return {name: member for name, member in found.items() if isinstance(member, type) and issubclass(member, kind)}


STRUCTS: dict[str, type[msgspec.Struct]] = _members(msgspec.Struct)
ENUMS: dict[str, type[Enum]] = {name: kind for name, kind in _members(Enum).items() if kind.__module__ != "enum"}
ERRORS: dict[str, type[RolloutError]] = _members(RolloutError)


def _checked(hint: Any) -> Any:
    """The type to check a field for; an env's info may have keys of any type."""
    origin = typing.get_origin(hint)
    return origin if origin in (dict, list) and "Any" in repr(hint) else hint


HINTS: dict[type, dict[str, Any]] = {
    kind: {name: _checked(hint) for name, hint in typing.get_type_hints(kind).items()} for kind in STRUCTS.values()
}


def _unchecked(hint: Any) -> frozenset[Any]:
    options = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return frozenset(np.ndarray if typing.get_origin(option) is np.ndarray else option for option in options)


UNCHECKED = {kind: {name: _unchecked(hint) for name, hint in hints.items()} for kind, hints in HINTS.items()}
"""The types of each field that need no check, which would take longer than reading the value."""


def is_bytes(dtype: np.dtype[Any]) -> bool:
    """Whether the values of an array are nothing but bytes."""
    return dtype.kind in _DTYPES and dtype.names is None and dtype.subdtype is None


def shown(place: Place) -> str:
    """The place, as the start of an error message."""
    text = ""
    for part in place:
        if isinstance(part, str) and part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{part!r:.80}]"
    return f"{text}: " if text else ""
