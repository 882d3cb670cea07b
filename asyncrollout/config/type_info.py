"""Types as `msgspec.inspect` shows them: whether a value is of one, and what one is in words."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

_LARGEST = 2**63 - 1

Number = inspect.IntType | inspect.FloatType


def options(kind: inspect.Type) -> list[inspect.Type]:
    """The members of a union; else the type alone."""
    return [*kind.types] if isinstance(kind, inspect.UnionType) else [kind]


def bare(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def is_hidden(kind: inspect.Type) -> bool:
    """Whether what was found in its place may be a secret."""
    return any(isinstance(option, inspect.Metadata) and (option.extra or {}).get("hidden") for option in options(kind))


def choices(kind: inspect.Type) -> list[str]:
    """The texts that are valid, if no others are."""
    texts = [option for option in options(kind) if isinstance(bare(option), inspect.StrType)]
    literal = [option for option in options(kind) if isinstance(option, inspect.LiteralType)]
    return [] if texts else [str(value) for option in literal for value in option.values]


def structs(kind: inspect.Type) -> list[inspect.StructType]:
    return [option for option in options(kind) if isinstance(option, inspect.StructType)]


def is_mapping(kind: inspect.Type) -> bool:
    return any(isinstance(option, inspect.StructType | inspect.DictType) for option in options(kind))


def fits(value: Any, kind: inspect.Type) -> bool:
    """Whether a value is of a type; what is in a list or a mapping does not count."""
    match bare(kind):
        case inspect.UnionType(types=types):
            return any(fits(value, option) for option in types)
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType() as number:
            return isinstance(value, int) and _within(value, number)
        case inspect.FloatType() as number:
            return isinstance(value, int | float) and _within(value, number)
        case inspect.LiteralType(values=values):
            return isinstance(value, str) and value in values
        case inspect.StrType(min_length=least, pattern=pattern):
            is_long = isinstance(value, str) and len(value) >= (least or 0)
            return is_long and (pattern is None or re.search(pattern, value) is not None)
        case (
            inspect.ListType(min_length=least, max_length=most)
            | inspect.VarTupleType(min_length=least, max_length=most)
        ):
            return isinstance(value, list) and len(value) >= (least or 0) and (most is None or len(value) <= most)
        case inspect.DictType() | inspect.StructType():
            return isinstance(value, dict)
    return True


def _within(value: float, kind: Number) -> bool:
    if isinstance(value, bool) or not abs(value) <= _LARGEST:
        return False
    from_low = (kind.ge is None or value >= kind.ge) and (kind.gt is None or value > kind.gt)
    return from_low and (kind.le is None or value <= kind.le)


def describe(kind: inspect.Type) -> str:
    """What is valid."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=schema):
            return str((schema or {}).get("description") or describe(inner))
        case inspect.UnionType():
            return " or ".join(_described(kind))
        case inspect.LiteralType(values=values):
            return " or ".join(map(repr, values))
        case inspect.IntType() | inspect.FloatType():
            return ("a whole number" if isinstance(kind, inspect.IntType) else "a number") + _bounds(kind)
        case inspect.StrType():
            return "a text"
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list of at least {kind.min_length}" if kind.min_length else "a list"
    return "a mapping"


def _described(union: inspect.UnionType) -> Iterator[str]:
    tags = [str(option.tag) for option in structs(union) if option.tag]
    if tags:
        yield f"one of {', '.join(tags)}, or a mapping with this {structs(union)[0].tag_field}"
    elif structs(union):
        yield "a mapping"
    rest = [option for option in union.types if not isinstance(option, inspect.StructType)]
    yield from (describe(option) for option in sorted(rest, key=lambda option: isinstance(option, inspect.NoneType)))


def _bounds(kind: Number) -> str:
    low = f" from {kind.ge:g}" if kind.ge is not None else "" if kind.gt is None else f" above {kind.gt:g}"
    if kind.le is None:
        return low
    return f"{low} to {kind.le:g}" if kind.ge is not None else f"{low} and up to {kind.le:g}"
