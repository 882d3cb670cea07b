"""The cube's rules: turns and their inverses, what is solved, scrambles of a seed, the expert."""

import random
from typing import Any

import pytest

from asyncrollout import TextOptions, UsageError
from asyncrollout_envs import rubikscube
from asyncrollout_envs.rubikscube import NAMES, SOLVED, RubiksCube, RubiksCubeText, is_solved, solve, turned


def played(*names: str) -> tuple[int, ...]:
    cube = SOLVED
    for name in names:
        cube = turned(cube, NAMES.index(name) + 1)
    return cube


@pytest.mark.parametrize("face", "UDLRFB")
def test_a_face_comes_back_after_four_turns_and_by_its_inverse(face: str) -> None:
    assert played(face) != SOLVED
    assert played(*[face] * 4) == SOLVED
    assert played(face, f"{face}'") == SOLVED
    assert played(*[face] * 3) == played(f"{face}'")


@pytest.mark.parametrize(
    ("turns", "order"),
    [
        (("R", "U"), 15),
        (("R", "U", "R'", "U'"), 6),
        (("R", "U'"), 9),
        (("F", "U", "F'", "U'"), 6),
    ],
)
def test_sequences_have_the_order_that_corners_have(turns: tuple[str, ...], order: int) -> None:
    """Known from the 3x3x3 cube, whose corners these are: (R U) has order 105 there, with 7 on edges, (R U') 63."""
    orders = [count for count in range(1, order + 1) if played(*turns * count) == SOLVED]
    assert orders == [order]


def test_opposite_faces_commute_and_turn_the_whole_cube() -> None:
    assert played("R", "L") == played("L", "R")
    whole = played("R", "L'")
    assert whole != SOLVED
    assert is_solved(whole)
    assert not is_solved(played("R"))


def test_a_turn_moves_what_it_is_named_after() -> None:
    """After U, the front's upper row shows what the right face had there."""
    shown = RubiksCubeText(RubiksCube(), TextOptions()).describe(played("U"))
    faces = dict(line.split(": ") for line in shown.splitlines()[1:7])
    assert faces["Up (U)"] == "W W / W W"
    assert faces["Front (F)"] == "R R / G G"
    assert faces["Right (R)"] == "B B / R R"
    assert faces["Left (L)"] == "G G / O O"


@pytest.mark.parametrize("depth", [1, 2, 7, 20])
def test_scrambles_come_from_seeds_and_are_never_solved(depth: int) -> None:
    env = RubiksCube(scramble_depth=depth)
    cubes = [env.reset(seed=seed)[0] for seed in range(40)]
    assert cubes == [env.reset(seed=seed)[0] for seed in range(40)]
    assert not any(map(is_solved, cubes))
    assert len(set(cubes)) > 5


def test_the_last_turn_decides() -> None:
    env = RubiksCube(max_steps=2)
    env.reset(options={"task": ["R", "U"]})
    assert env.step(2)[1:4] == (0.0, False, False)
    cube, reward, terminated, truncated, info = env.step(8)
    assert (is_solved(cube), reward, terminated, truncated, info["success"]) == (True, 1.0, True, False, True)
    env.reset(options={"task": ["R", "U"]})
    env.step(1)
    assert env.step(1)[1:4] == (0.0, False, True)


@pytest.mark.parametrize(
    "turns", [("R",), ("R", "U", "F'"), ("L", "D", "B", "L'"), ("U", "R", "F", "U'", "R", "F", "U")]
)
def test_solutions_are_shortest(turns: tuple[str, ...]) -> None:
    cube = played(*turns)
    found = solve(cube)
    assert len(found) <= len(turns)
    for turn in found:
        cube = turned(cube, turn)
    assert is_solved(cube)
    assert solve(cube) == []


@pytest.mark.parametrize(
    ("reply", "actions"),
    [
        ("<answer>R || U' || f</answer>", (7, 2, 9)),
        ("<answer>Ri</answer>", (8,)),
        ("<answer>R\u2019</answer>", (8,)),
        ("<answer>12</answer>", (12,)),
        ("<answer>13</answer>", ()),
        ("<answer>X</answer>", ()),
        ("<answer>R2</answer>", ()),
    ],
)
def test_turns_are_read(reply: str, actions: tuple[int, ...]) -> None:
    assert RubiksCubeText.project(reply, TextOptions()).actions == actions


@pytest.mark.parametrize("wrong", [{"scramble_depth": 0}, {"max_steps": 0}, {"scramble_depth": "1"}])
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        RubiksCube(**wrong)
    with pytest.raises(ValueError, match="'R2' is not one of"):
        RubiksCube().reset(options={"task": ["R2"]})


@pytest.mark.parametrize("turns", [("U", "D'"), ("R", "L'", "U", "D'"), ("F", "B'", "F", "B'")])
def test_a_cube_held_in_another_way_is_the_same(turns: tuple[str, ...]) -> None:
    """Turns of two opposite faces in the same direction turn the whole cube."""
    scrambled = ("R", "U", "F'", "L", "D")
    assert rubikscube._held_alike(played(*turns, *scrambled)) != played(*turns, *scrambled)
    for seed in range(50):
        rng = random.Random(seed)
        cube = played(*rng.choices(NAMES, k=8))
        again = cube
        for name in turns:
            again = turned(again, NAMES.index(name) + 1)
        assert rubikscube._held_alike(again) == rubikscube._held_alike(cube)


@pytest.mark.parametrize("depth", [4, 5])
def test_no_two_splits_share_a_cube_however_it_is_held(depth: int) -> None:
    cubes = {}
    for split in ("train", "val", "test"):
        env = RubiksCube(scramble_depth=depth, split=split)
        cubes[split] = {rubikscube._held_alike(env.reset(seed=seed)[0]) for seed in range(200)}
        assert len(cubes[split]) > 40
    assert not cubes["train"] & (cubes["val"] | cubes["test"])
    assert not cubes["val"] & cubes["test"]


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (5, "not a list of turns"),
        ("U R", "action ' ' is not one of"),
        ([["U"]], "not a list of turns"),
        ([13], "action 13 is not one of"),
        ([], "leaves the cube solved"),
        (["U", "D'"], "leaves the cube solved"),
    ],
)
def test_wrong_tasks(task: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        RubiksCube().reset(options={"task": task})
