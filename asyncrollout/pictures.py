"""Pictures as files: PNG without an image library."""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError

IMAGE_MARK = "<image>"
"""Where a picture belongs in a text; such marks count if there is one for each picture."""


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


def data_url(picture: NDArray[np.uint8]) -> str:
    """A picture as it travels in a message."""
    return "data:image/png;base64," + base64.b64encode(encode_png(picture)).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
