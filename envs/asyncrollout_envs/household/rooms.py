"""What a household is made of: furniture, things, activities; and the rooms that seeds give."""

import math
from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from asyncrollout_envs.seeding import PARTS, Split, generator, split_by_content

WIDTH, DEPTH, HEIGHT = 6.0, 5.0, 2.6
"""Of the room, in metres; x runs along its width, y along its depth, z upwards."""

CELL = 0.25
"""The side of a cell of the grid that ways are found on."""

GIRTH = 0.25
"""Half of the robot's width: its middle keeps so far from walls and furniture."""

_SPACING = 0.24  # between things that stand beside each other
_MARGIN = 0.14  # of a thing's place from an edge
_TRIES = 100 * len(PARTS)

Point = tuple[float, float, float]
Kind = Literal["surface", "bin", "closet"]
"""How things are put there: onto it, into it from above, or into it through a door."""


class Furniture(msgspec.Struct, frozen=True):
    """Its footprint from (x0, y0) to (x1, y1); things stand `level` above the floor; `front` is where it looks."""

    name: str
    kind: Kind
    x0: float
    y0: float
    x1: float
    y1: float
    height: float
    level: float
    front: tuple[int, int]

    def covers(self, x: float, y: float, margin: float = 0.0) -> bool:
        return self.x0 - margin < x < self.x1 + margin and self.y0 - margin < y < self.y1 + margin

    @property
    def face(self) -> Point:
        """The middle of its front, at the height of a door's handle."""
        (dx, dy), x, y = self.front, (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2
        return x + dx * (self.x1 - self.x0) / 2, y + dy * (self.y1 - self.y0) / 2, min(self.height * 0.6, 1.0)

    @property
    def inside(self) -> Point:
        """Behind the middle of its front; who reaches this point reaches all that a closet holds, and its handle."""
        x, y, z = self.face
        return x - self.front[0] * 0.2, y - self.front[1] * 0.2, z


class Thing(msgspec.Struct, frozen=True):
    """Something that can be carried; `radius` and `height` are its size."""

    name: str
    radius: float
    height: float


class Activity(msgspec.Struct, frozen=True):
    """What is asked for: things that are to be in places, and closets that are to be shut in the end."""

    name: str
    instruction: str
    goals: tuple[tuple[str, str], ...]
    starts: tuple[str, ...]
    shut: tuple[str, ...] = ()


THINGS = {
    thing.name: thing
    for thing in (
        Thing("cup", 0.045, 0.11),
        Thing("plate", 0.10, 0.03),
        Thing("bowl", 0.08, 0.07),
        Thing("apple", 0.05, 0.10),
        Thing("milk", 0.045, 0.22),
        Thing("book", 0.08, 0.05),
        Thing("magazine", 0.09, 0.03),
        Thing("ball", 0.08, 0.16),
        Thing("car", 0.08, 0.09),
        Thing("block", 0.06, 0.12),
    )
}
FURNITURE = ("fridge", "counter", "cabinet", "sofa", "shelf", "box", "table")
CLOSETS = ("fridge", "cabinet")
FLOOR = "floor"

ACTIVITIES = {
    activity.name: activity
    for activity in (
        Activity("bring_cup", "Bring the cup to the table.", (("cup", "table"),), ("counter", "shelf", "sofa")),
        Activity(
            "set_table",
            "Set the table: put the plate and the bowl on it.",
            (("plate", "table"), ("bowl", "table")),
            ("counter", "shelf"),
        ),
        Activity(
            "tidy_toys",
            "Tidy up: put the ball, the car and the block into the box.",
            (("ball", "box"), ("car", "box"), ("block", "box")),
            (FLOOR, "sofa"),
        ),
        Activity(
            "store_food",
            "Open the fridge, put the apple and the milk into it, and close it.",
            (("apple", "fridge"), ("milk", "fridge")),
            ("table", "counter"),
            ("fridge",),
        ),
        Activity(
            "return_books",
            "Put the book and the magazine back on the shelf.",
            (("book", "shelf"), ("magazine", "shelf")),
            ("sofa", "table", FLOOR),
        ),
        Activity(
            "put_away_dishes",
            "Put the cup and the bowl into the cabinet, and close it.",
            (("cup", "cabinet"), ("bowl", "cabinet")),
            ("table", "counter"),
            ("cabinet",),
        ),
    )
}


class Room(msgspec.Struct, frozen=True):
    """An episode's furniture, the things in it with their first places, and where the robot starts."""

    activity: Activity
    furniture: tuple[Furniture, ...]
    things: tuple[Thing, ...]
    places: tuple[tuple[Point, str], ...]
    start: Point

    def piece(self, name: str) -> Furniture:
        return next(piece for piece in self.furniture if piece.name == name)

    def is_free(self, x: float, y: float) -> bool:
        """Whether the robot can stand there."""
        inside = GIRTH <= x <= WIDTH - GIRTH and GIRTH <= y <= DEPTH - GIRTH
        return inside and not any(piece.covers(x, y, GIRTH) for piece in self.furniture)


def make_room(seed: int, split: Split, activity: str | None = None) -> Room:
    """The room of a seed, always the same one. Where the robot starts says which split it is for."""
    rng = generator(seed, split)
    chosen = ACTIVITIES[activity or [*ACTIVITIES][int(rng.integers(len(ACTIVITIES)))]]
    furniture = _furnish(rng)
    asked = [name for name, _ in chosen.goals]
    others = [name for name in THINGS if name not in asked]
    extra = [others[index] for index in rng.permutation(len(others))[:2]]
    room = Room(chosen, furniture, tuple(THINGS[name] for name in (*asked, *extra)), (), (0.0, 0.0, 0.0))
    places: list[tuple[Point, str]] = []
    for name in (*asked, *extra):
        starts = chosen.starts if name in asked else ("counter", "shelf", "table", "sofa")
        places.append(_place(rng, room, starts, [point for point, _ in places]))
    for _ in range(_TRIES):
        x, y = (round(float(rng.uniform(0.5, size - 0.5)), 3) for size in (WIDTH, DEPTH))
        yaw = round(float(rng.uniform(-math.pi, math.pi)), 3)
        if room.is_free(x, y) and split_by_content((x, y, yaw)) == split:
            return msgspec.structs.replace(room, places=tuple(places), start=(x, y, yaw))
    raise AssertionError("a room without a place to stand")


def spots(piece: Furniture) -> list[Point]:
    """Where things can stand on or in a piece, the middle ones first; all can be reached from in front of it."""
    (dx, dy), level = piece.front, piece.level
    deep = (piece.x1 - piece.x0) if dx else (piece.y1 - piece.y0)
    wide = (piece.y1 - piece.y0) if dx else (piece.x1 - piece.x0)
    from_front = min(deep / 2, 0.25)
    count = max(int((wide - 2 * _MARGIN) / _SPACING) + 1, 1)
    across = sorted(((at - (count - 1) / 2) * _SPACING for at in range(count)), key=lambda at: (abs(at), at))
    x, y, _ = piece.face
    found = [(x - dx * from_front - dy * at, y - dy * from_front + dx * at, level) for at in across]
    if piece.kind == "bin":  # its other half, too
        found += [
            (x - dx * (deep - from_front) - dy * at, y - dy * (deep - from_front) + dx * at, level) for at in across
        ]
    return found


def free_spots(piece: Furniture, taken: Iterable[Point]) -> list[Point]:
    """Those that nothing stands on; if there are none, things pile up on all of them."""
    occupied = [(x, y) for x, y, _ in taken]
    near = _SPACING * 0.8
    free = [spot for spot in spots(piece) if all(math.hypot(spot[0] - x, spot[1] - y) >= near for x, y in occupied)]
    return free or spots(piece)


def _furnish(rng: np.random.Generator) -> tuple[Furniture, ...]:
    """Kitchen along one wall, sofa and shelf at the sides, the table in the middle; mirrored as the seed says."""
    kitchen = [("fridge", 0.75, 0.7, 1.75, 0.85), ("counter", 1.6, 0.6, 0.9, 0.9), ("cabinet", 0.75, 0.55, 1.0, 0.45)]
    order = [kitchen[index] for index in rng.permutation(len(kitchen))]
    gaps = rng.uniform(0.05, 0.5, size=len(order))
    pieces, x = [], 0.3
    for (name, wide, deep, height, level), gap in zip(order, gaps, strict=True):
        kind: Kind = "closet" if name in CLOSETS else "surface"
        x += float(gap)
        pieces.append(Furniture(name, kind, x, DEPTH - deep, x + wide, DEPTH, height, level, (0, -1)))
        x += wide
    sofa, shelf, box = (float(value) for value in rng.uniform((0.8, 0.3, 2.2), (1.6, 0.9, 2.7)))
    table_x, table_y = (float(value) for value in rng.uniform((2.4, 1.3), (3.0, 1.7)))
    pieces += [
        Furniture("sofa", "surface", 0.0, sofa, 0.85, sofa + 1.7, 0.8, 0.42, (1, 0)),
        Furniture("shelf", "surface", WIDTH - 0.4, shelf, WIDTH, shelf + 1.1, 1.1, 1.1, (-1, 0)),
        Furniture("box", "bin", WIDTH - 0.6, box, WIDTH - 0.05, box + 0.55, 0.35, 0.04, (-1, 0)),
        Furniture("table", "surface", table_x, table_y, table_x + 1.2, table_y + 0.8, 0.75, 0.75, (0, 1)),
    ]
    flip_x, flip_y = (bool(drawn) for drawn in rng.random(2) < 0.5)
    return tuple(_mirrored(piece, flip_x=flip_x, flip_y=flip_y) for piece in pieces)


def _mirrored(piece: Furniture, *, flip_x: bool, flip_y: bool) -> Furniture:
    x0, x1 = (WIDTH - piece.x1, WIDTH - piece.x0) if flip_x else (piece.x0, piece.x1)
    y0, y1 = (DEPTH - piece.y1, DEPTH - piece.y0) if flip_y else (piece.y0, piece.y1)
    front = piece.front[0] * (-1 if flip_x else 1), piece.front[1] * (-1 if flip_y else 1)
    return msgspec.structs.replace(piece, x0=x0, x1=x1, y0=y0, y1=y1, front=front)


def _place(rng: np.random.Generator, room: Room, starts: tuple[str, ...], taken: list[Point]) -> tuple[Point, str]:
    where = starts[int(rng.integers(len(starts)))]
    if where != FLOOR:
        free = free_spots(room.piece(where), taken)
        return free[int(rng.integers(len(free)))], where
    while True:
        x, y = (float(rng.uniform(0.8, size - 0.8)) for size in (WIDTH, DEPTH))
        if room.is_free(x, y) and all(math.hypot(x - other[0], y - other[1]) > 2 * _SPACING for other in taken):
            return (x, y, 0.0), FLOOR
