"""Rooms by reverse play: start from the solved room and pull boxes away, so that every room can be solved."""

import functools
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout_envs.seeding import PARTS, generator, split_by_content
from asyncrollout_envs.sokoban.boards import ACTIONS, Board, Push, bits, shifted

_TRIES = 100
_MOST_STATES = 500  # of one reverse play: a few milliseconds
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


@dataclass(frozen=True)
class _Pulled:
    """A state of reverse play; the pushes that lead from it back to the solved room, the next one first."""

    player: int
    boxes: int
    places: tuple[int, ...]  # of the boxes, each at the index of its target
    pushes: tuple[Push, ...] = ()


@functools.lru_cache(maxsize=1024)
def make_room(
    seed: int, split: str, *, dim_room: tuple[int, int], num_boxes: int, search_depth: int, max_moves: int
) -> Room:
    """The room of a seed, always the same one; members of a group, who share it, find it made.

    The shape of its floor says which split a room is for, so that no two splits share one.
    """
    rng = generator(seed, split)
    tries = 0
    for _ in range(_TRIES * len(PARTS)):
        floor = _dig(rng, *dim_room)
        if split_by_content((dim_room, floor)) != split:
            continue
        tries += 1
        if tries > _TRIES:
            break
        cells = list(bits(floor))
        if len(cells) > num_boxes:
            targets = sorted(int(at) for at in rng.choice(cells, size=num_boxes, replace=False))
            board = Board(*dim_room, floor, targets=sum(1 << at for at in targets))
            room = _pull_away(rng, board, targets, search_depth, max_moves)
            if room is not None:
                return room
    raise UsageError(
        f"sokoban: no room was found for split={split!r} with dim_room={dim_room}, num_boxes={num_boxes}, "
        f"search_depth={search_depth}, max_steps={max_moves}: give fewer boxes, or more room, depth or steps"
    )


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
    rng: np.random.Generator, board: Board, targets: list[int], search_depth: int, max_moves: int
) -> Room | None:
    """The boxes as far from their targets as best-first search gets them, none of them on any target."""
    found: list[_Pulled] = []
    furthest = 0
    tie = itertools.count()
    start = int(rng.choice(list(bits(board.floor & ~board.targets))))
    waiting = [(0, next(tie), _Pulled(start, board.targets, tuple(targets)))]
    seen: set[tuple[int, int]] = set()
    for _ in range(_MOST_STATES):
        if not waiting:
            break
        nearness, _, state = heapq.heappop(waiting)
        region = board.reachable(state.player, state.boxes)
        key = (state.boxes, region & -region)
        if key in seen:
            continue
        seen.add(key)
        if -nearness > furthest and not state.boxes & board.targets:
            furthest = -nearness
            found.append(state)
        if len(state.pushes) < search_depth:
            for pulled in _pulls(board, state, region):
                heapq.heappush(waiting, (-_displacement(board, pulled.places, targets), next(tie), pulled))
    for state in reversed(found):
        player = int(rng.choice(list(bits(board.reachable(state.player, state.boxes)))))
        solution = board.moves(player, state.boxes, state.pushes)
        if len(solution) <= max_moves:
            return Room(board, player, state.boxes, tuple(solution))
    return None


def _pulls(board: Board, state: _Pulled, region: int) -> Iterator[_Pulled]:
    boxes = state.boxes
    free = board.floor & ~boxes
    for action in ACTIONS:
        offset = board.offset(action)
        # The player stands between the box and the free cell that it steps back to.
        for box in bits(boxes & shifted(region, offset) & shifted(free, 2 * offset)):
            stand = box - offset
            places = tuple(stand if at == box else at for at in state.places)
            moved = boxes ^ (1 << box | 1 << stand)
            yield _Pulled(stand - offset, moved, places, ((stand, action), *state.pushes))


def _displacement(board: Board, places: Sequence[int], targets: Sequence[int]) -> int:
    """How far the boxes are from where they began."""
    width = board.width
    return sum(
        abs(at // width - target // width) + abs(at % width - target % width)
        for at, target in zip(places, targets, strict=True)
    )
