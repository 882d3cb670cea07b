"""Observations as JSON and back, in VAGEN's form: images as PNG files, arrays as lists."""

import base64
import binascii
import io
import math
from typing import Any

import msgspec
import numpy as np

from asyncrollout.errors import MissingExtraError, UsageError
from asyncrollout.images import IMAGE_MARK, encode_png, is_pil, pil_png
from asyncrollout.types import Observation

PICTURE, ARRAY = "__pil_image__", "__numpy_array__"

_DEEPEST = 64
_NUMBERS = "biufcmM"  # the kinds of numpy's types that can be read back from lists


def observation_to_json(observation: Any) -> dict[str, Any]:
    """A text env's observation, or that of a raw env as text and as data."""
    if not isinstance(observation, Observation):
        return {**_described(_text(observation), []), "data": to_json(observation)}
    return _described(to_json(observation.text), [_picture(image) for image in observation.images])


def _described(text: str, pictures: list[Any]) -> dict[str, Any]:
    if text.count(IMAGE_MARK) != len(pictures):
        marks = f"\n{IMAGE_MARK * len(pictures)}" if pictures else ""
        text = text.replace(IMAGE_MARK, "(image)") + marks
    return {"obs_str": text, "multi_modal_data": {IMAGE_MARK: pictures}}


def _picture(image: Any) -> Any:
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        return {PICTURE: base64.b64encode(encode_png(image)).decode()}
    return to_json(image)


def to_json(value: Any, depth: int = 0) -> Any:
    """The value as JSON has it: sets and tuples as lists, numpy's numbers as Python's, anything unknown as text.

    JSON has no infinity and no NaN: they are the texts "Infinity", "-Infinity" and "NaN", which `float` reads.
    """
    if value is None or (isinstance(value, bool | int | float) and not isinstance(value, np.generic)):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    if depth > _DEEPEST:
        raise UsageError(f"a value is nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        return {_key(key): to_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((to_json(item, depth + 1) for item in value), key=repr)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        number = value.item()
        return to_json(number) if isinstance(number, bool | int | float | str) else str(number)
    if isinstance(value, np.ma.MaskedArray):
        return to_json(value.tolist(), depth)  # masked values become null
    if isinstance(value, np.ndarray) and (value.dtype.kind in _NUMBERS or value.dtype.kind == "U"):
        return {ARRAY: {"data": _listed(value), "dtype": str(value.dtype), "shape": list(value.shape)}}
    if isinstance(value, msgspec.Struct):
        return to_json(msgspec.structs.asdict(value), depth + 1)
    if is_pil(value):
        return {PICTURE: base64.b64encode(pil_png(value)).decode()}
    return _text(value)


def _key(key: Any) -> Any:
    return _number(key) if type(key) is int else _text(key)


def _text(value: Any) -> str:
    try:
        text = str.__str__(value) if isinstance(value, str) else str(value)  # an enum's own str() is its name
        return text.encode(errors="replace").decode()  # lone surrogates have no JSON
    except Exception as error:  # noqa: BLE001 (its author's __str__ may raise anything)
        return f"<a {type(value).__name__}, of which no text can be made: {type(error).__name__}>"


def _number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not -(2**63) <= value < 2**64:  # beyond msgpack, and beyond many JSON readers
        return str(value)
    if isinstance(value, bool | None):
        return value
    # msgspec refuses subclasses, and their own methods may return something else.
    return float.__float__(value) if isinstance(value, float) else int.__int__(value)


def _listed(array: np.ndarray[Any, Any]) -> Any:
    """Numbers as JSON has them; others (infinity, complex ones, dates) as texts, which numpy can read."""
    plain = array.dtype.kind in "biuU" or (array.dtype.kind == "f" and array.dtype.itemsize <= 8)
    if plain and (array.dtype.kind != "f" or np.isfinite(array).all()):
        return array.tolist()
    return array.astype(str).tolist()


def from_json(value: Any) -> Any:
    """The value that `to_json` was given, as far as JSON keeps it; images need PIL, which must be installed."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        if PICTURE in value:
            return _image(base64.b64decode(value[PICTURE], validate=True))
        if ARRAY in value:
            parts = value[ARRAY]
            return np.array(parts["data"], dtype=np.dtype(parts["dtype"])).reshape(parts["shape"])
    except MissingExtraError:
        raise
    except (KeyError, TypeError, ValueError, OSError, binascii.Error) as error:
        raise UsageError(f"this is not a valid image or array: {error}") from error
    return {key: from_json(item) for key, item in value.items()}


def _image(content: bytes) -> Any:
    try:
        from PIL import Image  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("reading an image needs Pillow, which is not installed: pip install pillow") from error
    image = Image.open(io.BytesIO(content))
    image.load()
    return image
