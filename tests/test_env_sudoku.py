"""Sudoku's rules: puzzles with one solution, what can be placed, what it earns, and what is told of it."""

from itertools import islice
from typing import Any

import pytest

from asyncrollout import TextOptions, UsageError
from asyncrollout_envs.sudoku.env import Sudoku, parse_action
from asyncrollout_envs.sudoku.grids import conflicts, is_solved, solutions
from asyncrollout_envs.sudoku.puzzles import EMPTIED, make_puzzle
from asyncrollout_envs.sudoku.text import SudokuText

SMALL = [[1, 0, 3, 4], [3, 4, 0, 2], [2, 1, 4, 3], [4, 3, 2, 0]]
"""Solved by 2 at (1,2), 1 at (2,3) and 1 at (4,4)."""


@pytest.mark.parametrize("difficulty", EMPTIED)
@pytest.mark.parametrize("size", [4, 9, 16])
def test_puzzles_have_one_solution(size: int, difficulty: str) -> None:
    for seed in range(2 if size == 16 else 6):
        puzzle = make_puzzle(seed, "train", size, difficulty)
        assert puzzle == make_puzzle(seed, "train", size, difficulty)
        assert [*islice(solutions(puzzle.start, 100_000), 2)] == [puzzle.solution]
        assert is_solved(puzzle.solution)
        emptied = sum(row.count(0) for row in puzzle.start)
        assert 0.3 * size * size < emptied <= EMPTIED[difficulty] * size * size


def test_solutions_are_all_found() -> None:
    assert len([*solutions(((0,) * 4,) * 4, 100_000)]) == 288
    assert [*solutions(((1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 1, 0)), 1000)] == []


def make(**kwargs: Any) -> Sudoku:
    env = Sudoku(grid_size=4, **kwargs)
    env.reset(options={"task": SMALL})
    return env


@pytest.mark.parametrize(
    ("action", "reward", "told"),
    [
        ("place 2 at row 1 col 2", 1.0, "as in the solution"),
        ("1,2,2", 1.0, "as in the solution"),
        ("place 3 at row 1 col 2", -0.1, "3 is in row 1 and column 2 and box 1 already; what fits there: 2"),
        ("place 2 at row 1 col 1", -0.1, "row 1, column 1 is given"),
        ("place 5 at row 1 col 2", -0.1, "number 5 is not from 1 to 4"),
        ("place 2 at row 0 col 2", -0.1, "row 0 is not from 1 to 4"),
        ("two at the top", -0.1, "not of the form"),
        ("", -0.1, "not of the form"),
    ],
)
def test_placing(action: str, reward: float, told: str) -> None:
    env = make()
    assert env.step(action)[1:4] == (reward, False, False)
    assert told in env.feedback
    assert told in SudokuText(env, TextOptions()).describe(env.grid)


def test_a_number_that_fits_but_is_wrong_earns_half_and_can_be_replaced() -> None:
    env = Sudoku()
    env.reset(seed=1)
    solution = env.puzzle.solution
    wrong = next(
        (row, column, number)
        for row in range(9)
        for column in range(9)
        for number in range(1, 10)
        if not env.grid[row][column]
        and number != solution[row][column]
        and not env._problem((row + 1, column + 1, number))
    )
    row, column, number = wrong
    _, reward, *_, info = env.step(f"{row + 1},{column + 1},{number}")
    assert (reward, info["correct_placement"], info["action_is_effective"]) == (0.5, False, True)
    text = SudokuText(env, TextOptions())
    done = False
    while not done:
        _, reward, done, truncated, info = env.step(text.parse(text.solve()).actions[0])
        assert not truncated
    assert (reward, info["success"]) == (11.0, True)


@pytest.mark.parametrize(("style", "earned"), [("plain", [0.5, 0.5, -0.5]), ("ragen", [0.5, 1.0, 0.5])])
def test_changing_a_number_earns_the_difference(style: Any, earned: list[float]) -> None:
    """So that going back and forth between two numbers earns nothing, but in RAGEN's style, which pays for each."""
    env = Sudoku(grid_size=4, style=style)
    env.reset(options={"task": [[0, 0, 3, 4], [3, 4, 0, 2], [0, 1, 4, 3], [4, 3, 2, 0]]})
    assert env.puzzle.solution[0][0] == 1
    assert [env.step(f"1,1,{number}")[1] for number in (2, 1, 2)] == earned


def test_the_last_step_ends_the_episode_whatever_it_was() -> None:
    env = make(max_steps=2)
    env.step("1,2,2")
    assert env.step("nonsense")[2:4] == (False, True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("place 5 at row 2 col 3", (2, 3, 5)),
        ("Place 5 at row 2, column 3", (2, 3, 5)),
        ("place 5 at (2,3)", (2, 3, 5)),
        ("place 5 at 2, 3", (2, 3, 5)),
        ("5 at 2,3", (2, 3, 5)),
        ("(2,3,5)", (2, 3, 5)),
        ("2, 3, 5", (2, 3, 5)),
        ("place 16 at row 12 col 10", (12, 10, 16)),
        ("5", None),
        ("2,3", None),
        ("1,2," * 100, None),
    ],
)
def test_ways_to_say_it(text: str, found: tuple[int, int, int] | None) -> None:
    assert parse_action(text) == found


@pytest.mark.parametrize(
    ("kwargs", "told", "untold"),
    [
        ({"render_format": "simple"}, ["1 . | 3 4"], ["[1]", "given", "Step"]),
        ({"render_format": "detailed"}, ["[1] .  | [3][4]", "[n] given"], ["Step", "What fits"]),
        ({}, ["[1] .  | [3][4]", "(1,2): 2", "13 of 16 cells are filled: 13 given, 0 placed. Step 0 of 81."], []),
        ({"show_valid_numbers": False}, ["Step 0 of 81"], ["What fits"]),
    ],
)
def test_how_much_is_told(kwargs: dict[str, Any], told: list[str], untold: list[str]) -> None:
    env = make(**kwargs)
    shown = SudokuText(env, TextOptions()).describe(env.grid)
    assert [part for part in told if part not in shown] == []
    assert [part for part in untold if part in shown] == []


def test_conflicts_are_found() -> None:
    assert conflicts(((1, 0, 0, 1), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1))) == [(0, 0), (0, 3), (3, 3)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"grid_size": 8},
        {"difficulty": "extreme"},
        {"render_format": "html"},
        {"max_steps": 0},
        {"show_conflicts": 1},
        {"placed_score": "1"},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Sudoku(**wrong)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ([[0] * 4] * 4, "has several solutions"),
        ([[1, 1, 0, 0]] + [[0] * 4] * 3, "has no solution"),
        ([[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]], "is solved already"),
        ([[0] * 4] * 3, "is not 4 rows of 4 numbers"),
        ("1234", "is not 4 rows of 4 numbers"),
    ],
)
def test_a_task_is_a_puzzle(task: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Sudoku(grid_size=4).reset(options={"task": task})


@pytest.mark.parametrize(("size", "steps"), [(4, 81), (9, 81), (16, 256)])
def test_there_are_steps_for_all_empty_cells(size: int, steps: int) -> None:
    env = Sudoku(grid_size=size, difficulty="medium")
    grid, _ = env.reset(seed=3)
    assert env.max_steps == steps
    assert sum(row.count(0) for row in grid) <= env.max_steps


@pytest.mark.parametrize("size", [9.0, True, "9", 8, [9]])
def test_sizes_are_whole_numbers(size: Any) -> None:
    with pytest.raises(UsageError, match="grid_size="):
        Sudoku(grid_size=size)


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3,4",
        "1,1,1,1,1",
        "2.5,3,5",
        "-2,3,5",
        "5 at 2,3,4",
        "5 at 2,3.5",
        "1.5 at 2,3",
        "5 at 2,3 or 6 at 2,3",
        "place 5 at row 2 col 3 and 4 at row 1 col 1",
        "5 at 2,3; 2,3,6",
    ],
)
def test_what_is_not_one_placement_is_none(text: str) -> None:
    assert parse_action(text) is None


@pytest.mark.parametrize(
    "text", ["(2,3,5)", "2, 3, 5.", "5 at 2,3, as 2,3,5", "I place 5 at (2, 3).", "place 5 in row 2, column 3!"]
)
def test_one_placement_may_be_said_twice_and_among_other_words(text: str) -> None:
    assert parse_action(text) == (2, 3, 5)
