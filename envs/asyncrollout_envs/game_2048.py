"""2048: slide all tiles to one side; two equal ones that meet become one, and a new tile appears."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout.text.replies import Projecting, read_choice, turn_format
from asyncrollout.types import Parsed, TextOptions
from asyncrollout_envs.kwargs import Style, check_bool, check_share, check_style, check_whole
from asyncrollout_envs.seeding import Split, check_split, fresh_seed, generator

SPEC = EnvSpec(
    name="game_2048",
    factory="asyncrollout_envs.game_2048:Game2048",
    text="asyncrollout_envs.game_2048:Game2048Text",
    runs="light",
    summary="merge tiles until one is 2048",
    actions="Up, Right, Down, Left",
    splits=SPLITS,
)

ACTIONS = UP, RIGHT, DOWN, LEFT = 0, 1, 2, 3
NAMES = ("Up", "Right", "Down", "Left")
WASTED = -0.1
_ON_THE_WAY = 0.5  # of the reward is for tiles before the goal
_LUCK = 1  # the number of the generator that later tiles are drawn from

Line = tuple[int, ...]
Grid = tuple[Line, ...]


@lru_cache(maxsize=100_000)
def slid(line: Line) -> tuple[Line, int]:
    """A line with its tiles moved to its start, and the sum of those that were merged; each merges once."""
    tiles = [tile for tile in line if tile]
    merged: list[int] = []
    gained = at = 0
    while at < len(tiles):
        meets = at + 1 < len(tiles) and tiles[at] == tiles[at + 1]
        merged.append(tiles[at] * 2 if meets else tiles[at])
        gained += merged[-1] if meets else 0
        at += 2 if meets else 1
    return (*merged, *[0] * (len(line) - len(merged))), gained


def moved(grid: Grid, action: int) -> tuple[Grid, int]:
    """The grid after a move, before a new tile appears, and the sum of the merged tiles."""
    lines = tuple(zip(*grid, strict=True)) if action in (UP, DOWN) else grid
    backwards = action in (RIGHT, DOWN)
    results = [slid(line[::-1] if backwards else line) for line in lines]
    lines = tuple(line[::-1] if backwards else line for line, _ in results)
    gained = sum(gain for _, gain in results)
    return (tuple(zip(*lines, strict=True)) if action in (UP, DOWN) else lines), gained


def moves(grid: Grid) -> list[int]:
    """The actions that move something."""
    return [action for action in ACTIONS if moved(grid, action)[0] != grid]


class Game2048:
    """Actions 0 to 3 are up, right, down, left; the observation is the grid, with 0 for no tile.

    Each doubling of the largest tile is worth the same, 0.5 in all up to the goal, and the goal 0.5 more: merges on the
    way earn nothing, so that detours do not pay. With `use_log_reward`, a move is worth a tenth of log2(1 + the sum of
    the merged tiles); if that is false, that sum, and -0.1 if nothing moves. A new tile is a 2 with `two_prob`, else a
    4. The game is won, and over, with a tile of `goal`; it is lost when nothing can move. In the style "ragen" it
    continues beyond the goal, a move of nothing is not valid, and `use_log_reward` is true by default.
    A task is a grid, as rows of numbers. Members of a group share the first two tiles, and have each their own luck.
    """

    plays_by_chance = True

    def __init__(
        self,
        *,
        size: int = 4,
        two_prob: float = 0.9,
        use_log_reward: bool | None = None,
        goal: int = 2048,
        max_steps: int = 3000,
        split: Split = "train",
        style: Style = "plain",
    ) -> None:
        check_whole("game_2048", least=2, most=16, size=size)
        check_whole("game_2048", least=8, goal=goal)  # a first tile may be 4
        check_whole("game_2048", max_steps=max_steps)
        check_share("game_2048", two_prob=two_prob)
        if use_log_reward is not None:
            check_bool("game_2048", use_log_reward=use_log_reward)
        check_split("game_2048", split)
        check_style("game_2048", style)
        self.size, self.two_prob = size, float(two_prob)
        self.use_log_reward = True if use_log_reward is None and style == "ragen" else use_log_reward
        self.goal, self.max_steps, self.split, self.style = goal, max_steps, split, style
        self.grid: Grid = ((0,) * size,) * size
        self.score = 0
        self.steps = 0
        self._first_tile = 2
        self._progress = 0.0
        self._luck: np.random.Generator

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Grid, dict[str, Any]]:
        options = options or {}
        seed = fresh_seed() if seed is None else seed
        self.score = self.steps = 0
        self._luck = generator(seed, self.split)
        if options.get("task") is None:
            self.grid = ((0,) * self.size,) * self.size
            self._add_tile()
            self._add_tile()
        else:
            self.grid = _read_grid(options["task"], self.size)
            if self.style == "plain" and self.max_tile >= self.goal:
                raise UsageError(f"game_2048: task={options['task']!r:.300}: it is won already, with goal={self.goal}")
        self._luck = generator(seed, self.split, _LUCK, options.get("member", 0))
        self._first_tile, self._progress = self.max_tile, 0.0
        return self.grid, {}

    def step(self, action: int) -> tuple[Grid, float, bool, bool, dict[str, Any]]:
        if isinstance(action, bool) or not isinstance(action, int | np.integer) or action not in ACTIONS:
            known = ", ".join(f"{number} ({name.lower()})" for number, name in enumerate(NAMES))
            raise ValueError(f"action {action!r:.100} is not one of {known}")
        self.steps += 1
        before = self.grid
        self.grid, gained = moved(before, int(action))
        effective = self.grid != before
        if effective:
            self.score += gained
            self._add_tile()
        ends_early = self.style == "plain" and self.max_tile >= self.goal
        over = ends_early or (effective and not moves(self.grid))
        success = self.max_tile >= self.goal and (over or self.style == "plain")
        raw = float(gained) if effective else WASTED
        info: dict[str, Any] = {"action_is_effective": effective, "success": success, "score": self.score}
        if self.style == "ragen":
            info |= {"action_is_valid": effective, "raw_reward": raw}
        if over:
            info["max_tile"] = self.max_tile
        if self.use_log_reward is None:
            reward = self._advance()
        else:
            reward = 0.1 * math.log2(1 + gained) if self.use_log_reward else raw
        return self.grid, reward, over, self.steps >= self.max_steps and not over, info

    @property
    def max_tile(self) -> int:
        return max(map(max, self.grid))

    def _advance(self) -> float:
        """How much nearer the goal is than ever before in this game: a new largest tile, or the goal."""
        before = self._progress
        if self.max_tile >= self.goal:
            self._progress = 1.0
        else:
            self._progress = _ON_THE_WAY * math.log(self.max_tile / self._first_tile, self.goal / self._first_tile)
        return self._progress - before

    def _add_tile(self) -> None:
        free = [(row, column) for row in range(self.size) for column in range(self.size) if not self.grid[row][column]]
        row, column = free[int(self._luck.integers(len(free)))]
        tile = 2 if self._luck.random() < self.two_prob else 4
        self.grid = _with_tile(self.grid, row, column, tile)


def _read_grid(task: Any, size: int) -> Grid:
    rows = [list(row) for row in task] if isinstance(task, Sequence) and not isinstance(task, str) else []
    tiles = [tile for row in rows for tile in row]
    is_grid = len(rows) == size and all(len(row) == size for row in rows)
    if not is_grid or not all(
        type(tile) is int and (not tile or (tile > 1 and tile & (tile - 1) == 0)) for tile in tiles
    ):
        raise UsageError(f"game_2048: task={task!r:.300} is not {size} rows of {size} tiles: 0, 2, 4, 8, ...")
    grid = tuple(map(tuple, rows))
    if not moves(grid):
        raise UsageError(f"game_2048: task={task!r:.300}: nothing can move")
    return grid


class Game2048Text(Projecting[Game2048]):
    """The expert keeps large tiles in a corner and looks one move ahead."""

    names = NAMES
    default_action = 0

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        numbered = list(enumerate(NAMES))
        choices = {name.lower(): action for action, name in numbered} | {str(action): action for action, _ in numbered}
        return read_choice(reply, options, choices)

    def describe(self, observation: Grid) -> str:
        rows = [f"Row {number}: {', '.join(map(str, row))}" for number, row in enumerate(observation, start=1)]
        possible = ", ".join(f"{action} ({NAMES[action]})" for action in moves(observation)) or "none"
        return "\n".join(
            [
                "The grid, with 0 for no tile:",
                *rows,
                f"Possible moves: {possible}. Merge equal tiles to reach {self._env.goal}. Score: {self._env.score}.",
            ]
        )

    def system_prompt(self) -> str:
        env = self._env
        gain = {
            None: f"Every doubling of the largest tile is worth as much, {_ON_THE_WAY:g} in all; the goal the rest.",
            True: "Each move is worth a tenth of log2(1 + the sum of the merged tiles).",
            False: f"Each move is worth the sum of merged tiles. A move that moves nothing is worth {WASTED:g}.",
        }[env.use_log_reward]
        return (
            f"You are playing 2048 on a grid of {env.size}x{env.size}. A move slides all tiles to one side; two equal "
            f"ones that meet become one, and then a new tile appears. Reach a tile of {env.goal}.\n"
            f"{gain} The game is lost when nothing can move.\n"
            f"Your actions are: {', '.join(NAMES)}.\n\n" + turn_format(self._options, "Up")
        )

    def anchor(self) -> Grid:
        return self._env.grid

    def tell(self, action: int) -> str:
        return NAMES[action]

    def solve(self) -> str:
        """One move at a time, as the next one depends on the new tile."""
        grid = self._env.grid
        best = max(moves(grid) or [UP], key=lambda action: _prospect(moved(grid, action)[0]))
        return f"<think>This keeps the large tiles together.</think><answer>{NAMES[best]}</answer>"


def _prospect(grid: Grid) -> float:
    """What the next move can make of a grid, on average over a few of the places where a 2 may appear."""
    free = [(row, column) for row, line in enumerate(grid) for column, tile in enumerate(line) if not tile]
    some = free[:: max(1, len(free) // 4)]
    grids = [_with_tile(grid, row, column, 2) for row, column in some]
    best = [max((_worth(moved(one, action)[0]) for action in moves(one)), default=0.0) for one in grids]
    return sum(best) / max(1, len(best))


def _with_tile(grid: Grid, row: int, column: int, tile: int) -> Grid:
    line = grid[row]
    return (*grid[:row], (*line[:column], tile, *line[column + 1 :]), *grid[row + 1 :])


def _worth(grid: Grid) -> float:
    """Free cells count, and tiles that lie in order along a snake from a corner."""
    snake = [tile for at, row in enumerate(grid) for tile in (row if at % 2 == 0 else row[::-1])]
    in_order = sum(tile * 0.5**place for place, tile in enumerate(snake))
    return in_order + 2.0 * snake.count(0)
