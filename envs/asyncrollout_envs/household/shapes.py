"""What things look like: boxes and turned shapes, as faces; the room, its furniture, the things in it, the robot."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from asyncrollout_envs.household.raster import Faces, Floats, joined
from asyncrollout_envs.household.rooms import DEPTH, HEIGHT, WIDTH, Furniture, Point, Room
from asyncrollout_envs.household.world import SIDES, Door, Hand, State

Colour = tuple[int, int, int]

_WOOD, _DARK_WOOD, _WHITE, _STEEL = (170, 116, 66), (116, 76, 44), (236, 236, 232), (168, 174, 180)
_SHELL, _JOINT = (228, 230, 232), (70, 74, 82)
_SIDES_OF_TURNED = 8
_CORNERS = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=np.float64)
_BOX = np.array([[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]])
_LIGHTS = {"left": (70, 140, 220), "right": (230, 120, 60)}


def _faces(corners: Floats, colour: Colour) -> Faces:
    count = len(corners)
    return Faces(corners, np.tile(np.array(colour, dtype=np.float64), (count, 1)), np.zeros(count, dtype=np.int32))


def _one(parts: list[Faces]) -> Faces:
    """Parts of one thing, without lines between them."""
    whole = joined(parts)
    return whole._replace(owners=np.zeros_like(whole.owners))


def box(low: Point, high: Point, colour: Colour) -> Faces:
    at = np.array(low) + _CORNERS * (np.array(high) - np.array(low))
    return _faces(at[_BOX], colour)


def turned(at: Point, profile: Sequence[tuple[float, float]], colour: Colour) -> Faces:
    """What a lathe makes of a profile of (radius, height), from below upwards."""
    angles = np.linspace(0, math.tau, _SIDES_OF_TURNED + 1)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rings = np.array([[[at[0] + r * x, at[1] + r * y, at[2] + h] for x, y in circle] for r, h in profile])
    low, high = rings[:-1], rings[1:]
    corners = np.stack([low[:, :-1], low[:, 1:], high[:, 1:], high[:, :-1]], axis=2).reshape(-1, 4, 3)
    return _faces(corners, colour)


def beam(start: Floats, end: Floats, thick: float, colour: Colour) -> Faces:
    """A bar between two points."""
    along = end - start
    length = float(np.linalg.norm(along))
    along = along / max(length, 1e-9)
    aside = np.cross(along, (0.0, 0.0, 1.0) if abs(along[2]) < 0.9 else (1.0, 0.0, 0.0))
    aside /= np.linalg.norm(aside)
    up = np.cross(aside, along)
    offsets = (_CORNERS - [0.0, 0.5, 0.5]) * [length, thick, thick]
    return _faces((start + offsets @ np.stack([along, -aside, up]))[_BOX], colour)


def scene(room: Room, state: State) -> Faces:
    """All there is."""
    closets = [piece for piece in room.furniture if piece.kind == "closet"]
    held = {hand.holds for hand in state.hands}
    things = [
        _thing(thing.name, (put.at[0], put.at[1], put.at[2] - (thing.height / 2 if index in held else 0.0)))
        for index, (thing, put) in enumerate(zip(room.things, state.things, strict=True))
    ]
    doors = [_door(piece, state.door(piece.name)) for piece in closets]
    arms = [part for side in range(len(SIDES)) for part in _arm(state, side)]
    return joined([_still(room), *doors, *things, *arms])


@functools.lru_cache(maxsize=64)
def _still(room: Room) -> Faces:
    """The room and what never moves in it."""
    return joined([*_walls(), *(part for piece in room.furniture for part in _FORMS[piece.name](piece))])


@functools.cache
def _walls() -> list[Faces]:
    """Seen from inside: boxes whose corners are the other way round; planks, a rug, windows and a picture."""
    shell = box((WIDTH, DEPTH, HEIGHT), (0.0, 0.0, 0.0), (222, 214, 198))
    colours = [(214, 204, 184), (206, 214, 204), (224, 214, 192), (210, 206, 214), (238, 238, 236), (196, 160, 118)]
    shell = shell._replace(colours=np.array(colours, dtype=np.float64), owners=np.arange(6, dtype=np.int32))
    planks = [_flat((x, 0.0), (x + 0.25, DEPTH), 0.001, (180, 140, 98)) for x in np.arange(0.0, WIDTH, 0.5).tolist()]
    floor = _one(planks)
    rug = [
        _flat((1.7, 1.2), (4.3, 3.6), 0.003, (138, 66, 66)),
        _flat((1.8, 1.3), (4.2, 3.5), 0.005, (176, 96, 84)),
        _flat((2.0, 1.5), (4.0, 3.3), 0.007, (190, 120, 98)),
    ]
    sky, frame = (168, 208, 240), (250, 250, 246)
    windows = [
        part
        for x in (1.2, 3.6)
        for y in (0.0, DEPTH)
        for part in (
            box((x - 0.06, y - 0.01, 1.24), (x + 1.26, y + 0.01, 2.26), frame),
            box((x, y - 0.015, 1.3), (x + 0.57, y + 0.015, 2.2), sky),
            box((x + 0.63, y - 0.015, 1.3), (x + 1.2, y + 0.015, 2.2), sky),
        )
    ]
    pictures = [
        part
        for x in (0.0, WIDTH)
        for part in (
            box((x - 0.015, 2.0, 1.3), (x + 0.015, 3.0, 2.1), _DARK_WOOD),
            box((x - 0.02, 2.06, 1.36), (x + 0.02, 2.94, 1.7), (92, 140, 92)),
            box((x - 0.02, 2.06, 1.7), (x + 0.02, 2.94, 2.04), (236, 190, 120)),
        )
    ]
    return [shell, floor, *rug, *windows, *pictures]


def _flat(low: tuple[float, float], high: tuple[float, float], z: float, colour: Colour) -> Faces:
    (x0, y0), (x1, y1) = low, high
    return _faces(np.array([[[x0, y0, z], [x1, y0, z], [x1, y1, z], [x0, y1, z]]]), colour)


def _shadow(piece: Furniture) -> Faces:
    return _flat((piece.x0 - 0.07, piece.y0 - 0.07), (piece.x1 + 0.07, piece.y1 + 0.07), 0.009, (112, 88, 66))


def _table(piece: Furniture) -> list[Faces]:
    top = piece.height
    legs = [
        box((x, y, 0.0), (x + 0.06, y + 0.06, top - 0.05), _DARK_WOOD)
        for x in (piece.x0 + 0.05, piece.x1 - 0.11)
        for y in (piece.y0 + 0.05, piece.y1 - 0.11)
    ]
    return [_shadow(piece), *legs, box((piece.x0, piece.y0, top - 0.05), (piece.x1, piece.y1, top), _WOOD)]


def _counter(piece: Furniture) -> list[Faces]:
    body = box((piece.x0, piece.y0, 0.08), (piece.x1, piece.y1, 0.86), (122, 148, 160))
    top = box((piece.x0, piece.y0, 0.86), (piece.x1, piece.y1, 0.9), (216, 210, 200))
    fronts = []
    wide = (piece.x1 - piece.x0) / 3
    y = piece.y1 if piece.front[1] > 0 else piece.y0
    for number in range(3):
        x = piece.x0 + number * wide
        fronts.append(box((x + 0.03, y - 0.01, 0.14), (x + wide - 0.03, y + 0.01, 0.8), (142, 168, 180)))
        fronts.append(box((x + wide / 2 - 0.08, y - 0.03, 0.72), (x + wide / 2 + 0.08, y + 0.03, 0.74), _STEEL))
    return [_shadow(piece), body, top, *fronts]


def _sofa(piece: Furniture) -> list[Faces]:
    cloth, dark = (84, 116, 150), (66, 94, 124)
    seat, x0, x1, y0, y1 = piece.level, piece.x0, piece.x1, piece.y0, piece.y1
    back = (x0, x0 + 0.22) if piece.front[0] > 0 else (x1 - 0.22, x1)
    half = (y0 + y1) / 2
    return [
        _shadow(piece),
        box((x0, y0, 0.05), (x1, y1, seat - 0.14), dark),
        box((x0, y0 + 0.16, seat - 0.14), (x1, half - 0.01, seat), cloth),
        box((x0, half + 0.01, seat - 0.14), (x1, y1 - 0.16, seat), cloth),
        box((back[0], y0, 0.05), (back[1], y1, piece.height), cloth),
        box((x0, y0, 0.05), (x1, y0 + 0.16, seat + 0.16), dark),
        box((x0, y1 - 0.16, 0.05), (x1, y1, seat + 0.16), dark),
    ]


def _shelf(piece: Furniture) -> list[Faces]:
    x0, x1, y0, y1, top = piece.x0, piece.x1, piece.y0, piece.y1, piece.height
    back = (x0, x0 + 0.03) if piece.front[0] > 0 else (x1 - 0.03, x1)
    boards = [box((x0, y0, z), (x1, y1, z + 0.03), _WOOD) for z in (0.05, 0.4, 0.75, top - 0.03)]
    spines = [
        box(
            (x0 + 0.1, y0 + 0.1 + 0.07 * n, 0.43), (x1 - 0.1, y0 + 0.16 + 0.07 * n, 0.43 + 0.2 + 0.04 * (n % 3)), colour
        )
        for n, colour in enumerate([(180, 70, 60), (70, 120, 80), (200, 170, 80), (80, 90, 150), (150, 90, 130)])
    ]
    ends = [box((x0, y, 0.0), (x1, y + 0.03, top), _DARK_WOOD) for y in (y0, y1 - 0.03)]
    return [_shadow(piece), box((back[0], y0, 0.0), (back[1], y1, top), _DARK_WOOD), *boards, *ends, *spines]


def _toy_box(piece: Furniture) -> list[Faces]:
    x0, x1, y0, y1, top = piece.x0, piece.x1, piece.y0, piece.y1, piece.height
    yellow, edge = (236, 190, 66), (206, 150, 40)
    return [
        _shadow(piece),
        box((x0, y0, 0.0), (x1, y1, 0.03), edge),
        box((x0, y0, 0.0), (x0 + 0.03, y1, top), yellow),
        box((x1 - 0.03, y0, 0.0), (x1, y1, top), yellow),
        box((x0, y0, 0.0), (x1, y0 + 0.03, top), edge),
        box((x0, y1 - 0.03, 0.0), (x1, y1, top), edge),
    ]


def _closet(piece: Furniture) -> list[Faces]:
    """Open in front, where its door is; light inside, with the board that things stand on."""
    outside = _WHITE if piece.name == "fridge" else (150, 104, 70)
    x0, x1, y0, y1, top = piece.x0, piece.x1, piece.y0, piece.y1, piece.height
    back = (y0, y0 + 0.05) if piece.front[1] > 0 else (y1 - 0.05, y1)
    inner = (240, 246, 250) if piece.name == "fridge" else (206, 164, 120)
    levels = (piece.level, piece.level / 2, (piece.level + top) / 2)
    shell = [
        box((x0, y0, 0.0), (x0 + 0.04, y1, top), outside),
        box((x1 - 0.04, y0, 0.0), (x1, y1, top), outside),
        box((x0 + 0.04, y0, top - 0.05), (x1 - 0.04, y1, top), outside),
        box((x0 + 0.04, y0, 0.0), (x1 - 0.04, y1, 0.1), outside),
    ]
    boards = [box((x0 + 0.04, y0 + 0.02, z - 0.02), (x1 - 0.04, y1 - 0.02, z), inner) for z in levels]
    wall = box((x0 + 0.04, back[0], 0.1), (x1 - 0.04, back[1], top - 0.05), inner)
    return [_shadow(piece), _one(shell), wall, *boards]


def _door(piece: Furniture, door: Door) -> Faces:
    """Hung on the right of who stands before it."""
    colour = (226, 228, 228) if piece.name == "fridge" else (164, 116, 78)
    (_, dy), wide = piece.front, piece.x1 - piece.x0
    x, y, z = piece.face
    angle = math.radians(105) * door.opened
    along, across = (
        np.array([math.cos(angle), math.sin(angle), 0.0]) * dy,
        np.array([-math.sin(angle), math.cos(angle), 0.0]),
    )
    hinge = np.array([x - dy * wide / 2, y, 0.06])
    panel = _board(hinge, along * wide, across * 0.03, piece.height - 0.09, colour)
    grip = hinge + along * (wide - 0.1) + across * dy * 0.03 + [0.0, 0.0, z - 0.2]
    return joined([panel, beam(grip, grip + np.array([0.0, 0.0, 0.3]), 0.03, (110, 112, 116))])


def _board(corner: Floats, along: Floats, across: Floats, high: float, colour: Colour) -> Faces:
    """An upright board, from the middle of its lower edge on."""
    axes = np.stack([along, across, [0.0, 0.0, high]])
    faces = (corner - across / 2 + _CORNERS @ axes)[_BOX]
    return _faces(faces if np.linalg.det(axes) > 0 else faces[:, ::-1], colour)


_FORMS = {
    "table": _table,
    "counter": _counter,
    "sofa": _sofa,
    "shelf": _shelf,
    "box": _toy_box,
    "fridge": _closet,
    "cabinet": _closet,
}

_PROFILES: dict[str, tuple[list[tuple[float, float]], Colour]] = {
    "cup": ([(0.0, 0.0), (0.036, 0.0), (0.045, 0.11), (0.036, 0.11), (0.03, 0.02), (0.0, 0.02)], (214, 60, 60)),
    "plate": ([(0.0, 0.0), (0.06, 0.0), (0.1, 0.03), (0.085, 0.028), (0.055, 0.01), (0.0, 0.01)], (250, 250, 246)),
    "bowl": ([(0.0, 0.0), (0.04, 0.0), (0.08, 0.07), (0.07, 0.068), (0.035, 0.015), (0.0, 0.015)], (70, 150, 190)),
    "apple": ([(0.0, 0.0), (0.03, 0.005), (0.05, 0.045), (0.042, 0.08), (0.015, 0.09), (0.0, 0.08)], (120, 190, 60)),
    "ball": ([(0.0, 0.0), (0.05, 0.015), (0.078, 0.06), (0.078, 0.1), (0.05, 0.145), (0.0, 0.16)], (240, 130, 40)),
}


def _thing(name: str, at: Point) -> Faces:
    x, y, z = at
    if name in _PROFILES:
        profile, colour = _PROFILES[name]
        return turned(at, profile, colour)
    match name:
        case "milk":
            carton = box((x - 0.04, y - 0.04, z), (x + 0.04, y + 0.04, z + 0.17), (244, 246, 250))
            top = turned((x, y, z + 0.17), [(0.05, 0.0), (0.02, 0.04), (0.02, 0.05), (0.0, 0.05)], (60, 110, 200))
            return joined(
                [carton, box((x - 0.041, y - 0.041, z + 0.05), (x + 0.041, y + 0.041, z + 0.1), (60, 110, 200)), top]
            )
        case "book" | "magazine":
            cover = (52, 92, 168) if name == "book" else (206, 70, 130)
            high = 0.05 if name == "book" else 0.03
            pages = box((x - 0.075, y - 0.055, z + 0.01), (x + 0.08, y + 0.055, z + high - 0.01), (246, 240, 224))
            covers = [
                box((x - 0.08, y - 0.06, z + h), (x + 0.08, y + 0.06, z + h + 0.01), cover) for h in (0.0, high - 0.01)
            ]
            return joined([pages, *covers])
        case "car":
            wheels = [
                box((x + dx - 0.02, y + dy - 0.012, z), (x + dx + 0.02, y + dy + 0.012, z + 0.04), (40, 40, 44))
                for dx in (-0.05, 0.05)
                for dy in (-0.045, 0.045)
            ]
            cabin = box((x - 0.045, y - 0.035, z + 0.055), (x + 0.025, y + 0.035, z + 0.09), (190, 226, 244))
            return joined(
                [
                    box((x - 0.085, y - 0.045, z + 0.02), (x + 0.085, y + 0.045, z + 0.058), (220, 44, 50)),
                    cabin,
                    *wheels,
                ]
            )
    return box((x - 0.055, y - 0.055, z), (x + 0.055, y + 0.055, z + 0.11), (150, 84, 190))  # a block


def _arm(state: State, side: int) -> list[Faces]:
    """Shoulder, elbow, hand; two fingers, which are apart if it is open."""
    hand: Hand = state.hands[side]
    x, y, z = hand.at
    aside, apart = 0.24 if side == 0 else -0.24, 0.05 if hand.is_open else 0.03
    elbow = (x / 2 - 0.1, y / 2 + aside * 1.1, min(z, 1.1) / 2 + 0.42)
    points: list[tuple[Point, Point, float, Colour]] = [
        ((0.02, aside, 1.12), elbow, 0.09, _SHELL),
        (elbow, (x - 0.14, y, z + 0.05), 0.075, _SHELL),
        ((x - 0.14, y, z + 0.05), (x - 0.06, y, z + 0.02), 0.06, _LIGHTS[SIDES[side]]),
        ((x - 0.055, y - apart - 0.012, z + 0.015), (x - 0.055, y + apart + 0.012, z + 0.015), 0.03, _JOINT),
        ((x - 0.05, y - apart, z + 0.015), (x + 0.05, y - apart, z), 0.022, _JOINT),
        ((x - 0.05, y + apart, z + 0.015), (x + 0.05, y + apart, z), 0.022, _JOINT),
    ]
    return [
        beam(np.array(state.outside(a)), np.array(state.outside(b)), thick, colour) for a, b, thick, colour in points
    ]
