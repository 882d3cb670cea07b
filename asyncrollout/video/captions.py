"""A line of small letters above a picture, without a font file: 3 x 5 pixels each, twice as large."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from asyncrollout.video.frames import Frame

CAPTION_HEIGHT = 16

_SCALE = 2
_ADVANCE = 4 * _SCALE
_MARGIN = 3
_INK, _PAPER = 230, 24

# Five rows from the top, each an octal digit: its bits are the three pixels.
_ROWS = {
    "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644", "G": "34553", "H": "55755",
    "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "75555", "O": "25552", "P": "65644",
    "Q": "25573", "R": "65655", "S": "34216", "T": "72222", "U": "55557", "V": "55522", "W": "55775", "X": "55255",
    "Y": "55222", "Z": "71247", "0": "75557", "1": "26227", "2": "61247", "3": "61216", "4": "55711", "5": "74616",
    "6": "34757", "7": "71122", "8": "75757", "9": "75716", "+": "02720", "-": "00700", ".": "00002", ",": "00024",
    ":": "02020", "/": "11244", "=": "07070", "(": "12221", ")": "42224", "[": "32223", "]": "62226", "<": "12421",
    ">": "42124", "!": "22202", "?": "61202", "_": "00007", "|": "22222", "'": "22000", '"': "55000", "#": "57575",
    "*": "52725", "%": "51245", " ": "00000",
}  # fmt: skip


def with_caption(frame: Frame, text: str) -> Frame:
    """The picture with a line above it, where no player has its buttons; what does not fit is left out."""
    width = frame.shape[1]
    line = np.full((CAPTION_HEIGHT, width, 3), _PAPER, dtype=np.uint8)
    shown = text.upper()[: max((width - 2 * _MARGIN) // _ADVANCE, 0)]
    for place, letter in enumerate(shown):
        left = _MARGIN + place * _ADVANCE
        pixels = _glyph(letter)
        line[_MARGIN : _MARGIN + pixels.shape[0], left : left + pixels.shape[1]][pixels] = _INK
    return np.concatenate([line, frame])


@cache
def _letter(rows: str) -> NDArray[np.bool_]:
    bits = np.array([[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in rows], dtype=bool)
    return bits.repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)


def _glyph(letter: str) -> NDArray[np.bool_]:
    return _letter(_ROWS.get(letter, _ROWS["?"]))
