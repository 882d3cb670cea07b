"""What an env renders, as frames that an encoder takes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError

Frame = NDArray[np.uint8]
"""Height, width, RGB."""

_SMALLEST = 16  # pixels of a side; some players show nothing smaller
_CHANNELS = (1, 3, 4)
_WHITES = {"f": (1.0, 255.0), "i": (255.0, 65535.0), "u": (255.0, 65535.0)}  # what may be white, by kind of number
_CLEARLY = 2.0  # times white; interpolation and highlights stay below
_OUTLIERS = 0.01  # of all values that are not black
_BELOW_BLACK = 0.1  # times white; interpolation stays above
_WIDEST = 2.0 * 65535  # a declared range beyond this is none
_PIL_MODES = ("1", "L", "RGB", "RGBA", "I", "I;16", "F")  # those whose numbers are colours as they are


class ImageReader:
    """Turns the images of one video into frames; which number is white is decided per video, not per image.

    uint8 and bool need no decision. Floats go up to 1 or 255, other integers up to 255 or 65535. The env's declared
    `bounds` (lowest, highest) decide, if there are any; else the first image that is not black: it is of the larger
    range if more than a few of its values are clearly beyond the smaller one. Such values later in the video correct
    the decision from there on. `doubt` names the first thing that may look wrong.
    """

    def __init__(self, bounds: tuple[float, float] | None = None) -> None:
        self.doubt = ""
        self._bounds = bounds
        self._whites: dict[str, float] = {}
        self._read = 0

    def read(self, picture: Any) -> Frame:
        """Grey, RGB or RGBA, channels last or first; of a list of pictures, the last one."""
        frame = self._as_bytes(_as_array(picture))
        self._read += 1
        return np.repeat(frame, 3, axis=2) if frame.shape[2] == 1 else frame[:, :, :3]

    def _as_bytes(self, frame: NDArray[Any]) -> Frame:
        if frame.dtype == np.uint8:
            return frame
        if frame.dtype.kind == "b":
            return frame.view(np.uint8) * np.uint8(255)
        if frame.shape[2] == 4:
            frame = frame[:, :, :3]  # how opaque it is says nothing about its colours
        if frame.dtype.kind == "f":
            with np.errstate(over="ignore"):
                frame = self._finite(frame.astype(np.float32))
        black, white = self._range_of(frame)
        as_bytes: Frame = np.rint(np.clip((frame - black) * (255.0 / (white - black)), 0, 255)).astype(np.uint8)
        return as_bytes

    def _finite(self, frame: NDArray[np.float32]) -> NDArray[np.float32]:
        """NaN becomes black, infinity white; neither says which range the others are of."""
        is_finite = np.isfinite(frame)
        if is_finite.all():
            return frame
        self._note("NaN is shown black, infinity white")
        black, white = self._range_of(np.where(is_finite, frame, np.float32(0)))
        return np.nan_to_num(frame, nan=black, posinf=white, neginf=black)

    def _range_of(self, frame: NDArray[Any]) -> tuple[float, float]:
        least, most = float(frame.min()), float(frame.max())
        black, white = self._bounds or (0.0, self._white_of(frame, most))
        if most - black > _CLEARLY * (white - black):
            self._note(f"values up to {most:g} are shown white, as is {white:g}")
        if black - least > _BELOW_BLACK * (white - black):
            self._note(f"values down to {least:g} are shown black: give pictures from 0 to 1, or from 0 to 255")
        return black, white

    def _white_of(self, frame: NDArray[Any], most: float) -> float:
        small, large = _WHITES[frame.dtype.kind]
        decided = self._whites.get(frame.dtype.kind, 0.0)
        if most <= 0:  # black, for any range
            return decided or small
        if decided == large:
            if most <= small and (frame % 1).any():
                self._note(f"values up to {most:g} are shown black: those before were up to {large:g}")
        elif _is_beyond(frame, small):
            if decided:
                self._note(f"values up to {most:g}: frames before were shown as if {small:g} was white")
            decided = large
        self._whites[frame.dtype.kind] = decided = decided or small
        return decided

    def _note(self, doubt: str) -> None:
        self.doubt = self.doubt or f"frame {self._read}: {doubt}"


def declared_bounds(space: Any, picture: Any) -> tuple[float, float] | None:
    """Lowest and highest value of a picture, if the env observes just such arrays and its space says so."""
    if not isinstance(picture, np.ndarray) or getattr(space, "shape", None) != picture.shape:
        return None
    if getattr(space, "dtype", None) != picture.dtype or picture.dtype == np.uint8:
        return None
    try:
        low, high = float(np.min(space.low)), float(np.max(space.high))
    except (AttributeError, TypeError, ValueError):  # a space of another kind
        return None
    return (low, high) if 0 < high - low <= _WIDEST else None


def _is_beyond(frame: NDArray[Any], white: float) -> bool:
    """Whether more than a few values are clearly brighter than white."""
    bright = np.count_nonzero(frame > _CLEARLY * white)
    return bool(bright > _OUTLIERS * np.count_nonzero(frame > 0))


def _as_array(picture: Any) -> NDArray[Any]:
    """Height, width and channels, of numbers."""
    if isinstance(picture, list | tuple) and picture and isinstance(picture[-1], np.ndarray):
        picture = picture[-1]
    if picture is None:
        raise UsageError("render() gives None, and no picture: make the env with render_mode='rgb_array'")
    if getattr(picture, "mode", "RGB") not in _PIL_MODES and callable(getattr(picture, "convert", None)):
        picture = picture.convert("RGB")
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
    return frame


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
