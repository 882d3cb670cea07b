"""Values as JSON: `to_plain`."""

import binascii
import math
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from asyncrollout import trajectories
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.images import is_pil, pil_png
from asyncrollout.serialization.kinds import ENUMS, ERRORS, HINTS, KIND, STRUCTS, Place, is_bytes, shown

_DEEPEST = 64
_LONGEST_TEXT = 10_000
_ENUM_FIELDS = {
    kind: [(name, hint) for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Enum)]
    for kind, hints in HINTS.items()
}


def to_plain(value: Any, *, exact: bool = False) -> Any:
    """The value in the form of `msgspec.json.encode`; a `UsageError` says what cannot be written, and where.

    What an env puts into `info` can always be written: a replay does not need it. An error of a class that is not in
    `asyncrollout.errors` becomes the nearest of its bases that is, a PIL image the bytes of its PNG file. With `exact`,
    values of subclasses are refused, too, except for such images.
    """
    return _plain(value, (_EXACT,) if exact else ())


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
    if ENUMS.get(kind.__name__) is kind:
        return {KIND: kind.__name__, "value": value.value}
    for base, as_base in _BASES.items():
        if isinstance(value, base) and not _is_exact(place):
            return _plain(as_base(value), place)
    what = f"a {kind.__module__}.{kind.__qualname__} cannot be written to a file: "
    return _unwritable(value, place, what + "use numbers, texts, bytes, lists, tuples, dicts, sets or numpy arrays")


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


def _path(place: Place) -> Place:
    return place[_is_exact(place) :]


def _unwritable(value: Any, place: Place, reason: str) -> dict[str, str]:
    """The value as a marked text where that is allowed, else an error."""
    if not any(type(part) is _Lenient for part in place):
        raise UsageError(shown(_path(place)) + reason)
    value = value.value if type(value) is _Deep else value
    kind = type(value)
    try:
        text = str(value)[:_LONGEST_TEXT]
    except Exception as error:  # noqa: BLE001 (its author's __str__ may raise anything)
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
        raise UsageError(f"{shown(_path(place[:3]))}...: nested more than {_DEEPEST} deep")
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
    return dtype.str if is_bytes(dtype) else None


def _plain_error(error: RolloutError, place: Place) -> dict[str, Any]:
    name = next(kind.__name__ for kind in type(error).__mro__ if ERRORS.get(kind.__name__) is kind)
    where = {key: value for key, value in vars(error).items() if key != "__notes__"}
    parts = {"args": list(error.args), "where": where, "notes": getattr(error, "__notes__", [])}
    return {KIND: name, **_plain_dict(parts, (*place, _ERROR))}


_WRITERS: dict[type, Callable[[Any, Place], Any]] = {
    **dict.fromkeys((str, int, float, bool, type(None)), _plain_leaf),
    **dict.fromkeys((set, frozenset), _plain_set),
    **dict.fromkeys(STRUCTS.values(), _plain_struct),
    list: _plain_list,
    dict: _plain_dict,
    tuple: lambda value, place: {KIND: "tuple", "items": _plain_list(value, place)},
    bytes: lambda value, _: {KIND: "bytes", "base64": _base64(value)},
    np.ndarray: _plain_array,
}


def _base64(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode("ascii")
