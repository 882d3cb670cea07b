"""Recorded values as text for people: no objects are built from them, and odd ones are shown as they are."""

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.errors import RolloutError
from asyncrollout.images import data_url
from asyncrollout.serialization import KIND, from_plain

_MOST_NUMBERS = 256
_SHORT = 100
_DEEPEST = 200  # `serialization` writes less


class Picture:
    """An image for the page, as a data URL."""

    def __init__(self, url: str) -> None:
        self.url = url


def readable(plain: Any, deep: int = 0) -> Any:
    """Without tags: lists, dicts with text keys, texts, numbers and images."""
    if not isinstance(plain, list | dict):
        return plain
    if deep == _DEEPEST:
        return "[nested too deeply]"
    deep += 1
    if isinstance(plain, list):
        return [readable(item, deep) for item in plain]
    match plain.get(KIND):
        case "tuple" | "set" | "frozenset":
            return readable(plain.get("items"), deep)
        case "dict" if _are_pairs(plain.get("items")):
            return {_key(key): readable(item, deep) for key, item in plain["items"]}
        case "str" | "bytes" | "scalar" | "array":
            return _of_bytes(plain)
        case "text":
            return str(plain.get("text"))
        case "float" | "int":
            return str(plain.get("value", plain.get("hex")))
    return {key: readable(item, deep) for key, item in plain.items() if key != KIND}


def as_text(plain: Any) -> str:
    """A text as it is; anything else as JSON, on one line if short."""
    value = plain if type(plain) is str else readable(plain)
    if value is None or isinstance(value, str):
        return value or ""
    encoded = msgspec.json.encode(value, enc_hook=_as_shown)
    return (encoded if len(encoded) <= _SHORT else msgspec.json.format(encoded)).decode()


def as_line(plain: Any) -> str:
    """A text as it is; anything else as JSON on one line."""
    value = readable(plain)
    return (
        value or ""
        if value is None or isinstance(value, str)
        else msgspec.json.encode(value, enc_hook=_as_shown).decode()
    )


def shown_path(path: Path | str) -> str:
    """A path as text, which file names need not be."""
    return os.fsencode(path).decode("utf-8", "replace")


def as_number(plain: Any) -> float:
    """A number, however it was recorded; NaN for anything else."""
    try:
        return float(plain if type(plain) is float else readable(plain))
    except (TypeError, ValueError, OverflowError):
        return math.nan


def pictures_in(plain: Any, deep: int = 0) -> list[str]:
    """The images in a value, in order, as data URLs."""
    if not isinstance(plain, list | dict) or deep == _DEEPEST:
        return []
    if isinstance(plain, dict) and plain.get(KIND) == "array":
        shown = readable(plain)
        return [shown.url] if isinstance(shown, Picture) else []
    items = plain if isinstance(plain, list) else plain.values()
    return [picture for item in items for picture in pictures_in(item, deep + 1)]


def _are_pairs(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, list) and len(item) == 2 for item in items)


def _key(plain: Any) -> str:
    key = as_text(plain)
    return key if isinstance(plain, str) else f"({key})"


def _as_shown(value: Any) -> str:
    return "[image]" if isinstance(value, Picture) else str(value)


def _of_bytes(plain: dict[str, Any]) -> Any:
    try:
        value = from_plain(plain)
    except RolloutError as error:
        return f"[{error}]"
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, bytes):
        shown = repr(value[:_SHORT])
        return shown if len(value) <= _SHORT else f"{shown} ... ({len(value)} bytes)"
    if plain[KIND] == "scalar":
        return value.item() if value.dtype.kind in "biuf" and math.isfinite(value) else _whole(str(value))
    if value.dtype == "uint8" and value.ndim == 3 and value.shape[2] == 3 and value.size:
        return Picture(data_url(value))
    if value.size > _MOST_NUMBERS:
        return f"[array of {value.dtype}, {' x '.join(map(str, value.shape))}]"
    return json.loads(_whole(json.dumps(value.tolist(), default=str, ensure_ascii=False)), parse_constant=str)


def _whole(text: str) -> str:
    """Without lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode()
