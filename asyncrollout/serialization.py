"""Any value of a record as JSON and back, without pickle.

JSON's own types stay as they are. Anything else is an object whose key `"$"` names its kind: `{"$": "tuple", "items":
[1, 2]}`, `{"$": "Turn", "observation": ...}`. Only the kinds listed here can be read from a file. Their values are
read back exactly, those of subclasses (a Counter, a named tuple, an IntEnum) as their base. Whatever else an env's
`info`, or an error, holds becomes a text: `{"$": "text", "type": "datetime.date", "text": "2024-05-01"}`.
"""

import base64
import binascii
import math
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any

import msgspec
import numpy as np

from asyncrollout import errors, trajectories, types
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.images import is_pil, pil_png

KIND = "$"
_DEEPEST = 64
_LONGEST_TEXT = 10_000
_LEAVES = frozenset({str, int, float, bool, type(None)})
_DTYPES = "biufcmMSUV"  # kinds that are nothing but bytes

Place = tuple[Any, ...]
"""Where in a value: names of fields, keys of dicts, positions in lists."""


def to_plain(value: Any, *, exact: bool = False) -> Any:
    """The value in the form of `msgspec.json.encode`; a `UsageError` says what cannot be written, and where.

    What an env puts into `info` can always be written: a replay does not need it. An error of a class that is not in
    `asyncrollout.errors` becomes the nearest of its bases that is, a PIL image the bytes of its PNG file. With `exact`,
    values of subclasses are refused, too, except for such images.
    """
    return _plain(value, (_EXACT,) if exact else ())


def from_plain(plain: Any) -> Any:
    """The value that `to_plain` was given; a `UsageError` says what is wrong, and where."""
    try:
        return _value(plain, ())
    except RecursionError as error:
        raise UsageError("the value is nested too deeply") from error


def _members(kind: type) -> dict[str, Any]:
    found = {**vars(types), **vars(trajectories), **vars(errors)}
    return {name: member for name, member in found.items() if isinstance(member, type) and issubclass(member, kind)}


_STRUCTS: dict[str, type[msgspec.Struct]] = _members(msgspec.Struct)
_ENUMS: dict[str, type[Enum]] = {name: kind for name, kind in _members(Enum).items() if kind.__module__ != "enum"}
_ERRORS: dict[str, type[RolloutError]] = _members(RolloutError)


def _checked(hint: Any) -> Any:
    """The type to check a field for; an env's info may have keys of any type."""
    origin = typing.get_origin(hint)
    return origin if origin in (dict, list) and "Any" in repr(hint) else hint


_HINTS: dict[type, dict[str, Any]] = {
    kind: {name: _checked(hint) for name, hint in typing.get_type_hints(kind).items()} for kind in _STRUCTS.values()
}


def _sure(hint: Any) -> frozenset[Any]:
    """The types that need no check, which would take longer than reading the value."""
    options = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return frozenset(np.ndarray if typing.get_origin(option) is np.ndarray else option for option in options)


_SURE = {kind: {name: _sure(hint) for name, hint in hints.items()} for kind, hints in _HINTS.items()}
_ENUM_FIELDS = {
    kind: [(name, hint) for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Enum)]
    for kind, hints in _HINTS.items()
}


def _plain(value: Any, place: Place) -> Any:
    return _WRITERS.get(type(value), _plain_other)(value, place)


def _plain_other(value: Any, place: Place) -> Any:
    kind = type(value)
    if isinstance(value, np.ndarray | np.generic):
        return _plain_array(value, place)
    if isinstance(value, RolloutError):
        return _plain_error(value, place)
    if is_pil(value):
        return _plain(pil_png(value), place)
    if _ENUMS.get(kind.__name__) is kind:
        return {KIND: kind.__name__, "value": value.value}
    for base, as_base in _BASES.items():
        if isinstance(value, base) and not _is_exact(place):
            return _plain(as_base(value), place)
    told = f"a {kind.__module__}.{kind.__qualname__} cannot be written to a file: "
    return _unwritable(value, place, told + "use numbers, texts, bytes, lists, tuples, dicts, sets or numpy arrays")


# Methods of the base itself: a subclass may have others of that name.
_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: (*tuple.__iter__(value),),
    dict: lambda value: dict(value.items()),  # an OrderedDict's own order is not that of its base
    set: lambda value: {*set.__iter__(value)},
    frozenset: lambda value: frozenset({*frozenset.__iter__(value)}),
}


class _Lenient(str):
    """The name of a field whose values need not be read back as they were."""

    __slots__ = ()


class _Exact(str):
    """Begins the place of values that must be read back as they were, with their types."""

    __slots__ = ()


_EXACT = _Exact()
_INFO = _Lenient("info")
_ERROR = _Lenient("error")


def _is_exact(place: Place) -> bool:
    return bool(place) and place[0] is _EXACT


def _unwritable(value: Any, place: Place, told: str) -> dict[str, str]:
    """The value as a marked text where that is allowed, else an error."""
    if not any(type(part) is _Lenient for part in place):
        raise UsageError(_shown(place) + told)
    value = value.value if type(value) is _Deep else value
    kind = type(value)
    try:
        text = str(value)[:_LONGEST_TEXT]
    except Exception as error:  # noqa: BLE001 (whatever its author's __str__ does)
        text = f"<no text can be made of it: {type(error).__name__}>"
    return {
        KIND: "text",
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "text": text.encode(errors="replace").decode(),
    }


def _plain_leaf(value: Any, _place: Place = ()) -> Any:
    kind = type(value)
    if kind is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return {KIND: "str", "base64": _base64(value.encode("utf-8", "surrogatepass"))}
    if kind is float and not math.isfinite(value):
        return {KIND: "float", "value": repr(value)}
    if kind is int and not -(2**63) <= value < 2**64:
        return {KIND: "int", "hex": hex(value)}
    return value


def _make_plain(parts: Any, entries: Iterable[tuple[Any, Any]], place: Place) -> None:
    """Convert the parts of a list or dict in place; there are millions in a run, so plain ones cost no call."""
    if len(place) > _DEEPEST and len(place) - _is_exact(place) > _DEEPEST:
        raise UsageError(f"{_shown(place[:3])}...: nested more than {_DEEPEST} deep")
    for key, value in entries:
        if value is None or value is True or value is False:
            continue
        kind = type(value)
        if kind is str:
            if value.isascii():
                continue
        elif kind is float:
            if math.isfinite(value):
                continue
        elif kind is int and -(2**63) <= value < 2**64:
            continue
        parts[key] = _WRITERS.get(kind, _plain_other)(value, (*place, key))


def _plain_list(value: Iterable[Any], place: Place) -> list[Any]:
    items = list(value)
    _make_plain(items, enumerate(items), place)
    return items


def _plain_dict(value: dict[Any, Any], place: Place) -> dict[str, Any]:
    items = value.copy()
    _make_plain(items, value.items(), place)
    for key in items:
        if type(key) is not str or key == KIND or not (key.isascii() or _plain_leaf(key) is key):
            return {KIND: "dict", "items": [[_plain(key, (*place, key)), item] for key, item in items.items()]}
    return items


def _plain_set(value: set[Any] | frozenset[Any], place: Place) -> dict[str, Any]:
    """In an order that does not depend on the process."""
    return {KIND: type(value).__name__, "items": sorted(_plain_list(value, place), key=msgspec.json.encode)}


def _plain_struct(value: msgspec.Struct, place: Place) -> dict[str, Any]:
    kind = type(value)
    fields = {KIND: kind.__name__, **msgspec.structs.asdict(value)}
    for name, enum in _ENUM_FIELDS[kind]:
        if type(fields[name]) is enum:
            fields[name] = fields[name].value
    if kind is not trajectories.Turn:
        _make_plain(fields, fields.items(), place)
        return fields
    info, fields["info"] = fields["info"], None
    _make_plain(fields, fields.items(), place)
    fields["info"] = _plain_info(info, (*place, _INFO))
    return fields


def _plain_info(info: Any, place: Place) -> Any:
    """The info, with values that are nested too deeply (perhaps in themselves) as texts."""
    try:
        return _plain(info, place)
    except UsageError:
        return _plain({key: _Deep(value) if _is_deep(value, place) else value for key, value in info.items()}, place)


class _Deep:
    """Marks a value to be written as text only."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _is_deep(value: Any, place: Place) -> bool:
    try:
        _plain(value, (*place, ""))
    except UsageError:
        return True
    return False


def _plain_array(value: Any, place: Place) -> dict[str, Any]:
    is_subclass = type(value) is not np.ndarray and isinstance(value, np.ndarray)
    if is_subclass and not isinstance(value, np.ma.MaskedArray) and not _is_exact(place):
        value = np.asarray(value)
    dtype = value.dtype
    name = _name_if_bytes(dtype)
    scalar = isinstance(value, np.generic)
    if name is None or not (scalar or (type(value) is np.ndarray and dtype.itemsize)):
        return _unwritable(value, place, f"a {type(value).__name__} of {dtype} cannot be written to a file")
    content = _base64(value.tobytes())
    if scalar:
        return {KIND: "scalar", "dtype": name, "base64": content}
    return {KIND: "array", "shape": [*value.shape], "dtype": name, "base64": content}


@lru_cache
def _name_if_bytes(dtype: np.dtype[Any]) -> str | None:
    return dtype.str if _is_bytes(dtype) else None


def _plain_error(error: RolloutError, place: Place) -> dict[str, Any]:
    name = next(kind.__name__ for kind in type(error).__mro__ if _ERRORS.get(kind.__name__) is kind)
    where = {key: value for key, value in vars(error).items() if key != "__notes__"}
    parts = {"args": list(error.args), "where": where, "notes": getattr(error, "__notes__", [])}
    return {KIND: name, **_plain_dict(parts, (*place, _ERROR))}


_WRITERS: dict[type, Callable[[Any, Place], Any]] = {
    **dict.fromkeys((str, int, float, bool, type(None)), _plain_leaf),
    **dict.fromkeys((set, frozenset), _plain_set),
    **dict.fromkeys(_STRUCTS.values(), _plain_struct),
    list: _plain_list,
    dict: _plain_dict,
    tuple: lambda value, place: {KIND: "tuple", "items": _plain_list(value, place)},
    bytes: lambda value, _: {KIND: "bytes", "base64": _base64(value)},
    np.ndarray: _plain_array,
}


def _base64(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode("ascii")


def _is_bytes(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _DTYPES and dtype.names is None and dtype.subdtype is None


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
        raise UsageError(f"{_shown(place)}no value is of kind {kind!r}")
    try:
        return make(parts, place)
    except UsageError:
        raise
    except KeyError as error:
        raise UsageError(f"{_shown(place)}a {kind} without {error}") from error
    except (TypeError, ValueError, AttributeError, OverflowError, MemoryError) as error:
        raise UsageError(f"{_shown(place)}not a {kind}: {error}") from error


def _values(plain: list[Any], place: Place) -> list[Any]:
    return [item if type(item) in _LEAVES else _value(item, (*place, number)) for number, item in enumerate(plain)]


def _items(parts: dict[str, Any], place: Place) -> list[Any]:
    items = parts["items"]
    if type(items) is not list:
        raise TypeError("its items are no list")
    return _values(items, place)


def _bytes(parts: dict[str, Any]) -> bytes:
    return base64.b64decode(parts["base64"], validate=True)


def _array(parts: dict[str, Any], shape: tuple[int, ...]) -> Any:
    dtype = np.dtype(str(parts["dtype"]))
    content = bytearray(_bytes(parts))  # so that the array can be written to
    if not _is_bytes(dtype) or math.prod(shape) * dtype.itemsize != len(content):
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
        for name, hint in _HINTS[kind].items():
            if name not in fields or hint is Any or type(fields[name]) in _SURE[kind][name]:
                continue
            try:
                told = msgspec.convert(_python(fields[name]), hint)
            except msgspec.ValidationError as error:
                raise UsageError(f"{_shown((*place, name))}{error}") from error
            if type(told) is not dict and type(told) not in _LEAVES:  # an enum, or records that did not say their kind
                fields[name] = told
        return kind(**fields)

    return make


def _python(value: Any) -> Any:
    """Numpy numbers as Python numbers, for the type check."""
    if isinstance(value, np.generic):
        return value.item()
    return {key: _python(item) for key, item in value.items()} if type(value) is dict else value


def _error(kind: type[RolloutError]) -> Callable[[dict[str, Any], Place], RolloutError]:
    def make(parts: dict[str, Any], place: Place) -> RolloutError:
        told = _value(parts, place)
        error = kind(*told["args"])
        vars(error).update(told["where"])
        for note in told["notes"]:
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
    **{name: _struct(kind) for name, kind in _STRUCTS.items()},
    **{name: _error(kind) for name, kind in _ERRORS.items()},
    **{name: _enum(kind) for name, kind in _ENUMS.items()},
}


def _shown(place: Place) -> str:
    """The place, as the start of an error message."""
    told = ""
    for part in place[_is_exact(place) :]:
        if isinstance(part, str) and part.isidentifier():
            told += f".{part}" if told else part
        else:
            told += f"[{part!r:.80}]"
    return f"{told}: " if told else ""
