"""The sudoku environment: one number per step, judged at once."""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal, get_args

from asyncrollout.errors import UsageError
from asyncrollout_envs.kwargs import Style, check_bool, check_number, check_one_of, check_style, check_whole
from asyncrollout_envs.seeding import Split, check_split, fresh_seed
from asyncrollout_envs.sudoku.grids import (
    Grid,
    Place,
    SearchTooLongError,
    candidates,
    conflicts,
    is_solved,
    placed,
    solutions,
    taken_by,
)
from asyncrollout_envs.sudoku.puzzles import Puzzle, make_puzzle

Difficulty = Literal["easy", "medium", "hard"]
RenderFormat = Literal["simple", "detailed", "with_feedback"]

_SIZES = (4, 9, 16)
_USUAL_STEPS = 81
_BEGIN, _END = r"(?<![\w.-])(?<!\d,)(?<!\d, )", r"(?![\w-]|[.,] ?\d)"  # of whole numbers: 2.5,3,5 is not 5,3,5
_NUMBER_FIRST = re.compile(
    rf"{_BEGIN}(?P<number>\d{{1,3}}) (?:at|in) (?:row (?P<row>\d{{1,3}}),? col(?:umn)? (?P<column>\d{{1,3}})"
    rf"|\(? ?(?P<r>\d{{1,3}}) ?, ?(?P<c>\d{{1,3}})){_END}"
)
_PLACE_FIRST = re.compile(rf"(?<!\d at )(?<!\d in ){_BEGIN}(\d{{1,3}}) ?, ?(\d{{1,3}}) ?, ?(\d{{1,3}}){_END}")
_LONGEST_ACTION = 200
_TRIES = 20_000  # to solve a task; a hard one of 9x9 takes a few hundred


def parse_action(text: str) -> tuple[int, int, int] | None:
    """Row, column and number of "place 5 at row 2 col 3", "5 at 2,3" or "2,3,5"; all count from 1.

    None also for a text that names several.
    """
    plain = " ".join(text[: _LONGEST_ACTION + 1].lower().split())
    if len(plain) > _LONGEST_ACTION:
        return None
    named = {
        (int(found["row"] or found["r"]), int(found["column"] or found["c"]), int(found["number"]))
        for found in _NUMBER_FIRST.finditer(plain)
    }
    named |= {(int(row), int(column), int(number)) for row, column, number in _PLACE_FIRST.findall(plain)}
    return named.pop() if len(named) == 1 else None


class Sudoku:
    """An action is a text that `parse_action` reads; the observation is the grid, with 0 for an empty cell.

    A number that fits earns `placed_score`, half of it if it is not the solution's, less what the number that it
    replaces has earned; one that cannot be placed costs `invalid_score`. The solved grid earns `solved_score`
    besides. `difficulty` is the share of cells to fill in: 40%, 50% or 60%. `render_format` says how much is told:
    the grid alone, what came of the last action as well, or also conflicts (with `show_conflicts`), what fits the
    last ten cells (with `show_valid_numbers`) and the progress. A task is a grid with one solution, as rows of
    numbers. `max_steps` is by default 81, and 256 of 16x16, where more cells than 81 are empty.
    """

    def __init__(
        self,
        *,
        grid_size: int = 9,
        difficulty: Difficulty = "easy",
        max_steps: int | None = None,
        render_format: RenderFormat = "with_feedback",
        show_conflicts: bool = True,
        show_valid_numbers: bool = True,
        placed_score: float = 1.0,
        invalid_score: float = -0.1,
        solved_score: float = 10.0,
        split: Split = "train",
        style: Style = "plain",
    ) -> None:
        check_whole("sudoku", least=_SIZES[0], most=_SIZES[-1], grid_size=grid_size)
        if grid_size not in _SIZES:
            raise UsageError(f"sudoku: grid_size={grid_size!r:.200} is not one of {', '.join(map(str, _SIZES))}")
        check_one_of("sudoku", "difficulty", difficulty, get_args(Difficulty))
        check_one_of("sudoku", "render_format", render_format, get_args(RenderFormat))
        max_steps = max(_USUAL_STEPS, grid_size**2) if max_steps is None else max_steps
        check_whole("sudoku", max_steps=max_steps)
        check_bool("sudoku", show_conflicts=show_conflicts, show_valid_numbers=show_valid_numbers)
        check_number("sudoku", placed_score=placed_score, invalid_score=invalid_score, solved_score=solved_score)
        check_split("sudoku", split)
        check_style("sudoku", style)
        self.grid_size, self.difficulty, self.max_steps = int(grid_size), difficulty, max_steps
        self.render_format, self.show_conflicts, self.show_valid_numbers = (
            render_format,
            show_conflicts,
            show_valid_numbers,
        )
        self.placed_score, self.invalid_score = float(placed_score), float(invalid_score)
        self.solved_score = float(solved_score)
        self.split, self.style = split, style
        self.puzzle = Puzzle((), ())
        self.grid: Grid = ()
        self.steps = 0
        self.feedback = ""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Grid, dict[str, Any]]:
        task = (options or {}).get("task")
        seed = fresh_seed() if seed is None else seed
        self.puzzle = (
            make_puzzle(seed, self.split, self.grid_size, self.difficulty)
            if task is None
            else _read_puzzle(task, self.grid_size)
        )
        self.grid, self.steps, self.feedback = self.puzzle.start, 0, ""
        return self.grid, {}

    def step(self, action: str) -> tuple[Grid, float, bool, bool, dict[str, Any]]:
        if not isinstance(action, str):
            raise TypeError(f"sudoku: an action is a text such as 'place 5 at row 2 col 3', not {action!r:.100}")
        self.steps += 1
        asked = parse_action(action)
        problem = self._problem(asked)
        if asked is None or problem:
            self.feedback = f"Not placed: {problem}."
            return self._stepped(self.invalid_score, effective=False, error=problem)
        row, column, number = asked
        place = (row - 1, column - 1)
        worth_before = self._worth(place) if self.style == "plain" else 0.0  # RAGEN pays for every change of mind
        self.grid = placed(self.grid, place, number)
        is_right = number == self.puzzle.solution[row - 1][column - 1]
        verdict = "as in the solution" if is_right else "which fits, but is not the solution's"
        self.feedback = f"{number} is at row {row}, column {column}, {verdict}."
        reward = self._worth(place) - worth_before
        if is_solved(self.grid):
            self.feedback += " The puzzle is solved."
            reward += self.solved_score
        left = sum(row.count(0) for row in self.grid)
        told = {"correct_placement": is_right, "cells_remaining": left, "cells_filled": self.grid_size**2 - left}
        return self._stepped(reward, effective=True, **told, steps_remaining=self.max_steps - self.steps)

    def _worth(self, place: Place) -> float:
        """What the number in a cell has earned."""
        number, right = self.grid[place[0]][place[1]], self.puzzle.solution[place[0]][place[1]]
        return 0.0 if not number else self.placed_score if number == right else 0.5 * self.placed_score

    def _stepped(
        self, reward: float, *, effective: bool, **told: Any
    ) -> tuple[Grid, float, bool, bool, dict[str, Any]]:
        solved = is_solved(self.grid)
        info = {"action_is_effective": effective, "success": solved, **told}
        if self.style == "ragen":
            info["action_is_valid"] = effective
        return self.grid, reward, solved, self.steps >= self.max_steps and not solved, info

    def _problem(self, asked: tuple[int, int, int] | None) -> str:
        """Why a number cannot be placed."""
        if asked is None:
            return "this is not of the form 'place 5 at row 2 col 3' or '2,3,5' (row, column, number)"
        for name, value in zip(("row", "column", "number"), asked, strict=True):
            if not 1 <= value <= self.grid_size:
                return f"{name} {value} is not from 1 to {self.grid_size}"
        row, column, number = asked
        place = (row - 1, column - 1)
        if self.puzzle.start[place[0]][place[1]]:
            return f"row {row}, column {column} is given"
        if units := taken_by(self.grid, place, number):
            fitting = ", ".join(map(str, candidates(placed(self.grid, place, 0), place)))
            others = f"; what fits there: {fitting}" if fitting else ""
            return f"{number} is in {' and '.join(units)} already{others}"
        return ""

    def conflicts(self) -> list[Place]:
        return conflicts(self.grid)


def _read_puzzle(task: Any, size: int) -> Puzzle:
    is_rows = isinstance(task, Sequence) and not isinstance(task, str) and len(task) == size
    rows = [[*row] for row in task] if is_rows and all(isinstance(row, Sequence) for row in task) else []
    numbers = [number for row in rows for number in row]
    if not is_rows or len(numbers) != size * size or not all(type(one) is int and 0 <= one <= size for one in numbers):
        raise UsageError(f"sudoku: task={task!r:.300} is not {size} rows of {size} numbers from 0 to {size}")
    start = tuple(map(tuple, rows))
    try:
        found = [] if conflicts(start) else [*islice(solutions(start, _TRIES), 2)]
    except SearchTooLongError:
        raise UsageError(f"sudoku: task={task!r:.300} is too hard to be checked: give more of its numbers") from None
    if len(found) != 1 or found[0] == start:
        many = "is solved already" if start in found else f"has {'several solutions' if found else 'no solution'}"
        raise UsageError(f"sudoku: task={task!r:.300} {many}")
    return Puzzle(start, found[0])
