"""Sokoban: push every box onto a target."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError
from asyncrollout_envs import grids
from asyncrollout_envs.grid_view import Format, GridView, Place, make_view
from asyncrollout_envs.grids import Cells
from asyncrollout_envs.kwargs import check_whole
from asyncrollout_envs.seeding import Split, check_split, fresh_seed
from asyncrollout_envs.sokoban import boards
from asyncrollout_envs.sokoban.rooms import Room, RoomSettings, make_room

STEP, BOX_PLACED, SOLVED = -0.1, 1.0, 10.0
_LARGEST = 64
_USUAL_STEPS = 100

_FLOOR = grids.framed(grids.plain((222, 214, 198)), (208, 199, 181))
_WALL = grids.framed(grids.square(grids.plain((84, 72, 66)), (116, 101, 92), inset=3), (64, 54, 50), inset=11)
_TARGET = grids.cross(grids.framed(_FLOOR, (196, 62, 52), inset=1, thick=2), (196, 62, 52), inset=8)


def _box(tile: grids.Tile, colour: grids.Colour) -> grids.Tile:
    return grids.framed(grids.cross(grids.square(tile, colour, inset=3), (92, 60, 26), inset=5), (92, 60, 26), inset=3)


def _player(tile: grids.Tile) -> grids.Tile:
    tile = grids.disc(grids.disc(tile, (24, 52, 96), radius=0.36), (47, 94, 160), radius=0.3)
    for side in (0.39, 0.61):
        tile = grids.disc(tile, (255, 255, 255), radius=0.07, at=(0.42, side))
    return tile


TILES = (
    _WALL,
    _FLOOR,
    _TARGET,
    _box(_FLOOR, (98, 158, 82)),
    _box(_FLOOR, (186, 130, 66)),
    _player(_FLOOR),
    _player(_TARGET),
)


_MEANINGS = ("wall", "floor", "target", "box on a target", "box", "you", "you on a target")
USUAL_VIEW = GridView(tuple(boards.SYMBOLS), _MEANINGS)


class Sokoban:
    """Observations are the cells as codes 0 to 6 (`boards.SYMBOLS`); actions 1 to 4 are up, down, left, right.

    A task is a room as text, in the same symbols; without one the room comes from the seed. The shortest solution of
    such a room has `min_moves` to `max_moves` moves. `search_depth`, gym-sokoban's name for the longest reverse play in
    moves, is a bound, too. Which room a seed gives does not depend on `max_steps`, so a room that may not fit it is an
    error.
    `observation_format`, `symbols`, `meanings` and `images` say how language models see a room.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}
    render_mode = "rgb_array"

    def __init__(
        self,
        *,
        dim_room: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        max_steps: int = _USUAL_STEPS,
        search_depth: int = 300,
        min_moves: int = 1,
        max_moves: int | None = None,
        split: Split = "train",
        observation_format: Format = "grid",
        symbols: Sequence[str] | None = None,
        meanings: Sequence[str] | None = None,
        images: bool = False,
    ) -> None:
        if not isinstance(dim_room, tuple | list) or len(dim_room) != 2:
            raise UsageError(f"sokoban: dim_room={dim_room!r} is not a height and a width, such as (6, 6)")
        height, width = dim_room
        check_whole("sokoban", least=4, most=_LARGEST, **{"dim_room[0]": height, "dim_room[1]": width})
        check_whole("sokoban", num_boxes=num_boxes, max_steps=max_steps, search_depth=search_depth, min_moves=min_moves)
        self._chooses_moves = max_moves is None
        if max_moves is None:
            max_moves = min(int(num_boxes * (height + width - 2)), _USUAL_STEPS)
        check_whole("sokoban", max_moves=max_moves)
        check_split("sokoban", split)
        self.view = make_view(
            "sokoban",
            USUAL_VIEW,
            observation_format=observation_format,
            symbols=symbols,
            meanings=meanings,
            images=images,
        )
        self.dim_room = int(height), int(width)
        most = min(int(max_moves), search_depth)
        self.settings = _checked(RoomSettings(self.dim_room, int(num_boxes), int(min_moves), most, split))
        self.max_steps = max_steps
        self._budget: int = max_steps  # moves of an episode
        self.steps = 0
        self.player, self.boxes = 0, 0
        self.room: Room

    def limit_actions(self, most: int) -> None:
        """Whoever plays ends episodes after so many actions; rooms are made for that, unless `max_moves` was given."""
        self._budget = min(self.max_steps, most)
        if self._chooses_moves:
            self.settings = _checked(self.settings._replace(max_moves=min(self.settings.max_moves, most)))

    @property
    def action_space(self) -> Any:
        import gymnasium.spaces  # noqa: PLC0415 (a fifth of a second, for those who ask)

        return gymnasium.spaces.Discrete(4, start=1)

    @property
    def observation_space(self) -> Any:
        import gymnasium.spaces  # noqa: PLC0415

        return gymnasium.spaces.Box(0, len(boards.SYMBOLS) - 1, self.dim_room, np.uint8)

    @property
    def cells(self) -> Cells:
        return self.room.board.cells(self.player, self.boxes)

    @property
    def solved(self) -> bool:
        return self.boxes == self.room.board.targets

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Cells, dict[str, Any]]:
        task = (options or {}).get("task")
        if task is None:
            if self.settings.max_moves > self._budget:
                raise UsageError(
                    f"sokoban: a room may need {self.settings.max_moves} moves, but an episode has {self._budget}: set "
                    f"max_moves={self._budget}, or more max_steps and max_actions_per_traj"
                )
            self.room = make_room(fresh_seed() if seed is None else seed, self.settings)
        else:
            self.room = read_room(task, self.view.symbols)
        self.player, self.boxes, self.steps = self.room.player, self.room.boxes, 0
        return self.cells, {}

    def step(self, action: int) -> tuple[Cells, float, bool, bool, dict[str, Any]]:
        action = grids.check_action(action, boards.NAMES)
        self.steps += 1
        placed = (self.boxes & self.room.board.targets).bit_count()
        before = self.player
        self.player, self.boxes = self.room.board.after(self.player, self.boxes, action)
        gained = (self.boxes & self.room.board.targets).bit_count() - placed
        reward = STEP + gained * BOX_PLACED + (SOLVED if self.solved else 0.0)
        info = {"action_is_effective": self.player != before, "success": self.solved}
        return self.cells, reward, self.solved, self.steps >= self.max_steps and not self.solved, info

    def places(self) -> list[tuple[str, list[Place]]]:
        """Where everything is but the walls around it; a target stays one below a box or the player."""
        cells, aims = self.cells, self.room.board.cells(self.room.player, 0)
        inside = np.pad(cells[1:-1, 1:-1], 1, constant_values=boards.FLOOR)

        def found(where: Cells, *codes: int) -> list[Place]:
            return [(int(row), int(column)) for row, column in np.argwhere(np.isin(where, codes))]

        return [
            ("Targets", found(aims, boards.TARGET, boards.PLAYER_ON_TARGET)),
            ("Boxes", found(cells, boards.BOX)),
            ("Boxes on targets", found(cells, boards.BOX_ON_TARGET)),
            ("You", found(cells, boards.PLAYER)),
            ("You, on a target", found(cells, boards.PLAYER_ON_TARGET)),
            ("Walls, beside those around it", found(inside, boards.WALL)),
        ]

    def render(self) -> NDArray[np.uint8]:
        return grids.draw(self.cells, TILES)


def _checked(settings: RoomSettings) -> RoomSettings:
    if settings.min_moves > settings.max_moves:
        raise UsageError(
            f"sokoban: min_moves={settings.min_moves} is more than {settings.max_moves}, the most that max_moves, "
            "search_depth, max_actions_per_traj and the room's size allow: set max_moves"
        )
    return settings


def read_room(text: Any, symbols: Sequence[str] = boards.SYMBOLS) -> Room:
    """A room as a user wrote it: one player, as many boxes as targets, not solved yet, walls around."""
    cells = grids.from_text("sokoban", text, symbols)
    border = np.concatenate([cells[0], cells[-1], cells[:, 0], cells[:, -1]])
    board, player, boxes = boards.from_cells(cells)
    players = int(np.isin(cells, (boards.PLAYER, boards.PLAYER_ON_TARGET)).sum())
    found = boxes.bit_count(), board.targets.bit_count()
    wrong = {
        "the border must be walls": bool(border.any()),
        f"it must have one player, not {players}": players != 1,
        f"it must have as many boxes as targets, and at least one, not {found[0]} and {found[1]}": found[0] != found[1]
        or not boxes,
        "it is solved already": boxes == board.targets,
    }
    for reason in (reason for reason, is_so in wrong.items() if is_so):
        raise UsageError(f"sokoban: a room cannot be played: {reason}")
    return Room(board, player, boxes, solution=())
