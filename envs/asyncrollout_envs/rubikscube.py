"""A Rubik's cube of 2x2x2: turn its faces until each has one color.

A state is 24 stickers, four for each face: `FACES` in order, and on a face row by row, as seen from outside.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout.text.replies import Projecting, read_reply, turn_format
from asyncrollout.types import Parsed, TextOptions
from asyncrollout_envs.grids import check_action
from asyncrollout_envs.kwargs import check_whole
from asyncrollout_envs.seeding import Split, check_split, generator, split_by_content

SPEC = EnvSpec(
    name="rubikscube",
    factory="asyncrollout_envs.rubikscube:RubiksCube",
    text="asyncrollout_envs.rubikscube:RubiksCubeText",
    runs="light",
    summary="solve a 2x2x2 cube",
    actions="U, U', D, D', L, L', R, R', F, F', B, B'",
    splits=SPLITS,
)

FACES = {"U": "Up", "L": "Left", "F": "Front", "R": "Right", "B": "Back", "D": "Down"}
COLORS = "WOGRBY"
NAMES = tuple(face + turn for face in "UDLRFB" for turn in ("", "'"))

Cube = tuple[int, ...]
Vector = tuple[int, int, int]

SOLVED: Cube = tuple(color for color in range(6) for _ in range(4))
_FEW = 4  # scrambles of fewer turns are too few to be divided among splits

# For each face, what points out of it, to the right on it, and down on it; x is right, y up, z to the front.
_AXES: dict[str, tuple[Vector, Vector, Vector]] = {
    "U": ((0, 1, 0), (1, 0, 0), (0, 0, 1)),
    "L": ((-1, 0, 0), (0, 0, 1), (0, -1, 0)),
    "F": ((0, 0, 1), (1, 0, 0), (0, -1, 0)),
    "R": ((1, 0, 0), (0, 0, -1), (0, -1, 0)),
    "B": ((0, 0, -1), (-1, 0, 0), (0, -1, 0)),
    "D": ((0, -1, 0), (1, 0, 0), (0, 0, -1)),
}


def _stickers() -> list[tuple[Vector, Vector]]:
    """The corner and the direction of each sticker."""
    found = []
    for out, right, down in _AXES.values():
        for row in (-1, 1):
            for column in (-1, 1):
                corner = tuple(out[at] + row * down[at] + column * right[at] for at in range(3))
                found.append((corner, out))
    return found  # type: ignore[return-value]


def _rotated(vector: Vector, axis: Vector) -> Vector:
    """By a quarter turn that is clockwise for who looks at the face from outside."""
    along = sum(one * other for one, other in zip(vector, axis, strict=True))
    (x, y, z), (i, j, k) = vector, axis
    aside = (y * k - z * j, z * i - x * k, x * j - y * i)
    return tuple(along * axis[at] + aside[at] for at in range(3))  # type: ignore[return-value]


def _moved(axis: Vector, is_moved: Callable[[Vector], bool]) -> Cube:
    """Where the sticker at each place comes from, when these corners go around an axis."""
    stickers = _stickers()
    comes_from = [*range(24)]
    for place, (corner, out) in enumerate(stickers):
        if is_moved(corner):
            comes_from[stickers.index((_rotated(corner, axis), _rotated(out, axis)))] = place
    return tuple(comes_from)


def _turn(face: str) -> Cube:
    axis = _AXES[face][0]
    return _moved(axis, lambda corner: sum(one * other for one, other in zip(corner, axis, strict=True)) > 0)


def _turns() -> tuple[Cube, ...]:
    turns = []
    for face in "UDLRFB":
        once = _turn(face)
        turns += [once, tuple(once[once[place]] for place in once)]
    return tuple(turns)


TURNS = _turns()
"""By action, from 0: for each place the one whose sticker comes there."""


def turned(cube: Cube, action: int) -> Cube:
    """After an action from 1."""
    return tuple(cube[place] for place in TURNS[action - 1])


def is_solved(cube: Cube) -> bool:
    return all(len(set(cube[at : at + 4])) == 1 for at in range(0, 24, 4))


class RubiksCube:
    """Actions 1 to 12 are `NAMES`: a face clockwise, or with ' counterclockwise. The reward is 1 for the solved cube.

    Without a task the cube is scrambled by `scramble_depth` turns from the seed. A task is a list of turns, by number
    or name. An episode of `max_steps` turns is over.
    """

    def __init__(self, *, scramble_depth: int = 5, max_steps: int = 20, split: Split = "train") -> None:
        check_whole("rubikscube", most=100, scramble_depth=scramble_depth)
        check_whole("rubikscube", max_steps=max_steps)
        check_split("rubikscube", split)
        self.scramble_depth, self.max_steps, self.split = scramble_depth, max_steps, split
        self.cube = SOLVED
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Cube, dict[str, Any]]:
        task = (options or {}).get("task")
        self.cube = self._scrambled(seed) if task is None else _read_turns(task)
        self.steps = 0
        return self.cube, {}

    def step(self, action: int) -> tuple[Cube, float, bool, bool, dict[str, Any]]:
        self.cube = turned(self.cube, check_action(action, NAMES))
        self.steps += 1
        success = is_solved(self.cube)
        truncated = self.steps >= self.max_steps and not success
        return self.cube, float(success), success, truncated, {"action_is_effective": True, "success": success}

    def _scrambled(self, seed: int | None) -> Cube:
        """Never solved; and of enough turns, the cube says which split it is for, however it is held."""
        rng = generator(seed, self.split)
        while True:
            cube = _played(rng.integers(1, 13, size=self.scramble_depth).tolist())
            is_ours = self.scramble_depth < _FEW or split_by_content(_held_alike(cube)) == self.split
            if is_ours and not is_solved(cube):
                return cube


def _played(turns: Iterable[int]) -> Cube:
    return functools.reduce(turned, turns, SOLVED)


def _read_turns(task: Any) -> Cube:
    """The cube of a task."""
    named: dict[Any, int] = {name: number for number, name in enumerate(NAMES, start=1)}
    try:
        turns = [check_action(named.get(turn, turn), NAMES) for turn in task]
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"rubikscube: task={task!r:.200} is not a list of turns such as ['R', \"U'\"]: {error}"
        ) from None
    cube = _played(turns)
    if is_solved(cube):
        raise UsageError(f"rubikscube: task={task!r:.200} leaves the cube solved")
    return cube


class RubiksCubeText(Projecting[RubiksCube]):
    """The expert searches for a shortest solution."""

    names = NAMES
    default_action = 1

    def __init__(self, env: RubiksCube, options: TextOptions) -> None:
        super().__init__(env, options)
        self._plan: dict[Cube, list[int]] = {}  # the turns to come, in each state on the way

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        return read_reply(reply, options, _read)

    def describe(self, observation: Cube) -> str:
        env, letters = self._env, [COLORS[color] for color in observation]
        rows = [" ".join(letters[at : at + 2]) for at in range(0, 24, 2)]
        faces = [
            f"{name} ({face}): {rows[2 * at]} / {rows[2 * at + 1]}" for at, (face, name) in enumerate(FACES.items())
        ]
        if is_solved(observation):
            end = "The cube is solved."
        elif env.steps >= env.max_steps:
            end = "No turns are left."
        else:
            end = f"Your turns: {', '.join(NAMES)}. Which one is next?"
        return "\n".join([f"Turn {env.steps} of {env.max_steps}. Each face, upper row / lower row:", *faces, end])

    def system_prompt(self) -> str:
        return (
            "You are solving a Rubik's cube of 2x2x2: turn its faces until each has one color.\n"
            "The colors are W white, O orange, G green, R red, B blue, Y yellow.\n"
            "U, D, L, R, F and B turn the upper, lower, left, right, front and back face clockwise, as seen from "
            "outside; with ' they turn it counterclockwise.\n"
            "Solving the cube gives 1, all else 0.\n\n" + turn_format(self._options, "R")
        )

    def anchor(self) -> Cube:
        return self._env.cube

    def tell(self, action: int) -> str:
        return NAMES[action - 1]

    def solve(self) -> str:
        cube = self._env.cube
        if cube not in self._plan:
            turns = solve(cube)
            states = accumulate(turns, turned, initial=cube)
            self._plan = {state: turns[at:] for at, state in enumerate(states) if turns[at:]}
        turns = self._plan.get(cube, [1])[: self._options.max_actions_per_turn]
        told = f" {self._options.separator} ".join(map(self.tell, turns))
        return f"<think>These turns lead to the solved cube.</think><answer>{told}</answer>"


def _read(text: str) -> int | None:
    """A turn by its name, with any apostrophe or an i, in either case; or by its number."""
    plain = text.strip().strip('`"*., ').replace("\u2019", "'").replace("\u2032", "'").upper()
    plain = plain[:-1] + "'" if len(plain) == 2 and plain.endswith("I") else plain
    if plain in NAMES:
        return NAMES.index(plain) + 1
    return int(plain) if plain.isascii() and plain.isdigit() and len(plain) < 3 and 1 <= int(plain) <= 12 else None


_KEPT = tuple(NAMES.index(name) + 1 for name in ("U", "U'", "R", "R'", "F", "F'"))
"""Turns that leave one corner where it is: enough for every cube, as a turn of the other face is the same but for how
the whole cube is held."""
_FIXED = tuple(place for place in range(24) if all(TURNS[turn - 1][place] == place for turn in _KEPT))
"""The places of that corner's stickers."""


def solve(cube: Cube) -> list[int]:
    """A shortest solution by quarter turns, searched from both ends; a solved cube has none."""
    if is_solved(cube):
        return []
    goal = _goal(cube)
    sides: list[dict[Cube, list[int]]] = [{cube: []}, {goal: []}]
    edges = [[cube], [goal]]
    while True:
        side = 0 if len(edges[0]) <= len(edges[1]) else 1
        grown = []
        for state in edges[side]:
            for turn in _KEPT:
                then = turned(state, turn)
                if then in sides[side]:
                    continue
                sides[side][then] = [*sides[side][state], turn]
                grown.append(then)
                if then in sides[1 - side]:
                    return sides[0][then] + [_inverse(turn) for turn in reversed(sides[1][then])]
        edges[side] = grown


def _inverse(turn: int) -> int:
    return turn + 1 if turn % 2 else turn - 1


def _held_alike(cube: Cube) -> Cube:
    """The same cube, held so that one corner is where the solved cube has it."""
    held = (tuple(cube[place] for place in places) for places in _rotations())
    return next(one for one in held if all(one[place] == SOLVED[place] for place in _FIXED))


@functools.cache
def _rotations() -> frozenset[Cube]:
    """The ways to hold a cube: for each place the one whose sticker comes there."""
    found = {tuple(range(24))}
    whole = [_moved(_AXES[face][0], lambda _: True) for face in "UR"]
    while len(found) < 24:
        found |= {tuple(way[place] for place in turn) for way in found for turn in whole}
    return frozenset(found)


def _goal(cube: Cube) -> Cube:
    """The solved cube that is held as this one is: its corner that is never turned says the colors of three faces."""
    colors = {place // 4: cube[place] for place in _FIXED}
    opposite = {0: 5, 5: 0, 1: 3, 3: 1, 2: 4, 4: 2}
    colors |= {opposite[face]: opposite[color] for face, color in colors.items()}
    return tuple(colors[face] for face in range(6) for _ in range(4))
