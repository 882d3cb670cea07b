"""Puzzles from seeds: a solved grid, of which cells are emptied as long as only one solution is left."""

from itertools import islice
from math import isqrt

import msgspec
import numpy as np

from asyncrollout_envs.seeding import generator, split_by_content
from asyncrollout_envs.sudoku.grids import Grid, Place, SearchTooLongError, placed, solutions

EMPTIED = {"easy": 0.4, "medium": 0.5, "hard": 0.6}
"""The share of cells that are emptied, at most."""

_TRIES = 1_000


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
    while ambiguous := _ambiguous(start, solution):
        for row, column in ambiguous[: max(1, len(ambiguous) // 8)]:  # a few at once: large grids have many solutions
            start = placed(start, (row, column), solution[row][column])
    return Puzzle(start, solution)


def _ambiguous(start: Grid, solution: Grid) -> list[Place]:
    """Empty cells of which some must be given to rule out another solution; all, if the search for one takes long."""
    numbers = range(len(start))
    try:
        found = next((one for one in islice(solutions(start, _TRIES), 2) if one != solution), solution)
    except SearchTooLongError:
        found = start
    return [(row, column) for row in numbers for column in numbers if found[row][column] != solution[row][column]]


def _solved(rng: np.random.Generator, size: int) -> Grid:
    """A solved grid: a regular one with its numbers, rows and columns shuffled, each within what keeps it solved."""
    box = isqrt(size)

    def shuffled() -> list[int]:
        return [band * box + int(line) for band in rng.permutation(box) for line in rng.permutation(box)]

    rows, columns, numbers = shuffled(), shuffled(), rng.permutation(size) + 1
    grid = [[int(numbers[(row * box + row // box + column) % size]) for column in columns] for row in rows]
    return tuple(zip(*grid, strict=True)) if rng.random() < 0.5 else tuple(map(tuple, grid))
