"""A* over pushes: which moves bring every box to a target, and how many are needed at least."""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Mapping

from asyncrollout_envs.sokoban.boards import ACTIONS, Board, Push, bits, shifted

MOST_STATES = 5_000
"""How many states are looked at before the search gives up."""

_PUSHES = 8  # what the pushes from a ring cost, in rings

State = tuple[int, int]
"""The boxes, and the player's cell after the push that led there."""


def solve(board: Board, player: int, boxes: int, *, most_states: int = MOST_STATES) -> list[int] | None:
    """The moves of a solution with few pushes; None if there is none, or none was found within the limit."""
    distances = _push_distances(board)
    first = _still_to_go(distances, boxes)
    if first is None:
        return None
    start = (boxes, player)
    came_from: dict[State, tuple[State, int]] = {}
    order = itertools.count()
    waiting = [(first, next(order), 0, start, board.reachable(player, boxes))]
    seen: set[tuple[int, int]] = set()
    while waiting and len(seen) < most_states:
        _, _, pushes, state, region = heapq.heappop(waiting)
        if state[0] == board.targets:
            return board.moves(player, boxes, _pushes_to(state, start, came_from))
        key = (state[0], region & -region)
        if key in seen:
            continue
        seen.add(key)
        for pushed, action in _pushes(board, state[0], region):
            then = _still_to_go(distances, pushed[0])
            if then is None or pushed in came_from or pushed == start:
                continue
            came_from[pushed] = (state, action)
            region_then = board.reachable(pushed[1], pushed[0])
            heapq.heappush(waiting, (pushes + 1 + then, next(order), pushes + 1, pushed, region_then))
    return None


class Allowance:
    """What searches may cost together, in rings: a limit that is the same on every machine."""

    def __init__(self, left: int) -> None:
        self._left = left

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def spend(self, rings: int) -> bool:
        """Whether it is enough."""
        self._left -= rings
        return self._left > 0


def needs_moves(
    board: Board,
    player: int,
    boxes: int,
    moves: int,
    allowance: Allowance | None = None,
    *,
    most_states: int = MOST_STATES,
) -> bool:
    """Whether it is certain that every solution has at least so many moves; False also if a limit is too low."""
    distances = _push_distances(board)
    taken = {(boxes, player): 0}
    waiting = [(0, 0, (boxes, player))]
    looked_at = 0
    while waiting:
        _, so_far, state = heapq.heappop(waiting)
        if state[0] == board.targets:
            return so_far >= moves
        if so_far > taken[state]:
            continue
        looked_at += 1
        if looked_at > most_states:
            return False
        rings = board.rings(state[1], state[0], moves - so_far - 2)
        if allowance is not None and not allowance.spend(_PUSHES * len(rings)):
            return False
        for walked, ring in enumerate(rings):
            for pushed, _ in _pushes(board, state[0], ring):
                count = so_far + walked + 1
                then = _still_to_go(distances, pushed[0])
                if then is not None and count + then < min(moves, taken.get(pushed, moves) + then):
                    taken[pushed] = count
                    heapq.heappush(waiting, (count + then, count, pushed))
    return True


def _still_to_go(distances: Mapping[int, int], boxes: int) -> int | None:
    """Pushes that are needed at least; None if a box is lost."""
    steps = [distances.get(at) for at in bits(boxes)]
    return None if None in steps else sum(step for step in steps if step is not None)


def _pushes(board: Board, boxes: int, region: int) -> Iterator[tuple[State, int]]:
    free = board.floor & ~boxes
    for action in ACTIONS:
        offset = board.offset(action)
        for box in bits(boxes & shifted(region, offset) & shifted(free, -offset)):
            yield ((boxes ^ 1 << box | 1 << box + offset), box), action


def _push_distances(board: Board) -> dict[int, int]:
    """For each cell, how many pushes a lone box needs to the nearest target; cells without an entry are lost."""
    distances = dict.fromkeys(bits(board.targets), 0)
    waiting = deque(distances)
    while waiting:
        at = waiting.popleft()
        for action in ACTIONS:
            offset = board.offset(action)
            source, behind = at - offset, at - 2 * offset
            pushable = source > 0 and behind > 0 and board.floor >> source & 1 and board.floor >> behind & 1
            if pushable and source not in distances:
                distances[source] = distances[at] + 1
                waiting.append(source)
    return distances


def _pushes_to(end: State, start: State, came_from: dict[State, tuple[State, int]]) -> list[Push]:
    pushes = []
    while end != start:
        before, action = came_from[end]
        pushes.append((end[1], action))  # the player ends up where the box was
        end = before
    return pushes[::-1]
