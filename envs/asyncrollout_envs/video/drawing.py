"""Frames of generated clips, drawn with numpy: a moving shape, a caption, a border that flashes."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 96, 72
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 90, 230),
    "yellow": (240, 220, 50),
    "purple": (160, 60, 200),
    "orange": (245, 140, 30),
}
SHAPES = ("circle", "square", "triangle", "cross")
DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}
BACKGROUNDS = ("plain", "stripes", "squares", "dots")

_CAPTION_HEIGHT = 18
_RADIUS = 11  # of a shape, in pixels
_BORDER = 4
_DARK, _LESS_DARK = 36, 60
_SCALE = 2

# Five columns and seven rows a letter; each row is a number in base 32, its bits from left to right.
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_LETTERS = {
    "A": "ehhvhhh",
    "B": "uhhuhhu",
    "C": "ehggghe",
    "D": "uhhhhhu",
    "E": "vgguggv",
    "F": "vgguggg",
    "G": "ehgnhhf",
    "H": "hhhvhhh",
    "I": "e44444e",
    "J": "72222ic",
    "K": "hikokih",
    "L": "ggggggv",
    "M": "hrllhhh",
    "N": "hhpljhh",
    "O": "ehhhhhe",
    "P": "uhhuggg",
    "Q": "ehhhlid",
    "R": "uhhukih",
    "S": "fgge11u",
    "T": "v444444",
    "U": "hhhhhhe",
    "V": "hhhhha4",
    "W": "hhhllla",
    "X": "hha4ahh",
    "Y": "hha4444",
    "Z": "v1248gv",
}


def draw_frame(
    *, background: str, shape: str, colour: str, direction: str, progress: float, caption: str, flashing: bool
) -> NDArray[np.uint8]:
    """One frame; the shape is at `progress`, from 0 to 1, of its way through the picture."""
    picture = _background(background).copy()
    room = picture[: HEIGHT - _CAPTION_HEIGHT]
    x, y = _place(direction, progress, room.shape[1], room.shape[0])
    room[_inside(shape, x, y, room.shape[0], room.shape[1])] = COLOURS[colour]
    letters = _letters(caption)
    top, left = HEIGHT - _CAPTION_HEIGHT + 2, (WIDTH - letters.shape[1]) // 2
    picture[top : top + letters.shape[0], left : left + letters.shape[1]][letters] = 255
    if flashing:
        for edge in (np.s_[:_BORDER], np.s_[-_BORDER:], np.s_[:, :_BORDER], np.s_[:, -_BORDER:]):
            room[edge] = 255
    return picture


@cache
def _background(kind: str) -> NDArray[np.uint8]:
    """Grey, so that the only colour is that of the shape; black below the caption."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    lighter = {
        "plain": np.zeros((HEIGHT, WIDTH), bool),
        "stripes": columns // 8 % 2 == 0,
        "squares": (rows // 12 + columns // 12) % 2 == 0,
        "dots": (rows % 12 - 6) ** 2 + (columns % 12 - 6) ** 2 < 9,
    }[kind]
    grey = np.where(lighter, _LESS_DARK, _DARK)
    grey[HEIGHT - _CAPTION_HEIGHT :] = 0
    return np.repeat(grey[:, :, None], 3, axis=2).astype(np.uint8)


def _place(direction: str, progress: float, width: int, height: int) -> tuple[float, float]:
    """The middle of the shape; it goes through the middle of the picture, from edge to edge."""
    dx, dy = DIRECTIONS[direction]
    way_x, way_y = width / 2 - _RADIUS - _BORDER, height / 2 - _RADIUS - _BORDER
    return width / 2 + dx * way_x * (2 * progress - 1), height / 2 + dy * way_y * (2 * progress - 1)


def _inside(shape: str, x: float, y: float, height: int, width: int) -> NDArray[np.bool_]:
    rows, columns = np.mgrid[:height, :width]
    right, down = columns + 0.5 - x, rows + 0.5 - y
    away, below = np.abs(right), np.abs(down)
    within: NDArray[np.bool_] = {
        "circle": right**2 + down**2 <= _RADIUS**2,
        "square": np.maximum(away, below) <= _RADIUS - 1,
        "triangle": (below <= _RADIUS) & (2 * away <= down + _RADIUS),
        "cross": (np.minimum(away, below) <= _RADIUS / 3) & (np.maximum(away, below) <= _RADIUS),
    }[shape]
    return within


@cache
def _letters(caption: str) -> NDArray[np.bool_]:
    """Which pixels a caption covers."""
    bits = [[[_DIGITS.index(row) >> bit & 1 for bit in (4, 3, 2, 1, 0, 6)] for row in _LETTERS[it]] for it in caption]
    small = np.concatenate([np.array(letter, bool) for letter in bits], axis=1)
    return np.kron(small, np.ones((_SCALE, _SCALE), bool))
