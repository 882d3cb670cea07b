"""Observations of any kind, described in words and as a digest."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrollout.text.spaces.kinds import Array, ends_of, kind_of, parts_of, short, without_addresses

_MOST_NUMBERS = 256
_MOST_PARTS = 64
_MOST_DIGESTED = 2**17  # bytes of an array; those of an Atari frame are fewer, and take 0.2 ms
_SAMPLES = 2**14
_DIGITS = 7
_EXACT = 1e16  # beyond, a float's digits are not its own
_SMALLEST_PICTURE = 32  # pixels; below, three channels of bytes are more likely a grid of codes


def describe(value: Any, space: Any, pictures: list[Any]) -> str:
    """A value in words, by its space if that is known; its pictures are appended to `pictures`."""
    kind = kind_of(space)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return value
    if isinstance(value, int) and kind == "Discrete":
        first, last = ends_of(space)
        return f"{int(value)} (of {first} to {last})"
    if isinstance(value, list | tuple) and kind != "Tuple" and _all_numbers(value):
        if len(value) <= _MOST_NUMBERS:  # not as an array, which would make floats of whole numbers beside them
            return _rows([item.item() if isinstance(item, np.generic) else item for item in value])
        value = np.array(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return _describe_array(value, pictures)
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", range(len(value)))  # those of a named tuple, such as a Graph's
        value = dict(zip(names, value, strict=True))
    if isinstance(value, Mapping):
        return _describe_parts(value, space, pictures)
    return _number(value) if isinstance(value, float) else short(value)


def digest(value: Any) -> str:
    """A key of a value's content, the same in every process.

    Of an array above 128 KB, only shape, type and a sample count: reading all of it takes longer than a step should.
    """
    key = hashlib.blake2b(digest_size=16)
    _feed(key, value)
    return key.hexdigest()


def _all_numbers(values: list[Any] | tuple[Any, ...]) -> bool:
    return bool(values) and all(isinstance(item, int | float | np.number) for item in values)


def _describe_parts(parts: Mapping[Any, Any], space: Any, pictures: list[Any]) -> str:
    kind = kind_of(space)
    spaces = parts_of(space) if kind in ("Dict", "Tuple") else {}
    each = space.feature_space if kind == "Sequence" else None
    lines = []
    for key in list(parts)[:_MOST_PARTS]:
        text = describe(parts[key], spaces.get(key, each), pictures)
        lines.append(f"{key}:\n{text}" if "\n" in text else f"{key}: {text}")
    if len(parts) > _MOST_PARTS:
        lines.append(f"... ({len(parts)} parts)")
    return "\n".join(lines) or "nothing"


def _describe_array(array: Array, pictures: list[Any]) -> str:
    if _is_picture(array):
        pictures.append(array)
        return f"a picture, {array.shape[1]} wide and {array.shape[0]} high"
    if array.size <= _MOST_NUMBERS:
        return _rows(array.tolist())
    low, mean, high = (_number(number.item()) for number in (array.min(), array.mean(), array.max()))
    return f"an array of shape {array.shape} and type {array.dtype}: least {low}, mean {mean}, greatest {high}"


def _is_picture(array: Array) -> bool:
    return (
        array.dtype == np.uint8
        and array.ndim == 3
        and array.shape[2] == 3
        and min(array.shape[:2]) >= _SMALLEST_PICTURE
    )


def _rows(numbers: Any) -> str:
    if not isinstance(numbers, list):
        return _number(numbers)
    nested = bool(numbers) and isinstance(numbers[0], list)
    return "[" + (",\n" if nested else ", ").join(map(_rows, numbers)) + "]"


def _number(number: float) -> str:
    """Whole numbers exactly, others with a float32's 7 digits: what differs by a millionth reads differently."""
    if isinstance(number, float) and not (number.is_integer() and abs(number) < _EXACT):
        return f"{number:.{_DIGITS}g}"
    return str(int(number))


def _sample(array: Array) -> Array:
    """Numbers at a stride coprime to the size, so that every column and channel is sampled."""
    stride = -(-array.size // _SAMPLES)
    while math.gcd(stride, array.size) > 1:
        stride += 1
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat  # a picture's axes are often swapped
    return flat[::stride]


def _feed(key: Any, value: Any) -> None:
    """Add a value to a digest, with its lengths, so that different contents never feed the same bytes."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        key.update(f"{value.dtype.str}{value.shape}".encode())
        key.update((value if value.nbytes <= _MOST_DIGESTED else _sample(value)).tobytes())
    elif isinstance(value, np.ndarray | list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
        key.update(f"[{len(items)}".encode())
        for item in items:
            _feed(key, item)
    elif isinstance(value, Mapping):
        key.update(f"{{{len(value)}".encode())
        for name in sorted(value, key=repr):
            _feed(key, name)
            _feed(key, value[name])
    else:
        text = value if isinstance(value, str) else without_addresses(repr(value))
        key.update(f"{type(value).__name__}{len(text)}:{text}".encode("utf-8", "surrogatepass"))
