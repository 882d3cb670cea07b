"""A Sokoban board as bits: cell `i` is bit `i`, so that a flood of the whole board is a few shifts of one integer.

The border must be walls; then no shift carries a free cell's bit around an edge.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from asyncrollout_envs.grids import Cells

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
SYMBOLS = "#_O√XPS"
ACTIONS = (1, 2, 3, 4)
NAMES = ("Up", "Down", "Left", "Right")

Push = tuple[int, int]
"""The cell of a box, and the action that pushes it on."""

_ON_TARGET = {FLOOR: TARGET, BOX: BOX_ON_TARGET, PLAYER: PLAYER_ON_TARGET}


@dataclass(frozen=True)
class Board:
    """What never moves: floor and targets. Where the boxes and the player are is a state, kept beside it."""

    height: int
    width: int
    floor: int
    targets: int

    def offset(self, action: int) -> int:
        return (-self.width, self.width, -1, 1)[action - 1]

    def after(self, player: int, boxes: int, action: int) -> tuple[int, int]:
        """The player and the boxes after a move; unchanged where something is in the way."""
        offset = self.offset(action)
        then = player + offset
        if boxes >> then & 1:
            if not (self.floor & ~boxes) >> then + offset & 1:
                return player, boxes
            boxes ^= 1 << then | 1 << then + offset
        elif not self.floor >> then & 1:
            return player, boxes
        return then, boxes

    def reachable(self, player: int, boxes: int) -> int:
        """All cells that the player can walk to."""
        free, width = self.floor & ~boxes, self.width
        region, grown = 0, 1 << player
        while grown != region:
            region = grown
            grown = (region | region << 1 | region >> 1 | region << width | region >> width) & free
        return region

    def rings(self, player: int, boxes: int, most: int) -> list[int]:
        """The cells that the player can walk to in 0, 1, 2, ... moves, up to `most` of them."""
        free, width = self.floor & ~boxes, self.width
        ring = region = 1 << player
        rings: list[int] = []
        while ring and len(rings) <= most:
            rings.append(ring)
            ring = (ring << 1 | ring >> 1 | ring << width | ring >> width) & free & ~region
            region |= ring
        return rings

    def walk(self, start: int, goal: int, boxes: int) -> list[int]:
        """The moves of a shortest walk; the goal must be reachable."""
        free = self.floor & ~boxes
        came_by: dict[int, int] = {start: 0}
        waiting = deque([start])
        while goal not in came_by:
            at = waiting.popleft()
            for action in ACTIONS:
                then = at + self.offset(action)
                if free >> then & 1 and then not in came_by:
                    came_by[then] = action
                    waiting.append(then)
        moves: list[int] = []
        while goal != start:
            moves.append(came_by[goal])
            goal -= self.offset(moves[-1])
        return moves[::-1]

    def moves(self, player: int, boxes: int, pushes: Iterable[Push]) -> list[int]:
        """All moves of the player for a series of pushes, walks included."""
        moves: list[int] = []
        for box, action in pushes:
            offset = self.offset(action)
            moves += [*self.walk(player, box - offset, boxes), action]
            player, boxes = box, boxes ^ (1 << box | 1 << box + offset)
        return moves

    def cells(self, player: int, boxes: int) -> Cells:
        codes = np.full(self.height * self.width, WALL, dtype=np.uint8)
        for at in bits(self.floor):
            here = PLAYER if at == player else BOX if boxes >> at & 1 else FLOOR
            codes[at] = _ON_TARGET[here] if self.targets >> at & 1 else here
        return codes.reshape(self.height, self.width)


def bits(mask: int) -> Iterator[int]:
    """The cells of a set, in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def shifted(mask: int, offset: int) -> int:
    return mask << offset if offset > 0 else mask >> -offset


def from_cells(cells: Cells) -> tuple[Board, int, int]:
    """The board, the player's cell and the boxes of a grid of codes."""

    def where(*codes: int) -> int:
        return sum(1 << int(at) for at in np.flatnonzero(np.isin(cells, codes)))

    board = Board(
        height=cells.shape[0],
        width=cells.shape[1],
        floor=where(*range(FLOOR, PLAYER_ON_TARGET + 1)),
        targets=where(TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET),
    )
    return board, where(PLAYER, PLAYER_ON_TARGET).bit_length() - 1, where(BOX, BOX_ON_TARGET)
