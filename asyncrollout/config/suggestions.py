"""The key that was probably meant, at any depth."""

import difflib
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from asyncrollout.config.document import Path
from asyncrollout.config.type_info import bare, is_mapping, options, structs

_ALIKE = 0.75
_LONGEST = 200


class SchemaKey(msgspec.Struct, frozen=True):
    """A valid key; if it is one of some variant alone, `variant` says of which."""

    path: Path
    kind: inspect.Type
    variant: str = ""


def shown(path: Path) -> str:
    """A path as overrides have it; names may be long, and may hold what a terminal would obey."""
    text = ".".join(map(str, path))[:_LONGEST]
    return text if text.isprintable() else repr(text)[1:-1]


def valid_keys(kind: inspect.Type, path: Path = (), variant: str = "") -> Iterator[SchemaKey]:
    """Every key below; the items of a list are named by 0."""
    for struct in structs(kind):
        chosen = f"{struct.tag_field}: {struct.tag}" if struct.tag else variant
        if struct.tag_field:
            yield SchemaKey((*path, struct.tag_field), inspect.StrType())
        for field in struct.fields:
            yield SchemaKey((*path, field.encode_name), field.type, chosen)
            yield from valid_keys(field.type, (*path, field.encode_name), chosen)
    for option in map(bare, options(kind)):
        if isinstance(option, inspect.ListType):
            yield from valid_keys(option.item_type, (*path, 0), variant)


def suggest(root: inspect.Type, path: Path, value: Any, struct: inspect.StructType, others: list[str]) -> str:
    """What to say of an unknown key of a struct; `others` are names that are valid at the top, too."""
    keys = [*valid_keys(root)]
    name = str(path[-1])
    same = [key.variant for key in keys if key.path == path and key.variant]
    if same and struct.tag:
        mine = f"{struct.tag_field}: {struct.tag}"
        return f"unknown key {shown(path)!r} with {mine}: it is valid with {' or '.join(dict.fromkeys(same))}"
    own = [*([struct.tag_field] if struct.tag_field else []), *(field.encode_name for field in struct.fields)]
    close = _close(name, [*own, *(others if len(path) == 1 else [])])
    anywhere = _close(name, [str(key.path[-1]) for key in keys])
    for meant in (
        [(*path[:-1], sibling) for sibling in close],
        [key.path for key in keys if key.path[-1] == name],
        [key.path for key in keys if key.path[-1] in anywhere],
    ):
        if meant:
            return _unknown(path, value, list(dict.fromkeys(meant))[:3], keys)
    return f"unknown key {shown(path)!r}: available: {', '.join(own)}"


def _unknown(path: Path, value: Any, meant: list[Path], keys: list[SchemaKey]) -> str:
    below: Path = ()
    holds = {key.path for key in keys if is_mapping(key.kind)}
    if isinstance(value, dict) and len(value) == 1 and holds.issuperset(meant):
        below = (*value,)
    named = [f"{shown((*each, *below))!r}{_condition(each, path, keys)}" for each in meant]
    return f"unknown key {shown((*path, *below))!r}: did you mean {' or '.join(named)}?"


def _condition(meant: Path, path: Path, keys: list[SchemaKey]) -> str:
    """With which variant another key is valid."""
    variants = [key.variant for key in keys if key.path == meant and key.variant]
    return f" (with {' or '.join(variants)})" if variants and meant[:-1] != path[:-1] else ""


def _close(name: str, known: list[str]) -> list[str]:
    return difflib.get_close_matches(name, sorted({*known}), n=1, cutoff=_ALIKE)
