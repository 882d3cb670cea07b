"""Kinds of spaces, and how their members are described in words.

Kinds are recognized by class name: Gymnasium takes long to import, and other packages have spaces, too.
"""

import json
import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ARRAYS = ("Box", "MultiDiscrete", "MultiBinary")
MOST_IN_ACTION = 32
"""Numbers, or parts: a model cannot be expected to write more."""

_KINDS = ("Discrete", *ARRAYS, "Text", "Dict", "Tuple", "Sequence")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_clipped = reprlib.Repr()
_clipped.maxother = _clipped.maxstring = _clipped.maxlong = 500
_clipped.maxlist = _clipped.maxtuple = _clipped.maxset = _clipped.maxdict = 64


def short(value: Any) -> str:
    """A value's repr, shortened, and the same in every process."""
    return without_addresses(_clipped.repr(value))


def without_addresses(text: str) -> str:
    return _ADDRESS.sub("", text)


def kind_of(space: Any) -> str | None:
    """The kind of a space; None if it is unknown."""
    return next((cls.__name__ for cls in type(space).__mro__ if cls.__name__ in _KINDS), None)


def parts_of(space: Any) -> dict[Any, Any]:
    """The spaces within a Dict or a Tuple."""
    return dict(space.spaces) if kind_of(space) == "Dict" else dict(enumerate(space.spaces))


def ends_of(space: Any) -> tuple[int, int]:
    """The first and the last number of a Discrete space."""
    first = int(getattr(space, "start", 0))
    return first, first + int(space.n) - 1


def bounds_of(space: Any) -> tuple[Array, Array]:
    """The least and the greatest member of an array space."""
    match kind_of(space):
        case "MultiDiscrete":
            start = getattr(space, "start", np.zeros_like(space.nvec))
            return start, start + (space.nvec - 1)
        case "MultiBinary":
            return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
    return space.low, space.high


def can_be_written(space: Any) -> bool:
    """Whether a model can write a member of this space."""
    kind = kind_of(space)
    if kind in ARRAYS:
        return 1 <= int(math.prod(space.shape)) <= MOST_IN_ACTION
    if kind in ("Dict", "Tuple"):
        parts = parts_of(space).values()
        return 1 <= len(parts) <= MOST_IN_ACTION and all(map(can_be_written, parts))
    return kind in ("Discrete", "Text")


def form_of(space: Any, names: Mapping[int, str] | None = None) -> str:
    """Describes the members of a space in words; `names` are those of a Discrete space's numbers."""
    match kind_of(space):
        case "Discrete" if names:
            return "one of: " + ", ".join(f"{name} (or {number})" for number, name in names.items())
        case "Discrete":
            return "a whole number " + _range(*ends_of(space))
        case "Text":
            letters = "".join(sorted(space.character_set))
            return f"a text of {space.min_length} to {space.max_length} characters out of {letters[:100]}"
        case "Dict":
            parts = "; ".join(f"{json.dumps(str(key))}: {form_of(part)}" for key, part in parts_of(space).items())
            return f"an object with {parts}"
        case "Tuple":
            return f"a list of {len(space.spaces)} parts: " + "; ".join(map(form_of, space.spaces))
        case "Box" | "MultiDiscrete" | "MultiBinary":
            return _array_form(space)
    return "a text" if space is None else short(space)


def _array_form(space: Any) -> str:
    low, high = bounds_of(space)
    number = "number" if low.dtype.kind == "f" else "whole number"
    if low.size > MOST_IN_ACTION:
        return f"an array of shape {low.shape}, each a {number} {_range(low.min(), high.max())}"
    ranges = [_range(*pair) for pair in zip(low.flat, high.flat, strict=True)]
    if len(ranges) == 1:
        return f"a {number} {ranges[0]}"
    rows = f" (shape {low.shape}, row by row)" if low.ndim > 1 else ""
    bounds = f"each {ranges[0]}" if len(set(ranges)) == 1 else ", ".join(ranges)
    return f"a list of {low.size} {number}s{rows}: {bounds}"


def _range(low: Any, high: Any) -> str:
    """The bounds, exactly: a rounded one might lie outside. (A float32's `str` has its own digits, its format more.)"""
    if np.isinf(low) and np.isinf(high):
        return "of any size"
    if np.isinf(high):
        return f"of at least {low!s}"
    return f"of at most {high!s}" if np.isinf(low) else f"from {low!s} to {high!s}"
