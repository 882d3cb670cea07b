"""Sokoban: the game's rules and rewards, rooms that can be solved, a solver that solves them."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrollout import TextOptions, UsageError
from asyncrollout_envs import grids
from asyncrollout_envs.seeding import Split
from asyncrollout_envs.sokoban import Sokoban, SokobanText, rooms
from asyncrollout_envs.sokoban.boards import ACTIONS, SYMBOLS
from asyncrollout_envs.sokoban.env import TILES, read_room
from asyncrollout_envs.sokoban.rooms import Room, RoomSettings, make_room
from asyncrollout_envs.sokoban.solver import Allowance, needs_moves, solve

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


def make(
    seed: int,
    dim_room: tuple[int, int] = (6, 6),
    num_boxes: int = 1,
    max_moves: int = 100,
    min_moves: int = 1,
    split: Split = "train",
) -> Room:
    return make_room(seed, RoomSettings(dim_room, num_boxes, min_moves, max_moves, split))


def room_text(room: Room) -> str:
    return grids.to_text(room.board.cells(room.player, room.boxes), SYMBOLS)


def shortest(text: str, most: int) -> int | None:
    """A reference: breadth first, move by move, on sets of places; None if no solution has up to `most` moves."""
    places = {(row, at): symbol for row, line in enumerate(text.split("\n")) for at, symbol in enumerate(line)}
    targets = {place for place, symbol in places.items() if symbol in "O√S"}
    boxes = frozenset(place for place, symbol in places.items() if symbol in "X√")
    (player,) = (place for place, symbol in places.items() if symbol in "PS")
    reached = {(player, boxes)}
    seen = set(reached)
    for moves in range(most + 1):
        if any(boxes == targets for _, boxes in reached):
            return moves
        reached = {state for before in reached for state in next_states(places, *before)} - seen
        seen |= reached
    return None


def next_states(
    places: dict[tuple[int, int], str], player: tuple[int, int], boxes: frozenset[tuple[int, int]]
) -> Iterable[tuple[tuple[int, int], frozenset[tuple[int, int]]]]:
    for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        then = player[0] + down, player[1] + right
        beyond = then[0] + down, then[1] + right
        if then in boxes:
            if beyond not in boxes and places[beyond] != "#":
                yield then, boxes - {then} | {beyond}
        elif places[then] != "#":
            yield then, boxes


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


SIMPLE: dict[str, Any] = {"dim_room": (6, 6), "num_boxes": 1, "max_steps": 100}
LARGER: dict[str, Any] = {"dim_room": (8, 8), "num_boxes": 2, "max_steps": 100, "search_depth": 10}


@pytest.mark.parametrize("kwargs", [SIMPLE, LARGER], ids=["SimpleSokoban", "LargerSokoban"])
def test_rooms_of_ragens_settings_can_be_solved_within_their_ten_actions(kwargs: dict[str, Any]) -> None:
    env = Sokoban(**kwargs)
    SokobanText(env, TextOptions(max_actions_per_traj=10))
    for seed in range(300):
        env.reset(seed=seed)
        assert shortest(shown(env), 10) is not None, f"seed {seed}\n{shown(env)}"


@pytest.mark.parametrize(
    ("dim_room", "num_boxes", "least", "most"),
    [((6, 6), 1, 3, 5), ((6, 6), 1, 9, 9), ((6, 6), 2, 8, 12), ((7, 5), 1, 6, 20), ((8, 8), 2, 10, 10)],
)
def test_difficulty_is_the_moves_of_the_shortest_solution(
    dim_room: tuple[int, int], num_boxes: int, least: int, most: int
) -> None:
    env = Sokoban(dim_room=dim_room, num_boxes=num_boxes, min_moves=least, max_moves=most)
    for seed in range(25):
        env.reset(seed=seed)
        found = shortest(shown(env), most)
        assert found is not None
        assert least <= found <= len(env.room.solution) <= most


@given(seed=st.integers(0, 2**63), boxes=st.integers(1, 2), most=st.integers(4, 14))
@settings(max_examples=40)
def test_what_is_proven_about_moves_is_so(seed: int, boxes: int, most: int) -> None:
    room = make(seed, (6, 6), boxes, most)
    found = shortest(room_text(room), most)
    assert found is not None
    proven = [needs_moves(room.board, room.player, room.boxes, moves) for moves in range(1, most + 3)]
    assert proven == [moves <= found for moves in range(1, most + 3)]


def test_nothing_is_proven_beyond_the_limit() -> None:
    room = make(3, (8, 8), 2, 28, 15)
    assert needs_moves(room.board, room.player, room.boxes, 15)
    assert not needs_moves(room.board, room.player, room.boxes, 15, most_states=2)


@pytest.mark.parametrize(
    ("dim_room", "num_boxes"), [((5, 5), 2), ((5, 5), 3), ((4, 5), 1), ((5, 4), 1), ((6, 6), 4)], ids=str
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_small_rooms_are_made_for_every_seed(dim_room: tuple[int, int], num_boxes: int, split: Split) -> None:
    env = Sokoban(dim_room=dim_room, num_boxes=num_boxes, split=split)
    for seed in range(40 if split == "train" else 5):
        env.reset(seed=seed)
        assert shortest(shown(env), env.settings.max_moves) is not None


@pytest.mark.parametrize(
    "kwargs",
    [{"dim_room": (4, 4)}, {"dim_room": (5, 5), "num_boxes": 4}, {"num_boxes": 8}, {"min_moves": 60, "max_moves": 90}],
    ids=str,
)
def test_settings_without_rooms_have_none_for_any_seed(kwargs: dict[str, Any]) -> None:
    env = Sokoban(**kwargs)
    for seed in range(50):
        with pytest.raises(UsageError, match=r"no room was found for split='train' with dim_room=.*set fewer boxes"):
            env.reset(seed=seed)


def test_splits_of_small_rooms_share_none() -> None:
    train, test = ({make(seed, (5, 5), 1, 10, split=split).board for seed in range(200)} for split in ("train", "test"))
    assert len(train) > 20
    assert len(test) > 5
    assert not train & test


def limited(max_steps: int, actions: int | None, **kwargs: Any) -> Sokoban:
    env = Sokoban(max_steps=max_steps, **kwargs)
    SokobanText(env, TextOptions(max_actions_per_traj=actions))
    return env


@pytest.mark.parametrize("kwargs", [{}, {"max_moves": 6}], ids=str)
def test_room_of_a_seed_is_the_same_with_any_limit_that_it_fits(kwargs: dict[str, Any]) -> None:
    first, *others = (
        [limited(*limits, **kwargs).reset(seed=seed)[0].tolist() for seed in range(50)]
        for limits in ((10, None), (100, None), (5_000, 10), (100, 50))
    )
    assert all(other == first for other in others)


def test_rooms_that_may_not_fit_the_episode_are_refused() -> None:
    for env in (limited(9, None), limited(9, 50), limited(100, 9, max_moves=10), limited(9, None, max_moves=10)):
        with pytest.raises(UsageError, match=r"may need 10 moves, but an episode has 9: set max_moves=9"):
            env.reset(seed=1)
        env.reset(options={"task": CORRIDOR})
    limited(9, None, max_moves=9).reset(seed=1)


def test_rooms_are_made_for_the_actions_of_an_episode() -> None:
    env = limited(100, 4)
    found = []
    for seed in range(30):
        env.reset(seed=seed)
        found.append(shortest(shown(env), 4))
    assert None not in found
    assert 4 in found
    with pytest.raises(UsageError, match=r"min_moves=5 is more than 4, .*max_actions_per_traj.*: set max_moves"):
        limited(100, 4, min_moves=5)


def test_made_rooms_are_kept_and_equal_to_new_ones() -> None:
    first = make(11)
    assert make(11) is first
    make_room.cache_clear()
    assert make(11) == first


def test_search_depth_bounds_the_moves() -> None:
    env = Sokoban(dim_room=(8, 8), search_depth=4)
    found = []
    for seed in range(30):
        env.reset(seed=seed)
        found.append(shortest(shown(env), 4))
    assert None not in found
    assert 4 in found


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
        ({"max_moves": 0}, "max_moves=0 is not a whole number from 1"),
        ({"min_moves": 11}, "min_moves=11 is more than 10.*set max_moves"),
        ({"min_moves": 5, "max_moves": 20, "search_depth": 4}, "min_moves=5 is more than 4"),
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


def test_a_search_ends_when_it_has_cost_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, to prove that rooms of 10x10 need 99 moves takes hours."""
    room = make(3, (7, 7), 2)
    board, player, boxes = room.board, room.player, room.boxes
    least = len(solve(board, player, boxes) or [])
    assert needs_moves(board, player, boxes, 3, Allowance(10_000)) is needs_moves(board, player, boxes, 3)
    spent = Allowance(20)
    assert not needs_moves(board, player, boxes, least, spent)
    assert spent.is_spent
    found = make(1, (9, 9), 2, 21, 20)
    monkeypatch.setattr(rooms, "_MOST_WORK_OF_SETTINGS", 50)
    with pytest.raises(UsageError, match="no room was found"):
        make(1, (9, 9), 2, 23, 20)
    assert make(1, (9, 9), 2, 21, 20) == found


def test_each_box_needs_a_push() -> None:
    with pytest.raises(UsageError, match="no room was found"):
        make(1, (20, 20), 10, max_moves=5)
