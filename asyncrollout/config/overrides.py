"""Values from the command line, such as `env_kwargs.size=8`, put into what a file says."""

import re
from typing import Any

from asyncrollout.config.document import MOST_DEPTH, Document, Path, Place, load
from asyncrollout.errors import UsageError

SHORT = {"policy": "kind", "keep": "name"}
"""What a text alone means where a mapping is expected."""


def expanded(values: dict[Any, Any]) -> dict[Any, Any]:
    """With `policy: solver` written out, as `policy: {kind: solver}`."""
    short = {key: {name: values[key]} for key, name in SHORT.items() if isinstance(values.get(key), str)}
    policy = values.get("policy")
    if isinstance(policy, dict) and "kind" not in policy:
        short["policy"] = {"kind": "solver", **policy}
    return {**values, **short}


def _with_room(values: dict[Any, Any], parts: list[str]) -> dict[Any, Any]:
    """With `env: sokoban` written out, as `env: {env: sokoban}`, if one of an env's own keys is to be set."""
    env = values.get("env")
    is_below = parts[0] == "env" and len(parts) > 1 and not parts[1].isdecimal()
    return {**values, "env": {"env": env}} if is_below and isinstance(env, str) else values


def undotted(document: Document, where: str) -> Document:
    """With `env.eval.seed: 1` at the top written out, as `env: {eval: {seed: 1}}`."""
    for key in [key for key in document.value if isinstance(key, str) and "." in key]:
        place = document.places[key,].where
        parts = key.split(".")
        if not all(parts) or len(parts) > MOST_DEPTH:
            continue  # which is an unknown key
        if _has(document.value, parts):
            raise UsageError(f"{where}, {place}: {key!r} is given twice, once with dots and once nested")
        rest = {other: value for other, value in document.value.items() if other != key}
        path, value = _put(_with_room(rest, parts), parts, document.value[key], f"{where}, {place}")
        moved = {(*path, *old[1:]): there for old, there in document.places.items() if old[0:1] == (key,)}
        kept = {old: there for old, there in document.places.items() if old[0:1] != (key,)}
        around = {path[:depth]: document.places[key,] for depth in range(1, len(path))}
        document = Document(value, {**around, **kept, **moved})
    return document


def _has(values: Any, parts: list[str]) -> bool:
    for part in parts:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def override(document: Document, assignment: str) -> Document:
    """The document with one value set; errors and places name the key alone, since the value may be a secret."""
    key, equals, text = assignment.partition("=")
    if not equals:
        begin = re.match(r"[\w.]*", assignment)
        raise UsageError(f"override {begin.group() if begin else ''!r}: no '=' in it: write key=value, as group_size=4")
    where = f"override {key.strip()!r:.100}"
    parts = key.strip().split(".")
    if not all(parts) or len(parts) > MOST_DEPTH:
        raise UsageError(f"{where}: write the key as names with single dots between them, as in env_kwargs.size=8")
    new = load(text, where, lines=False)
    path, value = _put(_with_room(expanded(document.value), parts), parts, new.value, where)
    kept = {old: place for old, place in document.places.items() if old[: len(path)] != path}
    around = {path[:depth]: Place(where) for depth in range(1, len(path))}
    placed = {(*path, *below): place for below, place in new.places.items()}
    return Document(value, {**around, **kept, path: Place(where), **placed})


def _put(values: Any, parts: list[str], new: Any, where: str, done: Path = ()) -> tuple[Path, Any]:
    """The path that the parts name, and a copy of the values with the new one."""
    if not parts:
        return done, new
    part, *rest = parts
    if values is None:
        values = {}
    if isinstance(values, dict):
        path, value = _put(values.get(part), rest, new, where, (*done, part))
        return path, {**values, part: value}
    here = ".".join(map(str, done))
    if not isinstance(values, list):
        raise UsageError(f"{where}: {here!r} is a single value and has no {part!r}")
    index = int(part) if re.fullmatch(r"\d{1,9}", part) else -1
    if not 0 <= index < len(values):
        raise UsageError(f"{where}: {here!r} is a list of {len(values)}: {part!r:.20} is not an index of it, from 0")
    path, value = _put(values[index], rest, new, where, (*done, index))
    return path, [*values[:index], value, *values[index + 1 :]]
