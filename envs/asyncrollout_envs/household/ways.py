"""Ways through a room: from each cell of a grid, how far it is to where something can be reached from."""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from asyncrollout_envs.household.rooms import CELL, DEPTH, WIDTH, Point, Room

Cell = tuple[int, int]
Cells = NDArray[np.bool_]

COLUMNS, ROWS = round(WIDTH / CELL), round(DEPTH / CELL)
FARTHEST, NEAREST = 0.82, 0.4
"""How far from a point the robot stands to reach it."""

_FAR = 10_000
_AROUND = [(dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx or dy]


def centre(cell: Cell) -> tuple[float, float]:
    return (cell[0] + 0.5) * CELL, (cell[1] + 0.5) * CELL


def cell_of(x: float, y: float) -> Cell:
    return min(max(int(x / CELL), 0), COLUMNS - 1), min(max(int(y / CELL), 0), ROWS - 1)


@functools.lru_cache(maxsize=256)
def free_cells(room: Room) -> Cells:
    """Those in whose middle the robot can stand."""
    cells = [[room.is_free(*centre((column, row))) for row in range(ROWS)] for column in range(COLUMNS)]
    return np.array(cells)


@functools.lru_cache(maxsize=1024)
def distances(room: Room, point: Point, front: tuple[int, int] | None) -> NDArray[np.int64]:
    """Steps from each cell to one that the point is reached from; with `front`, only from that side of it."""
    free = free_cells(room)
    across = (np.arange(COLUMNS)[:, None] + 0.5) * CELL - point[0]
    along = (np.arange(ROWS)[None, :] + 0.5) * CELL - point[1]
    far = np.hypot(across, along)
    goal = free & (far <= FARTHEST) & (far >= NEAREST)
    if front is not None:
        goal &= across * front[0] + along * front[1] > 0.9 * far  # 26 degrees to each side
    steps = np.where(goal, 0, _FAR)
    reached, count = goal, 0
    while reached.any():
        count += 1
        wider = np.zeros_like(reached)
        wider[1:] |= reached[:-1]
        wider[:-1] |= reached[1:]
        wider[:, 1:] |= reached[:, :-1]
        wider[:, :-1] |= reached[:, 1:]
        reached = wider & free & (steps == _FAR)
        steps[reached] = count
    return steps


def next_stop(room: Room, steps: NDArray[np.int64], x: float, y: float) -> tuple[float, float] | None:
    """The middle of the next cell on the way; None if it is at its end."""
    here = cell_of(x, y)
    free = free_cells(room)
    if not free[here]:
        return _nearest_free(room, x, y)
    if steps[here] in (0, _FAR):
        return None
    best = min((_weight(free, steps, here, step), step) for step in _AROUND)
    return centre((here[0] + best[1][0], here[1] + best[1][1]))


def _weight(free: Cells, steps: NDArray[np.int64], here: Cell, step: tuple[int, int]) -> float:
    """How far it is from a neighbour on; one that lies across a corner is none."""
    column, row = here[0] + step[0], here[1] + step[1]
    if not (0 <= column < COLUMNS and 0 <= row < ROWS and free[column, row]):
        return math.inf
    if step[0] and step[1] and not (free[column, here[1]] and free[here[0], row]):
        return math.inf
    return float(steps[column, row])


def _nearest_free(room: Room, x: float, y: float) -> tuple[float, float]:
    cells = np.argwhere(free_cells(room))
    middles = (cells + 0.5) * CELL
    best = middles[np.argmin(np.hypot(middles[:, 0] - x, middles[:, 1] - y))]
    return float(best[0]), float(best[1])
