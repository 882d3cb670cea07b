"""What the training examples tell: a line for each step, and a curve of rewards, without a plotting library."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import asyncrollout as ar
from asyncrollout.images import encode_png

HEIGHT, WIDTH = 400, 720
TOP, BOTTOM, LEFT, RIGHT = 48, 352, 72, 696  # of the field where the curve is
INK, GRID, PALE, STRONG = (60, 60, 67), (228, 228, 233), (166, 196, 236), (31, 93, 184)

# Letters of 3 x 5 dots: a digit for each row, from 0 (no dot) to 7 (three).
FONT = """
0=75557 1=26227 2=71747 3=71717 4=55711 5=74717 6=74757 7=71222 8=75757 9=75717 -=00700 .=00002
A=25755 B=65656 C=34443 D=65556 E=74647 F=74644 G=34553 H=55755 I=72227 J=11152 K=55655 L=44447 M=57755
N=65555 O=25552 P=65644 Q=25563 R=65655 S=34216 T=72222 U=55557 V=55552 W=55775 X=55255 Y=55222 Z=71247
"""
GLYPHS = dict(glyph.split("=") for glyph in FONT.split())

Picture = NDArray[np.float64]


def tell_step(batch: ar.Batch, began: float) -> None:
    """The mean reward of all rollouts, and how many groups of them the filter kept."""
    stats, seconds = batch.stats, time.monotonic() - began
    kept = 1 - stats.get("dropped_constant_reward", 0) / stats["drawn_groups"]
    print(f"step {batch.index:3}  reward {stats['mean_reward']:6.3f}  kept {kept:4.0%}  {seconds:4.1f} s", flush=True)


def report(rewards: Sequence[float], title: str, path: Path) -> None:
    """How far the mean reward of a step rose, in words and as a picture."""
    few = max(len(rewards) // 4, 1)
    first, last = np.mean(rewards[:few]), np.mean(rewards[-few:])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(draw_curve(rewards, f"{title} - mean reward")))
    print(f"mean reward: {first:.3f} in the first {few} steps, {last:.3f} in the last; wrote {path}")


def draw_curve(rewards: Sequence[float], title: str) -> NDArray[np.uint8]:
    """The reward of each step, and more strongly its mean over some steps."""
    picture = np.full((HEIGHT, WIDTH, 3), 255.0)
    last = max(len(rewards) - 1, 1)
    heights, steps = _ticks(min(rewards), max(rewards), finest=0.001), _ticks(0, last, finest=1)
    low, high = heights[0], heights[-1]
    for height in heights:
        row = round(np.interp(height, (low, high), (BOTTOM, TOP)))
        picture[row, LEFT:RIGHT] = GRID
        _write(picture, f"{height:g}", row - 5, LEFT - 10, align=1.0)
    for step in (step for step in steps if step <= last):
        column = round(np.interp(step, (0, last), (LEFT, RIGHT - 1)))
        picture[TOP:BOTTOM, column] = GRID
        _write(picture, f"{step:g}", BOTTOM + 10, column, align=0.5)
    picture[BOTTOM, LEFT:RIGHT] = picture[TOP : BOTTOM + 1, LEFT] = INK
    _write(picture, title, 14, LEFT, scale=3)
    _write(picture, "STEP", BOTTOM + 28, (LEFT + RIGHT) // 2, align=0.5)
    for values, colour, thick in ((rewards, PALE, 1.5), (_running_mean(rewards), STRONG, 3.0)):
        _draw_line(picture, np.interp(values, (low, high), (BOTTOM, TOP)), colour, thick)
    return picture.round().astype(np.uint8)


def _draw_line(picture: Picture, rows: NDArray[np.float64], colour: tuple[int, int, int], thick: float) -> None:
    """A line through the whole field, with smooth edges."""
    field = picture[TOP - 2 : BOTTOM + 3, LEFT:RIGHT]
    line = np.interp(np.linspace(0, 1, RIGHT - LEFT), np.linspace(0, 1, len(rows)), rows)
    distance = np.abs(np.arange(TOP - 2, BOTTOM + 3)[:, None] - line) / np.hypot(1, np.gradient(line))
    field += np.clip(thick / 2 + 0.5 - distance, 0, 1)[:, :, None] * (np.array(colour) - field)


def _write(picture: Picture, text: str, top: int, left: int, *, align: float = 0.0, scale: int = 2) -> None:
    """`align` is how much of the text is to the left of `left`."""
    left -= round(align * (4 * len(text) - 1) * scale)
    for place, letter in enumerate(text.upper()):
        rows = [[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in GLYPHS.get(letter, "00000")]
        dots = np.kron(rows, np.ones((scale, scale))).astype(bool)
        corner = left + 4 * place * scale
        picture[top : top + 5 * scale, corner : corner + 3 * scale][dots] = INK


def _ticks(low: float, high: float, finest: float) -> list[float]:
    """Some five round numbers: the first is not above `low`, the last not below `high`."""
    span = max(high - low, 5 * finest)
    unit = 10 ** math.floor(math.log10(span / 5))
    gap = next(unit * size for size in (1, 2, 5, 10) if unit * size >= span / 6)
    first = math.floor(low / gap)
    return [round(gap * number, 10) for number in range(first, max(math.ceil(high / gap), first + 1) + 1)]


def _running_mean(values: Sequence[float]) -> list[float]:
    reach = max(len(values) // 20, 1)
    return [float(np.mean(values[max(at - reach, 0) : at + reach + 1])) for at in range(len(values))]
