"""What an env renders, as frames that an encoder takes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError

Frame = NDArray[np.uint8]
"""Height, width, RGB."""

_SMALLEST = 16  # pixels of a side; some players show nothing smaller
_CHANNELS = (1, 3, 4)


def to_rgb(picture: Any) -> Frame:
    """Grey, RGB or RGBA; numbers from 0 to 255, or floats up to 1; of a list of pictures, the last one."""
    if isinstance(picture, list | tuple) and picture and isinstance(picture[-1], np.ndarray):
        picture = picture[-1]
    if picture is None:
        raise UsageError("render() gives None, and no picture: make the env with render_mode='rgb_array'")
    try:
        frame = np.asarray(picture)
        if frame.ndim == 2:
            frame = frame[:, :, None]
        if frame.ndim == 3 and frame.shape[0] in _CHANNELS and frame.shape[2] not in _CHANNELS:
            frame = frame.transpose(1, 2, 0)  # as torch has it
        if frame.ndim != 3 or frame.shape[2] not in _CHANNELS or 0 in frame.shape or frame.dtype.kind not in "buif":
            raise TypeError(f"{frame.dtype} of shape {frame.shape}")
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(picture).__name__
        raise UsageError(f"render() gives no picture (height, width, 3) of uint8, but a {kind}: {error}") from error
    frame = _as_bytes(frame)
    return np.repeat(frame, 3, axis=2) if frame.shape[2] == 1 else frame[:, :, :3]


def _as_bytes(frame: NDArray[Any]) -> Frame:
    if frame.dtype == np.uint8:
        return frame
    if frame.dtype.kind == "f":
        frame = np.nan_to_num(frame, posinf=255.0, neginf=0.0)
        frame = frame * 255.0 if frame.max() <= 1.0 else frame
    elif frame.dtype.kind == "b":
        frame = frame * np.uint8(255)
    elif frame.dtype == np.uint16:
        frame = frame >> 8
    as_bytes: Frame = np.clip(frame, 0, 255).astype(np.uint8)
    return as_bytes


def video_size(frame: Frame) -> tuple[int, int]:
    """Height and width of a video of such frames: H.264 has colours for every second pixel only, so both are even."""
    height, width = (max(side + side % 2, _SMALLEST) for side in frame.shape[:2])
    return height, width


def fitted(frame: Frame, height: int, width: int) -> Frame:
    """The frame in the middle of black; one that is too large is made smaller, in its proportions."""
    if frame.shape[:2] == (height, width):
        return frame
    scale = min(height / frame.shape[0], width / frame.shape[1])
    if scale < 1:
        rows, columns = ((np.arange(max(int(side * scale), 1)) / scale).astype(int) for side in frame.shape[:2])
        frame = frame[rows[:, None], columns]
    top, left = (height - frame.shape[0]) // 2, (width - frame.shape[1]) // 2
    canvas = np.zeros((height, width, 3), dtype=np.uint8)
    canvas[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return canvas
