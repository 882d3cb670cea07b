"""Rooms by reverse play: start from the solved room and pull boxes away, so that every room can be solved.

Reverse play counts moves, walks included. Its count is the length of a solution, so no room needs more moves than asked
for. Where a least number is asked for, a search proves that no shorter solution exists.
"""

import functools
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout_envs.seeding import PARTS, Split, generator, split_by_content
from asyncrollout_envs.sokoban.boards import ACTIONS, Board, Push, bits, shifted
from asyncrollout_envs.sokoban.solver import Allowance, needs_moves

_TRIES = 100  # floors of a seed
_TRIES_OF_SETTINGS = 1_000
_SETTINGS_SEED = 0
_FEW_CELLS = 12
_MOST_STATES = 500  # of one reverse play: a few milliseconds
_MOST_WORK, _MOST_WORK_OF_SETTINGS = 2_000_000, 10_000_000  # rings: some seconds
_TURN = 0.35
_BRUSHES = (  # the cells around the walker that become floor
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
    ((-1, 0), (-1, 1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (0, 1), (1, 0)),
)
_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True)
class Room:
    """A board, where its player and boxes start, and the moves of one solution."""

    board: Board
    player: int
    boxes: int
    solution: tuple[int, ...]


class RoomSettings(NamedTuple):
    """What rooms are asked for. The shortest solution of each has `min_moves` to `max_moves` moves."""

    dim_room: tuple[int, int]
    num_boxes: int
    min_moves: int
    max_moves: int
    split: str


class _Pulled(NamedTuple):
    """A state of reverse play; the pushes that lead from it back to the solved room, the next one first."""

    player: int
    boxes: int
    places: tuple[int, ...]  # of the boxes, each at the index of its target
    moves: int = 0  # of the player, from here to the solved room
    pushes: tuple[Push, ...] = ()


@functools.lru_cache(maxsize=1024)
def make_room(seed: int, settings: RoomSettings) -> Room:
    """The room of a seed, always the same one; members of a group, who share it, find it made.

    Settings have a room for every seed or for none: a seed without luck gets the room that shows that there is one.
    """
    some_room = _find_any(settings)
    if some_room is None:
        raise UsageError(
            f"sokoban: no room was found for split={settings.split!r} with dim_room={settings.dim_room}, "
            f"num_boxes={settings.num_boxes} and a shortest solution of {settings.min_moves} to {settings.max_moves} "
            "moves: set fewer boxes, a larger room, fewer min_moves or more max_moves"
        )
    return _try(generator(seed, settings.split), settings, _TRIES, _MOST_WORK) or some_room


@functools.lru_cache(maxsize=64)
def _find_any(settings: RoomSettings) -> Room | None:
    """A room of these settings, by many more tries than a seed has."""
    height, width = settings.dim_room
    cells = (height - 2) * (width - 2)
    if max(height, width) < 5 or cells <= 2 * settings.num_boxes:  # a push takes three cells in a row
        return None
    if settings.num_boxes > settings.max_moves:  # each box is pushed
        return None
    return _try(generator(_SETTINGS_SEED, settings.split, 1), settings, _TRIES_OF_SETTINGS, _MOST_WORK_OF_SETTINGS)


def _try(rng: np.random.Generator, settings: RoomSettings, tries: int, most_work: int) -> Room | None:
    """A room out of so many floors of the split, if there is one."""
    allowance = Allowance(most_work)
    for _ in range(tries * len(PARTS)):
        floor = _dig(rng, *settings.dim_room)
        cells = list(bits(floor))
        if len(cells) <= 2 * settings.num_boxes:
            continue
        targets = sorted(int(at) for at in rng.choice(cells, size=settings.num_boxes, replace=False))
        if _split_of(settings.dim_room, floor, targets) != settings.split:
            continue
        tries -= 1
        if tries < 0 or allowance.is_spent:
            break
        board = Board(*settings.dim_room, floor, targets=sum(1 << at for at in targets))
        room = _pull_away(rng, board, targets, settings, allowance)
        if room is not None:
            return room
    return None


def _split_of(dim_room: tuple[int, int], floor: int, targets: list[int]) -> Split:
    """No two splits share a floor; small rooms have too few floors, so there no two share a floor with its targets."""
    is_small = (dim_room[0] - 2) * (dim_room[1] - 2) < _FEW_CELLS
    return split_by_content((dim_room, floor, *targets) if is_small else (dim_room, floor))


def _dig(rng: np.random.Generator, height: int, width: int) -> int:
    """The floor: a walk in random directions with a brush of random shape, inside a border of walls."""
    dug = np.zeros((height, width), dtype=bool)
    row, column = int(rng.integers(1, height - 1)), int(rng.integers(1, width - 1))
    direction = _DIRECTIONS[rng.integers(len(_DIRECTIONS))]
    for _ in range(int(1.7 * (height + width))):
        ahead = row + direction[0], column + direction[1]
        blocked = not (0 < ahead[0] < height - 1 and 0 < ahead[1] < width - 1)
        if blocked or rng.random() < _TURN:
            direction = _DIRECTIONS[rng.integers(len(_DIRECTIONS))]
        row = min(max(row + direction[0], 1), height - 2)
        column = min(max(column + direction[1], 1), width - 2)
        for down, right in _BRUSHES[rng.integers(len(_BRUSHES))]:
            if 0 < row + down < height - 1 and 0 < column + right < width - 1:
                dug[row + down, column + right] = True
    return sum(1 << int(at) for at in np.flatnonzero(dug))


def _pull_away(
    rng: np.random.Generator, board: Board, targets: list[int], settings: RoomSettings, allowance: Allowance
) -> Room | None:
    """The boxes as far from their targets as best-first search gets them, none of them on any target."""
    found: list[_Pulled] = []
    furthest = 0
    tie = itertools.count()
    start = int(rng.choice(list(bits(board.floor & ~board.targets))))
    waiting = [(0, 0, next(tie), _Pulled(start, board.targets, tuple(targets)))]
    seen: set[tuple[int, int]] = set()
    for _ in range(_MOST_STATES):
        if not waiting or allowance.is_spent:
            break
        nearness, _, _, state = heapq.heappop(waiting)
        region = board.reachable(state.player, state.boxes)
        key = (state.boxes, region & -region)
        if key in seen:
            continue
        seen.add(key)
        if -nearness > furthest and not state.boxes & board.targets:
            furthest = -nearness
            found.append(state)
        for pulled in _pulls(board, state, region, settings.max_moves, allowance):
            heapq.heappush(waiting, (-_displacement(board, pulled.places, targets), pulled.moves, next(tie), pulled))
    rooms = (_placed(rng, board, state, settings, allowance) for state in reversed(found))
    return next((room for room in rooms if room is not None), None)


def _pulls(board: Board, state: _Pulled, region: int, max_moves: int, allowance: Allowance) -> Iterator[_Pulled]:
    boxes = state.boxes
    free = board.floor & ~boxes
    most = max_moves - state.moves - 1  # moves of the walk to the box
    if most < 0:
        return
    # The player may be anywhere after the last push, so the first pull takes no walk.
    rings = board.rings(state.player, boxes, most) if state.pushes else [region]
    allowance.spend(len(rings))
    for action in ACTIONS:
        offset = board.offset(action)
        # The player stands between the box and the free cell that it steps back to.
        for box in bits(boxes & shifted(region, offset) & shifted(free, 2 * offset)):
            stand = box - offset
            walked = next((walked for walked, ring in enumerate(rings) if ring >> stand & 1), None)
            if walked is not None:
                places = tuple(stand if at == box else at for at in state.places)
                moved = boxes ^ (1 << box | 1 << stand)
                pushes = ((stand, action), *state.pushes)
                yield _Pulled(stand - offset, moved, places, state.moves + walked + 1, pushes)


def _placed(
    rng: np.random.Generator, board: Board, state: _Pulled, settings: RoomSettings, allowance: Allowance
) -> Room | None:
    """The player somewhere that the solution from there has as many moves as asked for; None if that is nowhere."""
    rings = board.rings(state.player, state.boxes, settings.max_moves - state.moves)
    starts = [at for ring in rings[max(0, settings.min_moves - state.moves) :] for at in bits(ring)]
    if not starts:
        return None
    player = int(rng.choice(starts))
    if not needs_moves(board, player, state.boxes, settings.min_moves, allowance):
        return None
    return Room(board, player, state.boxes, tuple(board.moves(player, state.boxes, state.pushes)))


def _displacement(board: Board, places: Sequence[int], targets: Sequence[int]) -> int:
    """How far the boxes are from where they began."""
    width = board.width
    return sum(
        abs(at // width - target // width) + abs(at % width - target % width)
        for at, target in zip(places, targets, strict=True)
    )
