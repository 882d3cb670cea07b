"""A sudoku grid: rows of numbers, 0 for an empty cell; which numbers fit a cell, and which grids solve a puzzle."""

import functools
from collections.abc import Iterator
from math import isqrt
from typing import Any

Grid = tuple[tuple[int, ...], ...]
Place = tuple[int, int]


@functools.lru_cache(maxsize=3)
def units(size: int) -> dict[str, list[list[Place]]]:
    """The cells of each row, column and box, in order."""
    box, numbers = isqrt(size), range(size)
    return {
        "row": [[(row, column) for column in numbers] for row in numbers],
        "column": [[(row, column) for row in numbers] for column in numbers],
        "box": [
            [(top + row, left + column) for row in range(box) for column in range(box)]
            for top in range(0, size, box)
            for left in range(0, size, box)
        ],
    }


def box_of(place: Place, size: int) -> int:
    box = isqrt(size)
    return place[0] // box * box + place[1] // box


def taken_by(grid: Grid, place: Place, number: int) -> list[str]:
    """The units of a cell that have a number already, as in "row 2"."""
    size = len(grid)
    at = {"row": place[0], "column": place[1], "box": box_of(place, size)}
    found = [kind for kind, of in at.items() if any(grid[r][c] == number for r, c in units(size)[kind][of])]
    return [f"{kind} {at[kind] + 1}" for kind in found]


def candidates(grid: Grid, place: Place) -> list[int]:
    """The numbers that are in no unit of a cell."""
    size = len(grid)
    box = units(size)["box"][box_of(place, size)]
    used = {*grid[place[0]], *(row[place[1]] for row in grid), *(grid[r][c] for r, c in box)}
    return [number for number in range(1, size + 1) if number not in used]


def placed(grid: Grid, place: Place, number: int) -> Grid:
    row = grid[place[0]]
    changed = (*row[: place[1]], number, *row[place[1] + 1 :])
    return (*grid[: place[0]], changed, *grid[place[0] + 1 :])


def conflicts(grid: Grid) -> list[Place]:
    """Cells whose number is in one of their units twice."""
    found: set[Place] = set()
    for cells in (cells for kind in units(len(grid)).values() for cells in kind):
        numbers = [grid[row][column] for row, column in cells]
        found.update(cell for cell, number in zip(cells, numbers, strict=True) if number and numbers.count(number) > 1)
    return sorted(found)


def is_solved(grid: Grid) -> bool:
    return all(all(row) for row in grid) and not conflicts(grid)


class SearchTooLongError(Exception):
    """Neither another solution was found within the tries, nor that there is none."""


def solutions(grid: Grid, tries: int) -> Iterator[Grid]:
    """All ways to fill in the empty cells of a grid without conflicts, one after the other.

    An exact cover, by Knuth's algorithm X: each empty cell needs a number, and each unit its missing numbers. What has
    the fewest ways left is decided first. After so many `tries`, decisions that is, it is given up.
    """
    size = len(grid)
    needs: dict[tuple[int, int, int], set[int]] = {}  # what has to be decided, and the ways left for it
    ways: list[tuple[Place, int]] = []
    covered: list[list[tuple[int, int, int]]] = []  # what each way decides
    for kind, cells_of_units in enumerate(units(size).values()):
        for at, cells in enumerate(cells_of_units):
            there = {grid[row][column] for row, column in cells}
            needs |= {(kind, at, number): set() for number in range(1, size + 1) if number not in there}
    for row, column in ((row, column) for row in range(size) for column in range(size) if not grid[row][column]):
        needs[3, row, column] = set()
        for number in candidates(grid, (row, column)):
            box = box_of((row, column), size)
            covered.append([(3, row, column), (0, row, number), (1, column, number), (2, box, number)])
            for need in covered[-1]:
                needs[need].add(len(ways))
            ways.append(((row, column), number))
    for chosen in _covers(needs, covered, iter(range(tries))):
        yield functools.reduce(lambda filled, way: placed(filled, *ways[way]), chosen, grid)


def _covers(needs: dict[Any, set[int]], covered: list[list[Any]], tries: Iterator[int]) -> Iterator[list[int]]:
    """The sets of ways that decide every need exactly once."""
    if next(tries, None) is None:
        raise SearchTooLongError
    if not needs:
        yield []
        return
    need = min(needs, key=lambda one: len(needs[one]))
    for way in sorted(needs[need]):
        taken = []
        for decided in covered[way]:
            for other in needs[decided]:
                for rest in covered[other]:
                    if rest != decided:
                        needs[rest].remove(other)
            taken.append(needs.pop(decided))
        for chosen in _covers(needs, covered, tries):
            yield [way, *chosen]
        for decided in reversed(covered[way]):
            needs[decided] = taken.pop()
            for other in needs[decided]:
                for rest in covered[other]:
                    if rest != decided:
                        needs[rest].add(other)
