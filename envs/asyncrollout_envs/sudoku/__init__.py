"""Sudoku: `grids.py` has the rules, `puzzles.py` makes puzzles with one solution; then the env and its text."""

from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout_envs.sudoku.env import Sudoku
from asyncrollout_envs.sudoku.text import SudokuText

__all__ = ["SPEC", "Sudoku", "SudokuText"]

SPEC = EnvSpec(
    name="sudoku",
    factory="asyncrollout_envs.sudoku:Sudoku",
    text="asyncrollout_envs.sudoku:SudokuText",
    runs="cpu",
    summary="fill in the grid, no number twice in a row, column or box",
    actions="place 5 at row 2 col 3",
    splits=SPLITS,
)
