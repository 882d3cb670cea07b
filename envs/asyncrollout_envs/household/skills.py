"""Skills with names, as a language model or an expert plays them: each is one step of a controller to its aim."""

import math
from typing import Literal

import msgspec

from asyncrollout_envs.household.rooms import CLOSETS, FURNITURE, THINGS, Point, Room, free_spots
from asyncrollout_envs.household.ways import cell_of, centre, distances, next_stop
from asyncrollout_envs.household.world import (
    LENGTH,
    PARTS,
    REACH_STEP,
    REST,
    SIDES,
    STRIDE,
    TURN,
    State,
    handle,
    in_reach,
)

Verb = Literal["wait", "forward", "back", "turn left", "turn right", "go to", "grasp", "place", "open", "close"]

_FACING = 0.3  # radians
_WAY_OFF = math.radians(50)
_THERE = 0.02
_SETTLED = 0.05


class Skill(msgspec.Struct, frozen=True):
    """What to do, with which thing or piece of furniture, and for "place", where."""

    verb: Verb
    what: str = ""
    where: str = ""

    @property
    def name(self) -> str:
        if self.verb == "place":
            return f"place {self.what} {'on' if self.where in _ONTO else 'in'} {self.where}"
        return f"{self.verb} {self.what}".strip()


class Command(msgspec.Struct, frozen=True):
    """An action for the robot, or why a skill has none; `is_far` if it would have one nearer by."""

    action: tuple[float, ...]
    reason: str = ""
    is_far: bool = False


_ONTO = ("counter", "sofa", "shelf", "table")
_MOVES: dict[Verb, tuple[float, float]] = {
    "forward": (1.0, 0.0),
    "back": (-1.0, 0.0),
    "turn left": (0.0, 1.0),
    "turn right": (0.0, -1.0),
}
_STILL = (0.0,) * LENGTH

SKILLS: tuple[Skill, ...] = (
    Skill("wait"),
    *(Skill(verb) for verb in _MOVES),
    *(Skill("go to", name) for name in (*FURNITURE, *THINGS)),
    *(Skill("grasp", name) for name in THINGS),
    *(Skill("place", name, where) for name in THINGS for where in FURNITURE),
    *(Skill(verb, name) for name in CLOSETS for verb in ("open", "close")),
)
"""Numbered from 1, as actions of the env."""


def command(room: Room, state: State, skill: Skill) -> Command:
    """The robot's action in a step of a skill."""
    names = [thing.name for thing in room.things]
    if skill.what in THINGS and skill.what not in names:
        return Command(_STILL, f"there is no {skill.what} here")
    match skill.verb:
        case "go to":
            return _go(room, state, skill.what)
        case "grasp":
            return _grasp(room, state, names.index(skill.what))
        case "place":
            return _place(room, state, names.index(skill.what), skill.where)
        case "open" | "close":
            return _pull(room, state, skill.what, opens=skill.verb == "open")
        case "wait":
            return Command(_STILL)
    forward, turn = _MOVES[skill.verb]
    return Command(_action(state, base=(forward, 0.0, turn)))


def _go(room: Room, state: State, target: str) -> Command:
    """Towards a place that the target is reached from, then turn to it; hands are carried in front."""
    point, front = _aim(room, state, target)
    stop = next_stop(room, distances(room, point, front), state.x, state.y)
    to_x, to_y = stop or point[:2]
    ahead, aside, _ = state.seen((to_x, to_y, 0.0))
    off = math.atan2(aside, ahead)
    turn = max(-1.0, min(1.0, off / TURN))
    if stop is None:
        ahead, aside, _ = state.seen((*centre(cell_of(state.x, state.y)), 0.0))
        if abs(off) < _FACING and math.hypot(ahead, aside) < _SETTLED and _are_carried(state):
            return Command(_STILL, f"the {target} is right in front of you")
        return Command(_action(state, base=(ahead / STRIDE, aside / STRIDE, turn)))
    if abs(off) > _WAY_OFF:
        return Command(_action(state, base=(0.0, 0.0, turn)))
    far = max(math.hypot(ahead, aside), STRIDE)
    return Command(_action(state, base=(ahead / far, aside / far, turn)))


def _aim(room: Room, state: State, target: str) -> tuple[Point, tuple[int, int] | None]:
    """What to stand near by, and from which side."""
    for thing, put in zip(room.things, state.things, strict=True):
        if thing.name == target:
            kept = next((piece for piece in room.furniture if piece.name == put.on and piece.kind == "closet"), None)
            return (put.at, None) if kept is None else (kept.inside, kept.front)
    piece = room.piece(target)
    if piece.kind == "closet":
        return piece.inside, piece.front
    return free_spots(piece, _standing(state, target))[0], None


def _grasp(room: Room, state: State, index: int) -> Command:
    thing, put = room.things[index], state.things[index]
    if not put.on:
        return Command(_STILL, f"you hold the {thing.name} already")
    if any(piece.name == put.on and state.is_shut(piece) for piece in room.furniture):
        return Command(_STILL, f"the {put.on} is closed")
    x, y, z = put.at
    return _reach(state, (x, y, z + thing.height / 2), f"the {thing.name}")


def _place(room: Room, state: State, index: int, where: str) -> Command:
    thing, piece = room.things[index], room.piece(where)
    side = next((side for side, hand in enumerate(state.hands) if hand.holds == index), None)
    if side is None:
        return Command(_STILL, f"you do not hold the {thing.name}")
    if state.is_shut(piece):
        return Command(_STILL, f"the {where} is closed")
    places = free_spots(piece, _standing(state, where))
    points = [state.seen((x, y, z + thing.height / 2 + 0.02)) for x, y, z in places]
    near = next((point for point in points if in_reach(point, side)), None)
    if near is None:
        return Command(_STILL, f"the {where} is too far away: go to it", is_far=True)
    return _hand_to(state, near, side, grips=False)


def _pull(room: Room, state: State, closet: str, *, opens: bool) -> Command:
    door = state.door(closet)
    if door.wanted == opens:
        return Command(_STILL, f"the {closet} is {'open' if opens else 'closed'} already")
    return _reach(state, handle(room.piece(closet), door), f"the {closet}")


def _reach(state: State, point: Point, name: str) -> Command:
    """A free hand goes to a point of the room, to grip what is there: the one on its side, if it can."""
    at = state.seen(point)
    free = [side for side, hand in enumerate(state.hands) if hand.holds is None]
    if not free:
        return Command(_STILL, "both hands are full")
    reaching = sorted((side for side in free if in_reach(at, side)), key=lambda side: (side == 0) != (at[1] > 0))
    if not reaching:
        return Command(_STILL, f"{name} is too far away: go to it", is_far=True)
    return _hand_to(state, at, reaching[0], grips=True)


def _hand_to(state: State, at: Point, side: int, *, grips: bool) -> Command:
    """A step of a hand to a point; once there, it grips, or lets go. A hand that is to grip goes there open."""
    hand = state.hands[side]
    is_there = max(abs(to - now) for to, now in zip(at, hand.at, strict=True)) <= REACH_STEP and hand.is_open == grips
    grip = (-1.0 if is_there else 1.0) if grips else (1.0 if is_there else 0.0)
    return Command(_action(state, hands={side: (at, grip)}))


def _action(
    state: State, base: Point = (0.0, 0.0, 0.0), hands: dict[int, tuple[Point, float]] | None = None
) -> tuple[float, ...]:
    """The numbers for the robot; a hand without an aim goes to where it is carried."""
    action = [0.0] * LENGTH
    action[PARTS["base"]] = base
    for side, name in enumerate(SIDES):
        to, grip = (hands or {}).get(side, (REST[side], 0.0))
        moved = [max(-1.0, min(1.0, (t - now) / REACH_STEP)) for t, now in zip(to, state.hands[side].at, strict=True)]
        action[PARTS[f"{name}_arm"]] = [*moved, 0.0, 0.0, 0.0, 0.0]
        action[PARTS[f"{name}_gripper"]] = [grip]
    return tuple(action)


def _are_carried(state: State) -> bool:
    return all(math.dist(hand.at, rest) < _THERE for hand, rest in zip(state.hands, REST, strict=True))


def _standing(state: State, where: str) -> list[Point]:
    return [put.at for put in state.things if put.on == where]
