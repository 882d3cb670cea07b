"""Sokoban: the game's rules and rewards, rooms that can be solved, a solver that solves them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrollout import TextOptions, UsageError
from asyncrollout_envs import grids
from asyncrollout_envs.sokoban import Sokoban, SokobanText
from asyncrollout_envs.sokoban.boards import ACTIONS, SYMBOLS
from asyncrollout_envs.sokoban.env import TILES, read_room
from asyncrollout_envs.sokoban.rooms import Room, make_room
from asyncrollout_envs.sokoban.solver import solve

UP, DOWN, LEFT, RIGHT = 1, 2, 3, 4
CORRIDOR = "#######\n#PX_O_#\n#_____#\n#######"
TWO = "#######\n#_P_X_#\n#OX__O#\n#_____#\n#######"


def play(task: str, *actions: int, **kwargs: Any) -> tuple[Sokoban, list[tuple[Any, ...]]]:
    env = Sokoban(**kwargs)
    env.reset(options={"task": task})
    return env, [env.step(action) for action in actions]


def int_of_numpy(number: int) -> Any:
    return np.int64(number)


def shown(env: Sokoban) -> str:
    return grids.to_text(env.cells, SYMBOLS)


def make(seed: int, dim_room: tuple[int, int] = (6, 6), num_boxes: int = 1, max_moves: int = 100) -> Room:
    return make_room(seed, "train", dim_room=dim_room, num_boxes=num_boxes, search_depth=300, max_moves=max_moves)


def finish(room: Room, moves: Any) -> int:
    player, boxes = room.player, room.boxes
    for move in moves:
        player, boxes = room.board.after(player, boxes, move)
    return boxes


def test_cells_and_symbols() -> None:
    env = Sokoban()
    observation, _ = env.reset(options={"task": "#####\n#S√_#\n#OXX#\n#####"})
    assert observation.tolist() == [[0] * 5, [0, 6, 3, 1, 0], [0, 2, 4, 4, 0], [0] * 5]
    env.reset(options={"task": CORRIDOR})
    assert shown(env) == CORRIDOR


def test_walk_push_and_walls() -> None:
    env, steps = play(CORRIDOR, RIGHT, DOWN, UP, UP, LEFT)
    assert [step[4]["action_is_effective"] for step in steps] == [True, True, True, False, True]
    assert shown(env) == "#######\n#P_XO_#\n#_____#\n#######"


def test_box_against_a_box_or_a_wall_stays() -> None:
    env, steps = play("#######\n#PXX_O#\n#X_O_O#\n#######", RIGHT, DOWN)
    assert [step[4]["action_is_effective"] for step in steps] == [False, False]
    assert shown(env) == "#######\n#PXX_O#\n#X_O_O#\n#######"


def test_rewards() -> None:
    _, steps = play(TWO, RIGHT, DOWN)
    assert [step[1] for step in steps] == pytest.approx([-0.1, -0.1])
    _, (last,) = play("#####\n#PXO#\n#####", RIGHT)
    assert last[1] == pytest.approx(10.9)
    assert last[2:4] == (True, False)
    assert last[4] == {"action_is_effective": True, "success": True}


def test_box_off_a_target_costs_one() -> None:
    _, (first,) = play("######\n#P√__#\n#_XO_#\n######", RIGHT)
    assert first[1] == pytest.approx(-1.1)


def test_box_on_a_target_but_not_the_last() -> None:
    _, (first,) = play("######\n#PXO_#\n#_XO_#\n######", RIGHT)
    assert first[1] == pytest.approx(0.9)
    assert not first[2]


def test_max_steps_truncates() -> None:
    _, steps = play(CORRIDOR, DOWN, UP, DOWN, max_steps=3)
    assert [step[2:4] for step in steps] == [(False, False), (False, False), (False, True)]


@pytest.mark.parametrize("action", [0, 5, "up", None, 1.0, True])
def test_wrong_action(action: Any) -> None:
    env, _ = play(CORRIDOR)
    with pytest.raises(ValueError, match=r"is not one of 1 \(up\), 2 \(down\), 3 \(left\), 4 \(right\)"):
        env.step(action)
    assert env.steps == 0


@given(seed=st.integers(0, 2**63), dim=st.tuples(st.integers(5, 9), st.integers(5, 9)), boxes=st.integers(1, 3))
@settings(max_examples=60)
def test_rooms_are_solved_by_their_solution(seed: int, dim: tuple[int, int], boxes: int) -> None:
    room = make(seed, dim, boxes)
    cells = room.board.cells(room.player, room.boxes)
    assert cells.shape == dim
    assert read_room(grids.to_text(cells, SYMBOLS)).boxes == room.boxes
    assert not room.boxes & room.board.targets
    assert finish(room, room.solution) == room.board.targets
    assert len(room.solution) <= 100


@given(seed=st.integers(0, 2**63), walk=st.lists(st.sampled_from(ACTIONS), max_size=10))
@settings(max_examples=60)
def test_solver_is_right_wherever_the_boxes_went(seed: int, walk: list[int]) -> None:
    room = make(seed, (7, 7), 2)
    player, boxes = room.player, room.boxes
    for action in walk:
        player, boxes = room.board.after(player, boxes, action)
    moves = solve(room.board, player, boxes)
    if moves is not None:
        assert finish(Room(room.board, player, boxes, ()), moves) == room.board.targets
    elif boxes == room.boxes:
        pytest.fail("a room that no box was moved in has a solution")


def test_solver_gives_up_on_what_cannot_be_solved() -> None:
    lost = read_room("#####\n#X_P#\n#__O#\n#####")
    assert solve(lost.board, lost.player, lost.boxes) is None


def test_solver_keeps_to_its_limit() -> None:
    room = make(3, (10, 10), 4)
    assert solve(room.board, room.player, room.boxes, most_states=2) is None


def test_solution_fits_the_steps_of_the_episode() -> None:
    assert all(len(make(seed, (8, 8), 2, max_moves=10).solution) <= 10 for seed in range(30))


def test_made_rooms_are_kept_and_equal_to_new_ones() -> None:
    first = make(11)
    assert make(11) is first
    make_room.cache_clear()
    assert make(11) == first


def test_search_depth_bounds_the_pulls() -> None:
    def pushes(room: Room) -> int:
        count, player, boxes = 0, room.player, room.boxes
        for move in room.solution:
            player, after = room.board.after(player, boxes, move)
            count, boxes = count + (after != boxes), after
        return count

    rooms = [
        make_room(seed, "train", dim_room=(8, 8), num_boxes=1, search_depth=2, max_moves=100) for seed in range(20)
    ]
    assert max(map(pushes, rooms)) == 2


def test_expert_tells_several_moves_and_goes_on_from_anywhere() -> None:
    env = Sokoban()
    text = SokobanText(env, TextOptions(max_actions_per_turn=3))
    env.reset(options={"task": "########\n#PX___O#\n#______#\n########"})
    assert text.solve().endswith("<answer>Right || Right || Right</answer>")
    env.step(DOWN)
    assert text.solve().endswith("<answer>Up || Right || Right</answer>")


def test_expert_of_a_lost_room_still_moves() -> None:
    env = Sokoban()
    text = SokobanText(env, TextOptions())
    env.reset(options={"task": "#####\n#X_P#\n#__O#\n#####"})
    for _ in range(4):
        (action,) = text.parse(text.solve()).actions
        assert env.step(action)[4]["action_is_effective"]
    env.reset(options={"task": CORRIDOR})
    assert text.solve().endswith("<answer>Right || Right</answer>")


def test_numbers_of_numpy_are_numbers() -> None:
    one, six, seven = (int_of_numpy(number) for number in (1, 6, 7))
    env = Sokoban(dim_room=[seven, six], num_boxes=one)
    assert env.reset(seed=1)[0].shape == (7, 6)
    env.step(one)


def test_picture_shows_every_cell() -> None:
    env = Sokoban()
    observation, _ = env.reset(seed=3)
    picture = env.render()
    tile = grids.TILE
    assert picture.shape == (6 * tile, 6 * tile, 3)
    for row, column in np.ndindex(observation.shape):
        drawn = picture[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
        assert (drawn == TILES[observation[row, column]]).all()
    assert len({tile.tobytes() for tile in TILES}) == len(SYMBOLS)


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"dim_room": (6,)}, r"dim_room=\(6,\)"),
        ({"dim_room": (3, 6)}, r"dim_room\[0\]=3 is not a whole number from 4 to 64"),
        ({"dim_room": (6, 65)}, r"dim_room\[1\]=65"),
        ({"dim_room": "66"}, "dim_room='66'"),
        ({"dim_room": 6}, "dim_room=6 is not a height and a width"),
        ({"dim_room": None}, "dim_room=None"),
        ({"num_boxes": 0}, "num_boxes=0 is not a whole number from 1"),
        ({"max_steps": 1.5}, "max_steps=1.5"),
        ({"search_depth": True}, "search_depth=True"),
        ({"split": "dev"}, "train, val, test"),
    ],
)
def test_wrong_keyword_arguments(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Sokoban(**kwargs)


def test_too_many_boxes_for_the_room() -> None:
    with pytest.raises(UsageError, match=r"no room was found for split='train' with dim_room=\(4, 4\), num_boxes=3"):
        Sokoban(dim_room=(4, 4), num_boxes=3).reset(seed=1)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (5, "a task is a map as text, not int"),
        ("####\n#P#", "different lengths"),
        ("####\n#P?#\n####", r"'\?' is not a symbol"),
        ("####\n#XO#\n####", "one player, not 0"),
        ("#####\n#PXX#\n#O__#\n#####", "not 2 and 1"),
        ("####\n#P_#\n####", "not 0 and 0"),
        ("####\n#P√#\n####", "solved already"),
        ("####\nPXO#\n####", "the border must be walls"),
    ],
)
def test_wrong_rooms(task: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Sokoban().reset(options={"task": task})
