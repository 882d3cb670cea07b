"""Puzzles from seeds: a solved grid, of which cells are emptied as long as only one solution is left."""

from itertools import islice
from math import isqrt

import msgspec
import numpy as np

from asyncrollout_envs.seeding import generator, split_by_content
from asyncrollout_envs.sudoku.grids import Grid, placed, solutions

EMPTIED = {"easy": 0.4, "medium": 0.5, "hard": 0.6}
"""The share of cells that are emptied, at most."""


class Puzzle(msgspec.Struct, frozen=True):
    """What is given, and its only solution."""

    start: Grid
    solution: Grid


def make_puzzle(seed: int, split: str, size: int, difficulty: str) -> Puzzle:
    """The puzzle of a seed; the solution says which split it is for, so that no two splits share one."""
    rng = generator(seed, split)
    while True:
        solution = _solved(rng, size)
        if split_by_content(solution) == split:
            break
    count = int(size * size * EMPTIED[difficulty])
    emptied = [divmod(int(at), size) for at in rng.permutation(size * size)[:count]]
    start = solution
    for place in emptied:
        start = placed(start, place, 0)
    while len(found := [*islice(solutions(start), 2)]) > 1:
        # Giving a cell in which the two differ rules one of them out.
        other = next(one for one in found if one != solution)
        row, column = next((r, c) for r, c in emptied if other[r][c] != solution[r][c])
        start = placed(start, (row, column), solution[row][column])
    return Puzzle(start, solution)


def _solved(rng: np.random.Generator, size: int) -> Grid:
    """A solved grid: a regular one with its numbers, rows and columns shuffled, each within what keeps it solved."""
    box = isqrt(size)

    def shuffled() -> list[int]:
        return [band * box + int(line) for band in rng.permutation(box) for line in rng.permutation(box)]

    rows, columns, numbers = shuffled(), shuffled(), rng.permutation(size) + 1
    grid = [[int(numbers[(row * box + row // box + column) % size]) for column in columns] for row in rows]
    return tuple(zip(*grid, strict=True)) if rng.random() < 0.5 else tuple(map(tuple, grid))
