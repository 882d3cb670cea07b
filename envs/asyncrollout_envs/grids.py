"""What grid worlds share: cells as text and back, actions with names, pictures made of small tiles."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError
from asyncrollout.text.replies import Projecting, read_choice
from asyncrollout.types import Observation, Parsed, TextOptions
from asyncrollout_envs.grid_view import GridView, Place, list_places

Cells = NDArray[np.uint8]
Colour = tuple[int, int, int]
Tile = NDArray[np.uint8]

TILE = 24
"""The side of a tile in pixels."""


def to_text(cells: Cells, symbols: Sequence[str]) -> str:
    return "\n".join("".join(symbols[code] for code in row) for row in cells.tolist())


def from_text(env: str, text: Any, symbols: Sequence[str]) -> Cells:
    """The cells of a map that a user wrote."""
    if not isinstance(text, str):
        raise UsageError(f"{env}: a task is a map as text, not {type(text).__name__}")
    rows = text.strip("\r\n").splitlines() if " " in symbols else [line.strip() for line in text.strip().splitlines()]
    if len({len(row) for row in rows}) != 1:
        raise UsageError(f"{env}: the rows of the map have different lengths: {[len(row) for row in rows]}")
    unknown = sorted({symbol for row in rows for symbol in row} - set(symbols))
    if unknown:
        raise UsageError(f"{env}: {unknown[0]!r} is not a symbol of a map; available: {' '.join(symbols)}")
    return np.array([[symbols.index(symbol) for symbol in row] for row in rows], dtype=np.uint8)


class Grid(Protocol):
    @property
    def cells(self) -> Cells: ...

    @property
    def view(self) -> GridView: ...

    def places(self) -> list[tuple[str, list[Place]]]: ...

    def render(self) -> NDArray[np.uint8]: ...


G = TypeVar("G", bound=Grid)


class GridText(Projecting[G]):
    """The text interface but for prompt and expert: grids of symbols in, names of actions out, which count from 1."""

    names: ClassVar[tuple[str, ...]]
    default_action = 1

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        numbered = list(enumerate(cls.names, start=1))
        choices = {name.lower(): action for action, name in numbered} | {str(action): action for action, _ in numbered}
        return read_choice(reply, options, choices)

    def describe(self, observation: Cells) -> str | Observation:
        env, view = self._env, self._env.view
        if view.images:
            return Observation("This is what you see.", images=(env.render(),), data=observation)
        grid = to_text(observation, view.symbols)
        if view.observation_format == "grid":
            return grid
        height, width = observation.shape
        places = list_places(height, width, env.places())
        return places if view.observation_format == "coord" else f"Places:\n{places}\n\nGrid:\n{grid}"

    def anchor(self) -> str:
        return to_text(self._env.cells, self._env.view.symbols)

    def legend(self, what: str) -> str:
        """The paragraph of the rules on how the world is shown."""
        view = self._env.view
        if view.images:
            return f"You see a picture of {what}."
        if view.observation_format == "coord":
            return f"You see where everything in {what} is."
        more = ", and the places of what is in it" if view.observation_format == "grid_coord" else ""
        return f"You see {what} as a grid of these symbols{more}:\n{view.legend}"

    def tell(self, action: int) -> str:
        return self.names[action - 1]


def check_action(action: Any, names: Sequence[str]) -> int:
    """An action of an env with these names; one that is none is told what there is."""
    if isinstance(action, int | np.integer) and not isinstance(action, bool) and 1 <= action <= len(names):
        return int(action)
    known = ", ".join(f"{number} ({name.lower()})" for number, name in enumerate(names, start=1))
    raise ValueError(f"action {action!r:.100} is not one of {known}")


def draw(cells: Cells, tiles: Sequence[Tile]) -> NDArray[np.uint8]:
    """An RGB picture, one tile for each cell."""
    height, width = cells.shape
    placed = np.stack(tiles)[cells]  # rows, columns, then the pixels of a tile
    return np.ascontiguousarray(placed.swapaxes(1, 2).reshape(height * TILE, width * TILE, 3))


def plain(colour: Colour) -> Tile:
    return np.full((TILE, TILE, 3), colour, dtype=np.uint8)


def framed(tile: Tile, colour: Colour, *, inset: int = 0, thick: int = 1) -> Tile:
    """With a square outline."""
    from_edge = _from_edge()
    return _painted(tile, (from_edge >= inset) & (from_edge < inset + thick), colour)


def square(tile: Tile, colour: Colour, *, inset: int) -> Tile:
    return _painted(tile, _from_edge() >= inset, colour)


def disc(tile: Tile, colour: Colour, *, radius: float, at: tuple[float, float] = (0.5, 0.5)) -> Tile:
    """A disc with its centre at a fraction of height and width."""
    rows, columns = np.mgrid[:TILE, :TILE] + 0.5
    return _painted(tile, np.hypot(rows - at[0] * TILE, columns - at[1] * TILE) <= radius * TILE, colour)


def cross(tile: Tile, colour: Colour, *, inset: int, thick: float = 1.5) -> Tile:
    rows, columns = np.mgrid[:TILE, :TILE]
    diagonals = np.minimum(abs(rows - columns), abs(rows + columns - (TILE - 1)))
    return _painted(tile, (diagonals <= thick) & (_from_edge() >= inset), colour)


def _from_edge() -> NDArray[np.int64]:
    steps = np.arange(TILE)
    to_edge = np.minimum(steps, steps[::-1])
    return np.minimum(to_edge[:, None], to_edge[None, :])


def _painted(tile: Tile, where: NDArray[np.bool_], colour: Colour) -> Tile:
    tile = tile.copy()
    tile[where] = colour
    return tile
