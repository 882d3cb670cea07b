"""How the world moves: the robot's state, and what an action makes of it. Pure; the only dynamics there are."""

import math
from collections.abc import Sequence

import msgspec

from asyncrollout_envs.household.rooms import DEPTH, FLOOR, WIDTH, Furniture, Point, Room

PARTS = {
    "base": slice(0, 3),
    "torso": slice(3, 7),
    "left_arm": slice(7, 14),
    "left_gripper": slice(14, 15),
    "right_arm": slice(15, 22),
    "right_gripper": slice(22, 23),
}
"""Of an action: the layout of BEHAVIOR's R1Pro, whose numbers are from -1 to 1.

The base goes forward, to its left, and turns left; the first three of an arm move its hand forward, left and up; a
gripper closes below 0 and opens above it. Torso and wrists are stiff here: their numbers do nothing.
"""

LENGTH = 23
SIDES = ("left", "right")
STRIDE, TURN, REACH_STEP = 0.25, math.radians(30), 0.22
"""What 1 means in one step: metres of the base, radians of its turn, metres of a hand."""

REST: tuple[Point, Point] = ((0.42, 0.24, 0.85), (0.42, -0.24, 0.85))
"""Where the hands are carried, as seen from the robot: forward, left, up."""

_REACH: Point = (0.95, 0.85, 1.5)
_ACROSS = 0.5  # how far a hand gets to the other side
_GRASP = 0.13
_DOOR_STEP = 0.34
_WALL = 0.1  # nothing lies nearer to one
_FIRM = 0.3  # a gripper's number nearer to 0 changes nothing


class Hand(msgspec.Struct, frozen=True):
    """One hand, as seen from the robot; `holds` is the index of a thing."""

    at: Point
    is_open: bool = True
    holds: int | None = None


class Put(msgspec.Struct, frozen=True):
    """Where a thing is: its lowest point, and what it stands on or in; "" if a hand holds it."""

    at: Point
    on: str


class Door(msgspec.Struct, frozen=True):
    """How far a closet's door is open, and whether it is to be."""

    wanted: bool = False
    opened: float = 0.0


class State(msgspec.Struct, frozen=True):
    """All that changes; `things` are in the room's order, `doors` in that of its closets."""

    x: float
    y: float
    yaw: float
    hands: tuple[Hand, Hand]
    things: tuple[Put, ...]
    doors: tuple[tuple[str, Door], ...]

    def door(self, closet: str) -> Door:
        return dict(self.doors)[closet]

    def is_shut(self, piece: Furniture) -> bool:
        return piece.kind == "closet" and self.door(piece.name).opened < 0.5

    def outside(self, at: Point) -> Point:
        """A point as seen from the robot, in the room."""
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        return self.x + cos * at[0] - sin * at[1], self.y + sin * at[0] + cos * at[1], at[2]

    def seen(self, point: Point) -> Point:
        """A point of the room, as seen from the robot."""
        cos, sin, dx, dy = math.cos(self.yaw), math.sin(self.yaw), point[0] - self.x, point[1] - self.y
        return cos * dx + sin * dy, cos * dy - sin * dx, point[2]


def first_state(room: Room) -> State:
    x, y, yaw = room.start
    things = tuple(Put(at, on) for at, on in room.places)
    doors = tuple((piece.name, Door()) for piece in room.furniture if piece.kind == "closet")
    return State(x, y, yaw, (Hand(REST[0]), Hand(REST[1])), things, doors)


def advance(room: Room, state: State, action: Sequence[float]) -> State:
    """The state a step later."""
    forward, left, turn = action[PARTS["base"]]
    x, y = _moved(room, state, forward * STRIDE, left * STRIDE)
    yaw = math.remainder(state.yaw + turn * TURN, math.tau)
    doors = tuple((name, _swung(door)) for name, door in state.doors)
    state = State(x, y, yaw, state.hands, state.things, doors)
    for side, name in enumerate(SIDES):
        moved = [part * REACH_STEP for part in action[PARTS[f"{name}_arm"]][:3]]
        state = _with_hand_moved(state, side, moved)
        grip = action[PARTS[f"{name}_gripper"]][0]
        if abs(grip) > _FIRM:
            state = _gripped(room, state, side, opens=grip > 0)
    return state


def in_reach(at: Point, side: int) -> bool:
    """Whether a hand can be at a point, as seen from the robot."""
    return math.dist(at, within_reach(at, side)) < 1e-6


def within_reach(at: Point, side: int) -> Point:
    """The nearest point that a hand gets to."""
    low, high = (-_ACROSS, _REACH[1]) if side == 0 else (-_REACH[1], _ACROSS)
    return min(max(at[0], 0.05), _REACH[0]), min(max(at[1], low), high), min(max(at[2], 0.0), _REACH[2])


def handle(piece: Furniture, door: Door) -> Point:
    """Where a door is gripped: at its handle, on the left, or if it stands open, beside its hinge, on the right."""
    (x, y, z), (dx, dy), half = piece.face, piece.front, _half_width(piece)
    if not door.wanted:
        return x + dy * (half - 0.1), y - dx * (half - 0.1), z
    return x + dx * half * 0.2 - dy * half, y + dy * half * 0.2 + dx * half, z


def satisfied(room: Room, state: State) -> tuple[bool, ...]:
    """Which goals are reached: each thing in its place, and each closet that is to be shut again."""
    on = {thing.name: put.on for thing, put in zip(room.things, state.things, strict=True)}
    placed = [on[name] == where for name, where in room.activity.goals]
    all_placed = all(placed)
    return (*placed, *(all_placed and not state.door(closet).wanted for closet in room.activity.shut))


def _half_width(piece: Furniture) -> float:
    return (piece.y1 - piece.y0 if piece.front[0] else piece.x1 - piece.x0) / 2


def _moved(room: Room, state: State, forward: float, left: float) -> tuple[float, float]:
    """Where the base gets to: along a wall or a piece of furniture, it slides."""
    to_x, to_y, _ = state.outside((forward, left, 0.0))
    for x, y in ((to_x, to_y), (to_x, state.y), (state.x, to_y)):
        if room.is_free(x, y):
            return x, y
    return state.x, state.y


def _swung(door: Door) -> Door:
    opened = door.opened + (_DOOR_STEP if door.wanted else -_DOOR_STEP)
    return Door(door.wanted, min(max(opened, 0.0), 1.0))


def _with_hand_moved(state: State, side: int, by: Sequence[float]) -> State:
    hand = state.hands[side]
    at = within_reach((hand.at[0] + by[0], hand.at[1] + by[1], hand.at[2] + by[2]), side)
    state = _with_hand(state, side, Hand(at, hand.is_open, hand.holds))
    return state if hand.holds is None else _with_thing(state, hand.holds, Put(state.outside(at), ""))


def _gripped(room: Room, state: State, side: int, *, opens: bool) -> State:
    hand = state.hands[side]
    if opens == hand.is_open:
        return state
    if opens:
        state = _with_hand(state, side, Hand(hand.at))
        return state if hand.holds is None else _with_thing(state, hand.holds, _landed(room, state, hand.at))
    at = state.outside(hand.at)
    index = _nearest(room, state, at)
    state = _with_hand(state, side, Hand(hand.at, is_open=False, holds=index))
    if index is not None:
        return _with_thing(state, index, Put(at, ""))
    return msgspec.structs.replace(state, doors=tuple(_pulled(room, name, door, at) for name, door in state.doors))


def _nearest(room: Room, state: State, at: Point) -> int | None:
    """The thing that a hand closes around, if there is one."""
    distances = [(math.dist(put.at, at), index) for index, put in enumerate(state.things) if put.on]
    near = [
        (far, index)
        for far, index in distances
        if far < _GRASP
        and not any(state.is_shut(piece) for piece in room.furniture if piece.name == state.things[index].on)
    ]
    return min(near)[1] if near else None


def _pulled(room: Room, name: str, door: Door, at: Point) -> tuple[str, Door]:
    """A door whose handle a hand closes around is opened, or closed."""
    if math.dist(handle(room.piece(name), door), at) < _GRASP:
        door = Door(not door.wanted, door.opened)
    return name, door


def _landed(room: Room, state: State, hand_at: Point) -> Put:
    """Where a thing that is let go comes to rest."""
    x, y, z = state.outside(hand_at)
    x, y = min(max(x, _WALL), WIDTH - _WALL), min(max(y, _WALL), DEPTH - _WALL)
    for piece in room.furniture:
        if not piece.covers(x, y):
            continue
        if piece.kind == "closet":
            if not state.is_shut(piece):
                return Put((x, y, piece.level), piece.name)
        elif z >= piece.level - 0.02:
            return Put((x, y, piece.level), piece.name)
        (dx, dy), (face_x, face_y, _) = piece.front, piece.face  # it falls down in front
        return Put((face_x + dx * 0.15 if dx else x, face_y + dy * 0.15 if dy else y, 0.0), FLOOR)
    return Put((x, y, 0.0), FLOOR)


def _with_hand(state: State, side: int, hand: Hand) -> State:
    hands = (hand, state.hands[1]) if side == 0 else (state.hands[0], hand)
    return msgspec.structs.replace(state, hands=hands)


def _with_thing(state: State, index: int, put: Put) -> State:
    return msgspec.structs.replace(state, things=(*state.things[:index], put, *state.things[index + 1 :]))
