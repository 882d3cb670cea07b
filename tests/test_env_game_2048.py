"""2048's rules: how lines slide, what moves earn, when a game is over, and each member's own luck."""

import math
import random
from typing import Any

import pytest

from asyncrollout import TextOptions, UsageError
from asyncrollout_envs.game_2048 import DOWN, LEFT, RIGHT, UP, Game2048, Game2048Text, moved, moves, slid

START = [[2, 2, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 8]]
STUCK = [[2, 4, 2, 4], [4, 2, 4, 2], [2, 4, 2, 4], [4, 2, 4, 8]]


@pytest.mark.parametrize(
    ("line", "after", "gained"),
    [
        ((0, 2, 0, 2), (4, 0, 0, 0), 4),
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),
        ((4, 2, 4, 2), (4, 2, 4, 2), 0),
        ((0, 0, 0, 0), (0, 0, 0, 0), 0),
    ],
)
def test_each_tile_merges_once(line: tuple[int, ...], after: tuple[int, ...], gained: int) -> None:
    assert slid(line) == (after, gained)


@pytest.mark.parametrize(
    ("action", "rows", "gained"),
    [
        (UP, [[2, 2, 0, 8], [4, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], 0),
        (RIGHT, [[0, 0, 0, 4], [0, 0, 0, 4], [0, 0, 0, 0], [0, 0, 0, 8]], 4),
        (DOWN, [[0, 0, 0, 0], [0, 0, 0, 0], [2, 0, 0, 0], [4, 2, 0, 8]], 0),
        (LEFT, [[4, 0, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0], [8, 0, 0, 0]], 4),
    ],
)
def test_directions(action: int, rows: list[list[int]], gained: int) -> None:
    assert moved(tuple(map(tuple, START)), action) == (tuple(map(tuple, rows)), gained)


@pytest.mark.parametrize("goal", [8, 64, 2048, 100])
def test_all_that_a_won_game_earns_is_1_whatever_the_way(goal: int) -> None:
    rng = random.Random(goal)
    for seed in range(3):
        env = Game2048(goal=goal)
        env.reset(seed=seed)
        largest, total, over = env.max_tile, 0.0, False
        first = largest
        text = Game2048Text(env, TextOptions())
        while not over:
            detour = rng.choice((UP, RIGHT, DOWN, LEFT))
            action = detour if rng.random() < 0.2 else text.parse(text.solve()).actions[0]
            _, reward, over, truncated, info = env.step(action)
            assert (reward > 0) == (env.max_tile > largest)
            largest, total, over = env.max_tile, total + reward, over or truncated
            expected = 1.0 if largest >= goal else 0.5 * math.log2(largest / first) / math.log2(goal / first)
            assert total == pytest.approx(expected)
        assert info["success"] == (total == pytest.approx(1.0))


@pytest.mark.parametrize(("logs", "merge", "nothing"), [(True, 0.1 * math.log2(5), 0.0), (False, 4.0, -0.1)])
@pytest.mark.parametrize("style", ["plain", "ragen"])
def test_rewards(logs: bool, merge: float, nothing: float, style: Any) -> None:
    env = Game2048(use_log_reward=logs, style=style)
    env.reset(seed=1, options={"task": START})
    grid, reward, *_, info = env.step(LEFT)
    assert reward == pytest.approx(merge)
    assert sum(tile > 0 for row in grid for tile in row) == 4
    assert (info["score"], info["action_is_effective"]) == (4, True)
    env.reset(seed=1, options={"task": [[2, 0, 0, 0]] + [[0] * 4] * 3})
    grid, reward, *_, info = env.step(UP)
    assert (reward, info["action_is_effective"]) == (nothing, False)
    assert sum(map(sum, grid)) == 2
    assert info.get("action_is_valid") is (False if style == "ragen" else None)


def test_no_game_begins_won() -> None:
    with pytest.raises(UsageError, match="it is won already, with goal=16"):
        Game2048(goal=16).reset(options={"task": [[16, 0, 0, 0]] + [[0] * 4] * 3})
    with pytest.raises(UsageError, match="goal=4 is not a whole number from 8"):
        Game2048(goal=4)
    ragen = Game2048(goal=16, style="ragen")
    ragen.reset(options={"task": [[16, 0, 0, 0]] + [[0] * 4] * 3})
    assert not ragen.step(RIGHT)[2]  # it continues beyond the goal


def test_a_game_is_lost_when_nothing_moves() -> None:
    almost = [[2, 4, 2, 4], [4, 2, 4, 2], [2, 4, 2, 4], [0, 16, 32, 64]]
    env = Game2048(two_prob=1.0)
    env.reset(seed=1, options={"task": almost})
    assert moves(env.grid) == [DOWN, LEFT]
    _, _, over, truncated, info = env.step(LEFT)
    assert (over, truncated, info["success"], info["max_tile"]) == (True, False, False, 64)
    with pytest.raises(UsageError, match="nothing can move"):
        env.reset(options={"task": STUCK})


@pytest.mark.parametrize(("style", "over"), [("plain", True), ("ragen", False)])
def test_the_goal_ends_a_game_but_not_ragens(style: Any, over: bool) -> None:
    env = Game2048(goal=16, style=style)
    env.reset(seed=1, options={"task": [[8, 8, 0, 0]] + [[0] * 4] * 3})
    *_, terminated, _, info = env.step(LEFT)
    assert (terminated, info["success"]) == (over, over)


def test_members_share_the_start_and_have_their_own_luck() -> None:
    games = []
    for member in (0, 1):
        env = Game2048()
        first, _ = env.reset(seed=5, options={"member": member})
        games.append((first, [env.step(action)[0] for action in (LEFT, UP, RIGHT, DOWN) * 3]))
    assert games[0][0] == games[1][0]
    assert games[0][1] != games[1][1]


def test_what_is_told() -> None:
    env = Game2048()
    env.reset(seed=1, options={"task": [[2, 0, 0, 0]] + [[0] * 4] * 3})
    told = Game2048Text(env, TextOptions()).describe(env.grid)
    assert "Row 1: 2, 0, 0, 0" in told
    assert "1 (Right), 2 (Down). Merge" in told
    assert "0 (Up)" not in told


def test_the_expert_plans_ahead() -> None:
    reached = []
    for seed in range(4):
        env = Game2048(goal=256)
        env.reset(seed=seed)
        text = Game2048Text(env, TextOptions())
        done = False
        while not done:
            _, _, terminated, truncated, info = env.step(text.parse(text.solve()).actions[0])
            done = terminated or truncated
        reached.append(info["success"])
    assert all(reached)


@pytest.mark.parametrize(
    "wrong", [{"size": 1}, {"two_prob": 2}, {"goal": 2}, {"use_log_reward": 1}, {"style": "other"}, {"max_steps": 0}]
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Game2048(**wrong)
    env = Game2048()
    env.reset(seed=1)
    with pytest.raises(ValueError, match="4 is not one of 0 \\(up\\)"):
        env.step(4)
    for task in ([[2, 2]], "2048", [[3] * 4] * 4):
        with pytest.raises(UsageError, match="4 rows of 4 tiles"):
            env.reset(options={"task": task})
