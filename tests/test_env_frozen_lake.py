"""FrozenLake: maps with a way, ice that slips as it should, an expert that nobody beats."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import EnvPool, TextOptions, UsageError
from asyncrollout_envs import grids
from asyncrollout_envs.frozen_lake import (
    ACTIONS,
    SYMBOLS,
    TILES,
    FrozenLake,
    FrozenLakeText,
    Lake,
    best_chances,
    make_lake,
    read_lake,
)

LEFT, DOWN, RIGHT, UP = 1, 2, 3, 4
SMALL = "P_O\n__G"


def play(task: str, *actions: int, **kwargs: Any) -> tuple[FrozenLake, list[tuple[Any, ...]]]:
    env = FrozenLake(is_slippery=False, **kwargs)
    env.reset(seed=1, options={"task": task})
    return env, [env.step(action) for action in actions]


def shown(env: FrozenLake) -> str:
    return grids.to_text(env.cells, SYMBOLS)


def test_walk_edges_and_goal() -> None:
    env, steps = play(SMALL, UP, DOWN, RIGHT, RIGHT)
    assert [step[4]["action_is_effective"] for step in steps] == [False, True, True, True]
    assert [step[1] for step in steps] == [0.0, 0.0, 0.0, 1.0]
    assert steps[-1][2:] == (True, False, {"action_is_effective": True, "success": True})
    assert shown(env) == "__O\n__√"


def test_hole_ends_it() -> None:
    env, steps = play(SMALL, RIGHT, RIGHT)
    assert steps[-1][1:] == (0.0, True, False, {"action_is_effective": True, "success": False})
    assert shown(env) == "__X\n__G"


def test_max_steps_truncates() -> None:
    _, steps = play(SMALL, UP, UP, max_steps=2)
    assert [step[2:4] for step in steps] == [(False, False), (False, True)]


@given(seed=st.integers(0, 2**63), size=st.integers(2, 8), p=st.floats(0.5, 1))
def test_maps_have_a_way(seed: int, size: int, p: float) -> None:
    lake = make_lake(seed, "train", size, p)
    assert lake.connected
    assert lake.start != lake.goal
    assert not {lake.start, lake.goal} & lake.holes
    assert best_chances(lake, 1.0, size * size)[-1][lake.start] == pytest.approx(1)
    assert read_lake(grids.to_text(lake.cells(lake.start), SYMBOLS)) == lake


def test_made_maps_are_kept_and_equal_to_new_ones() -> None:
    first = make_lake(5, "train", 4, 0.8)
    assert make_lake(5, "train", 4, 0.8) is first
    make_lake.cache_clear()
    assert make_lake(5, "train", 4, 0.8) == first


def test_share_of_holes() -> None:
    lakes = [make_lake(seed, "train", 8, 0.8) for seed in range(200)]
    assert np.mean([len(lake.holes) / 64 for lake in lakes]) == pytest.approx(0.2, abs=0.04)


def test_ice_slips_to_the_sides_and_never_back() -> None:
    env = FrozenLake(success_rate=0.5)
    wide = "___\n_P_\n__G"
    ends = []
    for seed in range(2000):
        env.reset(seed=seed, options={"task": wide})
        env.step(UP)
        ends.append(env.player)
    shares = {end: ends.count(end) / len(ends) for end in sorted(set(ends))}
    assert shares == {
        (0, 1): pytest.approx(0.5, abs=0.05),
        (1, 0): pytest.approx(0.25, abs=0.05),
        (1, 2): pytest.approx(0.25, abs=0.05),
    }


def exact_chance(lake: Lake, rate: float, steps: int, at: tuple[int, int]) -> float:
    """By plain recursion over what can happen."""
    if at == lake.goal:
        return 1.0
    if at in lake.holes or steps == 0:
        return 0.0
    after = [exact_chance(lake, rate, steps - 1, lake.after(at, action)) for action in ACTIONS]
    return max(rate * after[i] + (1 - rate) / 2 * (after[i - 1] + after[(i + 1) % 4]) for i in range(4))


@pytest.mark.parametrize("rate", [1 / 3, 0.8, 1.0])
def test_chances_are_exact(rate: float) -> None:
    lake = read_lake("P_O\n__G\nO__")
    for steps in range(6):
        assert best_chances(lake, rate, 6)[steps][lake.start] == pytest.approx(exact_chance(lake, rate, steps, (0, 0)))


async def test_expert_reaches_the_best_rate_on_slippery_ice() -> None:
    games, won, expected = 400, 0, 0.0
    async with EnvPool(backend="inline") as pool, pool.open("frozen_lake", expert=True) as env:
        for seed in range(games):
            outcome = await env.reset(seed=seed)
            lake = make_lake(seed, "train", 4, 0.8)
            expected += best_chances(lake, 1 / 3, 100)[100][lake.start]
            while not outcome.done:
                outcome = await env.step(outcome.info["expert"])
            won += outcome.info["success"]
    assert won / games == pytest.approx(expected / games, abs=0.05)


def test_expert_takes_the_shortest_way_on_rough_ice() -> None:
    env, _ = play("P____\n_OOO_\n____G")
    text = FrozenLakeText(env, TextOptions())
    for _ in range(6):
        (action,) = text.parse(text.solve()).actions
        *_, info = env.step(action)
    assert info["success"]


async def test_members_share_the_map_and_slip_each_in_their_own_way() -> None:
    async with EnvPool(backend="inline") as pool, pool.open("frozen_lake", size=6, p=1.0) as env:
        ways = []
        for member in [0, 1, 2, 3, 0]:
            starts = await env.reset(seed=9, member=member)
            ways.append([starts.observation.text, *[(await env.step("right")).observation.text for _ in range(4)]])
    assert len({way[0] for way in ways}) == 1
    assert len({tuple(way) for way in ways}) > 1
    assert ways[0] == ways[4]


def test_expert_of_a_very_long_game_looks_ahead_only_so_far() -> None:
    env, _ = play(SMALL, max_steps=10**9)
    text = FrozenLakeText(env, TextOptions())
    assert text.parse(text.solve()).actions[0] in (DOWN, RIGHT)
    assert best_chances(env.lake, 1.0, 500).shape[0] == 501


def test_prompt_tells_of_slippery_ice() -> None:
    assert "slippery" in FrozenLakeText(FrozenLake(), TextOptions()).system_prompt()
    assert "slippery" not in FrozenLakeText(FrozenLake(is_slippery=False), TextOptions()).system_prompt()


def test_picture_shows_every_cell() -> None:
    env, _ = play("P_O\n__G")
    picture = env.render()
    tile = grids.TILE
    assert picture.shape == (2 * tile, 3 * tile, 3)
    assert (picture[:tile, :tile] == TILES[0]).all()
    assert (picture[tile:, 2 * tile :] == TILES[3]).all()
    assert len({tile.tobytes() for tile in TILES}) == len(SYMBOLS)


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"size": 1}, "size=1 is not a whole number from 2 to 64"),
        ({"size": 10**6}, "size=1000000"),
        ({"is_slippery": "no"}, "is_slippery='no' is neither True nor False"),
        ({"p": 1.5}, r"p=1.5 is not a number from 0 to 1"),
        ({"success_rate": "high"}, "success_rate='high'"),
        ({"max_steps": 0}, "max_steps=0"),
    ],
)
def test_wrong_keyword_arguments(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        FrozenLake(**kwargs)


def test_ice_too_thin_for_a_way() -> None:
    with pytest.raises(UsageError, match=r"split='val' with size=2, p=0.0: make one of them larger"):
        FrozenLake(size=2, p=0.0, split="val").reset(seed=1)


@pytest.mark.parametrize(
    ("task", "told"),
    [("P_", "one P and one G, not 1 and 0"), ("P_\nOG\nPG", "not 2 and 2"), ("PO\nOG", "no way"), ("PX\n_G", "'X'")],
)
def test_wrong_maps(task: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        FrozenLake().reset(options={"task": task})


@pytest.mark.parametrize("action", [0, 5, "left", 1.0, True])
def test_wrong_action(action: Any) -> None:
    with pytest.raises(ValueError, match=r"1 \(left\)"):
        play(SMALL, action)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
def test_a_large_lake_with_hardly_any_ice_is_found_or_refused_soon(p: float) -> None:
    began = time.process_time()
    try:
        lake = make_lake(1, "train", 64, p)
    except UsageError as error:
        assert "make one of them larger" in str(error)  # noqa: PT017 (both are right)
    else:
        assert lake.connected
    assert time.process_time() - began < 5  # a minute and more, if each map is written out before it is tried
