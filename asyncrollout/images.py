"""Images as files and data URLs: PNG without an image library."""

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError

IMAGE_MARK = "<image>"
"""Marks the place of an image in a text; marks count if there is one per image."""

_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}


def encode_png(picture: NDArray[np.uint8]) -> bytes:
    """An array (height, width, 3) of uint8 as the bytes of a PNG file."""
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        shown = f"{picture.dtype} of shape {picture.shape}"
        raise UsageError(f"a picture is an array (height, width, 3) of uint8, not of {shown}")
    height, width, _ = picture.shape
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each row begins with its filter: 0, none
    rows[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), level=6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def is_picture(value: Any) -> bool:
    """Whether `data_url` accepts it: an array, a PIL image, or the bytes of a file."""
    return isinstance(value, np.ndarray | bytes) or is_pil(value)


def is_pil(value: Any) -> bool:
    """Whether it is a PIL image; PIL need not be installed."""
    return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__)


def raw_size(picture: Any) -> int:
    """How many values there are to encode; 0 if it is encoded already."""
    if isinstance(picture, np.ndarray):
        return picture.size
    return int(picture.width * picture.height * len(picture.getbands())) if is_pil(picture) else 0


def data_url(picture: Any) -> str:
    """An image as a data URL for messages: the bytes of a file as they are, anything else as PNG."""
    if isinstance(picture, bytes):
        kind = next((kind for signature, kind in _SIGNATURES.items() if picture.startswith(signature)), None)
        if kind is None or (kind == "webp" and picture[8:12] != b"WEBP"):
            raise UsageError(f"a picture in bytes is a PNG, JPEG, GIF or WebP file, and not {picture[:12]!r}...")
        return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
    if isinstance(picture, np.ndarray):
        file = encode_png(picture)
    elif is_pil(picture):
        file = pil_png(picture)
    else:
        kind = type(picture).__name__
        raise UsageError(
            f"a picture is an array (height, width, 3) of uint8, a PIL image or a file's bytes, not a {kind}"
        )
    return "data:image/png;base64," + base64.b64encode(file).decode()


def pil_png(image: Any) -> bytes:
    """A PIL image as the bytes of a PNG file."""
    target = io.BytesIO()
    try:
        image.save(target, "PNG")
    except Exception as error:  # a mode that PNG does not have, no pixels
        size = f"{image.width}x{image.height}"
        text = f"a PIL image of mode {image.mode!r} and size {size} cannot be sent: convert it to 'RGB' ({error})"
        raise UsageError(text) from error
    return target.getvalue()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
