"""Configurations as other systems hand them around: dicts, objects with attributes, OmegaConf's."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from asyncrollout.errors import UsageError
from asyncrollout.validation import did_you_mean


def plain(value: Any) -> Any:
    """Mappings, sequences, objects with attributes and enums, all the way down, as dicts, lists and values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(inner) for inner in value]
    if hasattr(value, "__dict__") and not callable(value):
        return {key: plain(inner) for key, inner in vars(value).items() if not key.startswith("_")}
    return value


def lookup(config: Any, name: str) -> Any:
    """A value of a mapping or of an object with attributes; None if there is none."""
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


class Part(msgspec.Struct, frozen=True):
    """A mapping that has no other keys than these: `converted` refuses others by name."""


S = TypeVar("S", bound=msgspec.Struct)


def converted(given: Any, kind: type[S], key: str) -> S:
    """A struct from plain values; an unknown key of a `Part` is refused with the nearest known one."""
    _check_keys(given, msgspec.inspect.type_info(kind), key)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        message = str(error).replace("`$.", f"`{key}." if key else "`").replace("`$`", f"`{key}`").replace("`", "'")
        where = f" - at '{key}'" if key and " - at " not in message else ""
        raise UsageError(f"config: {message}{where}") from error


def _check_keys(given: Any, kind: msgspec.inspect.Type, key: str) -> None:
    if isinstance(kind, msgspec.inspect.UnionType):
        for option in kind.types:
            _check_keys(given, option, key)
    if not isinstance(kind, msgspec.inspect.StructType) or not isinstance(given, dict):
        return
    fields = {field.name: field.type for field in kind.fields}
    for name, value in given.items():
        below = f"{key}.{name}" if key else str(name)
        if name in fields:
            _check_keys(value, fields[name], below)
        elif issubclass(kind.cls, Part):
            raise UsageError(f"config: {below}: {name!r} is not a known key of {key}{did_you_mean(str(name), fields)}")
