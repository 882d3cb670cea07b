"""FrozenLake: cross the ice to the goal, without falling into a hole; the ice may be slippery."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout.text.replies import turn_format
from asyncrollout_envs import grids
from asyncrollout_envs.grid_view import Format, GridView, Place, make_view
from asyncrollout_envs.grids import Cells, GridText
from asyncrollout_envs.kwargs import check_bool, check_share, check_whole
from asyncrollout_envs.seeding import PARTS, Split, check_split, fresh_seed, generator, split_by_content

SPEC = EnvSpec(
    name="frozen_lake",
    factory="asyncrollout_envs.frozen_lake:FrozenLake",
    text="asyncrollout_envs.frozen_lake:FrozenLakeText",
    runs="light",
    summary="cross the ice to the goal",
    actions="Left, Down, Right, Up",
    splits=SPLITS,
)

PLAYER, ICE, HOLE, GOAL, PLAYER_IN_HOLE, PLAYER_ON_GOAL = range(6)
SYMBOLS = "P_OGX√"
ACTIONS = LEFT, DOWN, RIGHT, UP = 1, 2, 3, 4
NAMES = ("Left", "Down", "Right", "Up")
USUAL_VIEW = GridView(tuple(SYMBOLS), ("you", "ice", "hole", "goal", "you in a hole", "you on the goal"))

_LARGEST = 64
_FORESIGHT = 500  # steps that the expert looks ahead, at most
_TRIES = 300
_SOONER = 1 - 1e-9
_LUCK = 1  # the number of the generator that the ice draws from
_STEPS = {LEFT: (0, -1), DOWN: (1, 0), RIGHT: (0, 1), UP: (-1, 0)}


def _drawn() -> tuple[grids.Tile, ...]:
    ice = grids.framed(grids.plain((208, 232, 244)), (180, 210, 228))
    hole = grids.disc(grids.disc(ice, (92, 134, 164), radius=0.42), (18, 46, 78), radius=0.36)
    goal = grids.square(grids.square(ice, (166, 116, 24), inset=4), (238, 190, 60), inset=6)

    def player(tile: grids.Tile) -> grids.Tile:
        tile = grids.disc(grids.disc(tile, (110, 24, 30), radius=0.32), (204, 60, 56), radius=0.27)
        return grids.disc(tile, (255, 222, 190), radius=0.13, at=(0.36, 0.5))

    return player(ice), ice, hole, goal, player(hole), player(goal)


TILES = _drawn()


@dataclass(frozen=True)
class Lake:
    """A map: its side lengths, where one starts, the goal and the holes, as (row, column)."""

    height: int
    width: int
    start: tuple[int, int]
    goal: tuple[int, int]
    holes: frozenset[tuple[int, int]]

    def after(self, at: tuple[int, int], action: int) -> tuple[int, int]:
        down, right = _STEPS[action]
        return min(max(at[0] + down, 0), self.height - 1), min(max(at[1] + right, 0), self.width - 1)

    def cells(self, player: tuple[int, int]) -> Cells:
        cells = np.full((self.height, self.width), ICE, dtype=np.uint8)
        for hole in self.holes:
            cells[hole] = HOLE
        cells[self.goal] = GOAL
        cells[player] = {GOAL: PLAYER_ON_GOAL, HOLE: PLAYER_IN_HOLE}.get(int(cells[player]), PLAYER)
        return cells

    @property
    def connected(self) -> bool:
        return _connected(self.start, self.goal, np.isin(self.cells(self.start), (HOLE,)))


def _connected(start: Place, goal: Place, is_hole: NDArray[np.bool_]) -> bool:
    """Whether there is a way over the ice."""
    (height, width), rows = is_hole.shape, is_hole.tolist()
    waiting = [start]
    while waiting:
        row, column = waiting.pop()
        for down, right in _STEPS.values():
            then = row + down, column + right
            if 0 <= then[0] < height and 0 <= then[1] < width and not rows[then[0]][then[1]]:
                if then == goal:
                    return True
                rows[then[0]][then[1]] = True  # seen
                waiting.append(then)
    return False


@functools.lru_cache(maxsize=1024)
def make_lake(seed: int, split: str, size: int, p: float) -> Lake:
    """The map of a seed, always the same one, with a way from its start to its goal.

    All that is on it says which split a map is for, so that no two splits share one.
    """
    rng = generator(seed, split)
    for _ in range(_TRIES * len(PARTS)):
        is_hole = rng.random((size, size)) >= p
        start, goal = (divmod(int(at), size) for at in rng.choice(size * size, size=2, replace=False))
        is_hole[start] = is_hole[goal] = False
        if not _connected(start, goal, is_hole):  # first, as it takes no time where ice is rare
            continue
        holes = [(int(row), int(column)) for row, column in np.argwhere(is_hole)]
        if split_by_content((size, start, goal, holes)) == split:
            return Lake(size, size, start, goal, frozenset(holes))
    raise UsageError(
        f"frozen_lake: no map with a way to the goal was found for split={split!r} with size={size}, p={p}: "
        "make one of them larger"
    )


def read_lake(text: Any, symbols: Sequence[str] = SYMBOLS) -> Lake:
    """A map as a user wrote it."""
    cells = grids.from_text("frozen_lake", text, symbols[:PLAYER_IN_HOLE])
    places = {code: [(int(row), int(column)) for row, column in np.argwhere(cells == code)] for code in range(4)}
    if len(places[PLAYER]) != 1 or len(places[GOAL]) != 1:
        found = f"{len(places[PLAYER])} and {len(places[GOAL])}"
        raise UsageError(f"frozen_lake: a map has one {symbols[PLAYER]} and one {symbols[GOAL]}, not {found}")
    height, width = cells.shape
    lake = Lake(height, width, places[PLAYER][0], places[GOAL][0], frozenset(places[HOLE]))
    if not lake.connected:
        raise UsageError(f"frozen_lake: this map has no way from {symbols[PLAYER]} to {symbols[GOAL]}")
    return lake


@functools.lru_cache(maxsize=256)
def best_chances(lake: Lake, success_rate: float, steps: int) -> NDArray[np.float64]:
    """The best policy's chance to reach the goal, by steps left, row and column; sooner counts as a little better."""
    rows, columns = np.mgrid[: lake.height, : lake.width]
    chances = np.zeros((steps + 1, lake.height, lake.width))
    chances[:, *lake.goal] = 1.0
    there = [_clipped(lake, rows + down, columns + right) for down, right in _STEPS.values()]
    over = lake.cells(lake.goal) != ICE
    for left in range(1, steps + 1):
        moved = np.stack([chances[left - 1][place] for place in there])
        slipped = (np.roll(moved, 1, axis=0) + np.roll(moved, -1, axis=0)) / 2  # neighbours in ACTIONS are sideways
        best = (success_rate * moved + (1 - success_rate) * slipped).max(axis=0)
        chances[left] = np.where(over, chances[0], _SOONER * best)
    return chances


def _clipped(lake: Lake, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[Any, Any]:
    return np.clip(rows, 0, lake.height - 1), np.clip(columns, 0, lake.width - 1)


class FrozenLake:
    """Observations are the cells as codes 0 to 5 (`SYMBOLS`); actions 1 to 4 are left, down, right, up.

    On slippery ice a step goes where it should with `success_rate`, else to one of the two sides. A task is a map as
    text; without one the map comes from the seed. Members of a group share the map and slip each in their own way.
    `observation_format`, `symbols`, `meanings` and `images` say how language models see a lake.
    """

    plays_by_chance = True
    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}
    render_mode = "rgb_array"

    def __init__(
        self,
        *,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = True,
        success_rate: float = 1 / 3,
        max_steps: int = 100,
        split: Split = "train",
        observation_format: Format = "grid",
        symbols: Sequence[str] | None = None,
        meanings: Sequence[str] | None = None,
        images: bool = False,
    ) -> None:
        self.view = make_view(
            "frozen_lake",
            USUAL_VIEW,
            observation_format=observation_format,
            symbols=symbols,
            meanings=meanings,
            images=images,
        )
        check_whole("frozen_lake", least=2, most=_LARGEST, size=size)
        check_whole("frozen_lake", max_steps=max_steps)
        check_bool("frozen_lake", is_slippery=is_slippery)
        check_share("frozen_lake", p=p, success_rate=success_rate)
        check_split("frozen_lake", split)
        self.size, self.p, self.max_steps, self.split = size, float(p), max_steps, split
        self.success_rate = float(success_rate) if is_slippery else 1.0
        self.steps = 0
        self.lake: Lake
        self.player = (0, 0)
        self._luck: np.random.Generator

    @property
    def action_space(self) -> Any:
        import gymnasium.spaces  # noqa: PLC0415 (a fifth of a second, for those who ask)

        return gymnasium.spaces.Discrete(4, start=1)

    @property
    def observation_space(self) -> Any:
        import gymnasium.spaces  # noqa: PLC0415

        return gymnasium.spaces.Box(0, len(SYMBOLS) - 1, (self.size, self.size), np.uint8)

    @property
    def cells(self) -> Cells:
        return self.lake.cells(self.player)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Cells, dict[str, Any]]:
        options = options or {}
        seed = fresh_seed() if seed is None else seed
        task = options.get("task")
        self.lake = (
            make_lake(seed, self.split, self.size, self.p) if task is None else read_lake(task, self.view.symbols)
        )
        self._luck = generator(seed, self.split, _LUCK, options.get("member", 0))
        self.player, self.steps = self.lake.start, 0
        return self.cells, {}

    def step(self, action: int) -> tuple[Cells, float, bool, bool, dict[str, Any]]:
        action = grids.check_action(action, NAMES)
        self.steps += 1
        before, self.player = self.player, self.lake.after(self.player, self._slip(action))
        success, fell = self.player == self.lake.goal, self.player in self.lake.holes
        truncated = self.steps >= self.max_steps and not success and not fell
        info = {"action_is_effective": self.player != before, "success": success}
        return self.cells, float(success), success or fell, truncated, info

    def _slip(self, action: int) -> int:
        drawn = self._luck.random()
        if drawn < self.success_rate:
            return action
        aside = 1 if drawn < (1 + self.success_rate) / 2 else -1
        return (action - 1 + aside) % len(ACTIONS) + 1

    def places(self) -> list[tuple[str, list[Place]]]:
        """Where everything but ice is."""
        lake, at = self.lake, self.player
        you = "You, on the goal" if at == lake.goal else "You, in a hole" if at in lake.holes else "You"
        return [("Start", [lake.start]), ("Goal", [lake.goal]), (you, [at]), ("Holes", sorted(lake.holes))]

    def render(self) -> NDArray[np.uint8]:
        return grids.draw(self.cells, TILES)


_RULES = """\
You are crossing a frozen lake. Reach the goal without falling into a hole.

{legend}

Reaching the goal gives 1, all else 0; a hole ends the game.{ice}
Your actions are: Left, Down, Right, Up."""
_SLIPPERY = "\nThe ice is slippery: you may slide to the left or right of where you wanted to go."


class FrozenLakeText(GridText[FrozenLake]):
    """The expert knows how the ice slips, but not when."""

    names = NAMES

    def system_prompt(self) -> str:
        rules = _RULES.format(legend=self.legend("the lake"), ice=_SLIPPERY if self._env.success_rate < 1 else "")
        return f"{rules}\n\n{turn_format(self._options, 'Right')}"

    def solve(self) -> str:
        """One action at a time, as the next one depends on where the ice leads."""
        env = self._env
        steps = min(env.max_steps, _FORESIGHT)
        left = min(env.max_steps - env.steps - 1, steps)
        chances = best_chances(env.lake, env.success_rate, steps)[left]
        moved = [chances[env.lake.after(env.player, action)] for action in ACTIONS]
        slipped = [(moved[at - 1] + moved[(at + 1) % 4]) / 2 for at in range(4)]
        best = np.argmax([env.success_rate * moved[at] + (1 - env.success_rate) * slipped[at] for at in range(4)])
        return f"<think>This way is the safest.</think><answer>{NAMES[best]}</answer>"
