"""A sudoku grid: rows of numbers, 0 for an empty cell; which numbers fit a cell, and which grids solve a puzzle."""

from collections.abc import Iterator
from functools import lru_cache
from math import isqrt

Grid = tuple[tuple[int, ...], ...]
Place = tuple[int, int]


@lru_cache(maxsize=3)
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


def solutions(grid: Grid) -> Iterator[Grid]:
    """All ways to fill in the empty cells, one after the other; the cell with the fewest candidates comes first."""
    size = len(grid)
    rows = [_mask(row) for row in grid]
    columns = [_mask(column) for column in zip(*grid, strict=True)]
    boxes = [_mask([grid[r][c] for r, c in cells]) for cells in units(size)["box"]]
    cells = [[*row] for row in grid]
    empty = [(row, column) for row in range(size) for column in range(size) if not grid[row][column]]
    every = (1 << size) - 1

    def fill() -> Iterator[Grid]:
        if not empty:
            yield tuple(map(tuple, cells))
            return
        best, fits, fewest = 0, 0, size + 1
        for at, (row, column) in enumerate(empty):
            free = every & ~(rows[row] | columns[column] | boxes[box_of((row, column), size)])
            if free.bit_count() < fewest:
                best, fits, fewest = at, free, free.bit_count()
                if fewest <= 1:
                    break
        row, column = empty.pop(best)
        box = box_of((row, column), size)
        while fits:
            bit = fits & -fits
            fits ^= bit
            rows[row], columns[column], boxes[box] = rows[row] | bit, columns[column] | bit, boxes[box] | bit
            cells[row][column] = bit.bit_length()
            yield from fill()
            rows[row], columns[column], boxes[box] = rows[row] ^ bit, columns[column] ^ bit, boxes[box] ^ bit
        cells[row][column] = 0
        empty.insert(best, (row, column))

    return fill()


def _mask(numbers: tuple[int, ...] | list[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number - 1 if number else 0
    return mask
