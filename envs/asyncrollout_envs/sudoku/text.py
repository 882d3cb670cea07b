"""Sudoku in words."""

from math import isqrt

from asyncrollout.text.replies import Projecting, read_reply, turn_format
from asyncrollout.types import Parsed, TextOptions
from asyncrollout_envs.sudoku.env import Sudoku, parse_action
from asyncrollout_envs.sudoku.grids import Grid, candidates

_RULES = """\
You are solving a sudoku: fill in the grid. Every row, every column and every box of {box}x{box} cells has each number
from 1 to {size} once. Given numbers are in [brackets] and stay; empty cells are dots.
An action places one number: place 5 at row 2 col 3, or 2,3,5 (row, column, number), all counted from 1.
A number that fits earns {placed:g}, half of that if it is not the solution's. One that cannot be placed costs
{invalid:g}. {replaced}The solved puzzle earns {solved:g} more."""
_MOST_HINTS = 10


class SudokuText(Projecting[Sudoku]):
    """The expert places what the solution has."""

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        return read_reply(reply, options, _read)

    def describe(self, observation: Grid) -> str:
        env = self._env
        parts = [self._drawn(observation)]
        if env.render_format == "simple":
            return parts[0]
        parts.append("[n] given, n placed, *n* in conflict, . empty")
        if env.feedback:
            parts.append(env.feedback)
        if env.render_format == "with_feedback":
            parts += self._hints(observation)
        return "\n\n".join(parts)

    def _hints(self, grid: Grid) -> list[str]:
        env, hints = self._env, []
        if env.show_conflicts and (wrong := env.conflicts()):
            hints.append("Conflicts: " + ", ".join(f"{grid[r][c]} at ({r + 1},{c + 1})" for r, c in wrong))
        empty = [(row, column) for row, line in enumerate(grid) for column, one in enumerate(line) if not one]
        if env.show_valid_numbers and empty and len(empty) <= _MOST_HINTS:
            fits = [f"({r + 1},{c + 1}): {', '.join(map(str, candidates(grid, (r, c)))) or 'none'}" for r, c in empty]
            hints.append("\n".join(["What fits the empty cells, as (row,column):", *fits]))
        given = sum(one > 0 for row in env.puzzle.start for one in row)
        cells = env.grid_size**2
        filled = cells - len(empty)
        hints.append(f"{filled} of {cells} cells are filled: {given} given, {filled - given} placed. ")
        hints[-1] += f"Step {env.steps} of {env.max_steps}."
        return hints

    def _drawn(self, grid: Grid) -> str:
        env, box = self._env, isqrt(self._env.grid_size)
        wrong = {*env.conflicts()}
        width = len(str(env.grid_size))
        is_simple = env.render_format == "simple"

        def cell(row: int, column: int) -> str:
            number = f"{grid[row][column] or '.':>{width}}"
            if is_simple:
                return number
            if env.puzzle.start[row][column]:
                return f"[{number}]"
            return f"*{number}*" if (row, column) in wrong else f" {number} "

        lines: list[str] = []
        for row in range(env.grid_size):
            if row and not row % box:
                lines.append("-" * len(lines[0]))
            cells = [cell(row, column) for column in range(env.grid_size)]
            gap = " " if is_simple else ""
            lines.append(" | ".join(gap.join(cells[at : at + box]) for at in range(0, env.grid_size, box)).rstrip())
        return "\n".join(lines)

    def system_prompt(self) -> str:
        env = self._env
        rules = _RULES.format(
            box=isqrt(env.grid_size),
            size=env.grid_size,
            placed=env.placed_score,
            invalid=abs(env.invalid_score),
            replaced="" if env.style == "ragen" else "One that replaces another earns the difference.\n",
            solved=env.solved_score,
        )
        return f"{rules}\n\n{turn_format(self._options, 'place 5 at row 2 col 3')}"

    def anchor(self) -> Grid:
        return self._env.grid

    def tell(self, action: str) -> str:
        return action

    def solve(self) -> str:
        """As many cells as a reply may have, the wrong ones first."""
        env = self._env
        open_cells = [
            (env.grid[row][column] == 0, row, column)
            for row in range(env.grid_size)
            for column in range(env.grid_size)
            if env.grid[row][column] != env.puzzle.solution[row][column]
        ]
        wanted = sorted(open_cells)[: self._options.max_actions_per_turn] or [(True, 0, 0)]
        told = [_action(row + 1, column + 1, env.puzzle.solution[row][column]) for _, row, column in wanted]
        return f"<think>These follow.</think><answer>{f' {self._options.separator} '.join(told)}</answer>"


def _action(row: int, column: int, number: int) -> str:
    return f"place {number} at row {row} col {column}"


def _read(text: str) -> str | None:
    asked = parse_action(text)
    return None if asked is None else _action(*asked)
