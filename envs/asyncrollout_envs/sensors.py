"""A robot's cameras: found by name in what BEHAVIOR shows, and put side by side in one picture."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError

Picture = NDArray[np.uint8]
Camera = Literal["left_wrist", "right_wrist", "head"]
Size = Literal["low", "high"]

ROBOT = "robot_r1"
CAMERAS: dict[Camera, str] = {
    "left_wrist": "left_realsense_link:Camera:0",
    "right_wrist": "right_realsense_link:Camera:0",
    "head": "zed_link:Camera:0",
}
"""What is in the name of each camera of BEHAVIOR's R1Pro."""

SIZES: dict[Size, tuple[int, int]] = {"low": (128, 256), "high": (480, 960)}
"""The side of a wrist's picture and of the head's, in pixels."""

_RGB, _RGBA = 3, 4


def find_pictures(observation: Any) -> dict[Camera, Picture]:
    """Each camera's picture in an observation of BEHAVIOR's, at whatever depth; those that are missing are left out."""
    found: dict[Camera, Picture] = {}
    for name, value in _named(observation, ""):
        camera = next((camera for camera, part in CAMERAS.items() if part in name), None)
        if camera is not None and name.rpartition("::")[2] == "rgb" and camera not in found:
            found[camera] = as_rgb(value)
    return found


def _named(value: Any, name: str) -> list[tuple[str, Any]]:
    """Every value, and the keys to it joined by `::`, as OmniGibson joins them."""
    if not isinstance(value, Mapping):
        return [(name, value)]
    return [pair for key, below in value.items() for pair in _named(below, f"{name}::{key}" if name else str(key))]


def as_rgb(picture: Any) -> Picture:
    """A picture as bytes of red, green and blue, from an array or a tensor; depth and transparency are dropped."""
    if hasattr(picture, "detach"):  # torch's
        picture = picture.detach().cpu().numpy()
    array = np.asarray(picture)
    if array.ndim != 3 or array.shape[2] not in (_RGB, _RGBA):
        raise UsageError(f"a camera's picture is an array (height, width, 3 or 4), not one of shape {array.shape}")
    array = array[..., :_RGB]
    if np.issubdtype(array.dtype, np.floating):
        array = np.nan_to_num(array) * (255.0 if array.size and array.max() <= 1.0 else 1.0)
        array = array.round()
    return np.ascontiguousarray(np.clip(array, 0, 255), dtype=np.uint8)


def tile(pictures: Mapping[Camera, Picture], size: Size) -> Picture:
    """The left wrist's picture above the right one's, and to their right the head's; a missing one is black."""
    wrist, head = SIZES[size]
    left, right, front = (
        resized(pictures[camera], side) if camera in pictures else np.zeros((side, side, _RGB), np.uint8)
        for camera, side in zip(get_args(Camera), (wrist, wrist, head), strict=True)
    )
    return np.hstack([np.vstack([left, right]), front])


def resized(picture: Picture, side: int) -> Picture:
    """A square picture: enlarged smoothly; made smaller, each pixel is a mean."""
    height, width, _ = picture.shape
    if (height, width) == (side, side):
        return picture
    factor = min(height, width) // side
    if factor > 1:
        whole = picture[: height // factor * factor, : width // factor * factor]
        blocks = whole.reshape(height // factor, factor, width // factor, factor, _RGB)
        return resized(blocks.mean(axis=(1, 3)).round().astype(np.uint8), side)
    top, bottom, down = _between(height, side)
    left, right, across = _between(width, side)
    rows = picture[top] + (picture[bottom].astype(np.float32) - picture[top]) * down[:, None, None]
    mixed = rows[:, left] + (rows[:, right] - rows[:, left]) * across[None, :, None]
    return np.asarray(mixed.round(), dtype=np.uint8)


def _between(length: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For each new pixel, the two old ones that it lies between, and how far it is from the first."""
    at = np.clip((np.arange(side) + 0.5) * length / side - 0.5, 0, length - 1)
    before = at.astype(np.int64)
    return before, np.minimum(before + 1, length - 1), (at - before).astype(np.float32)
