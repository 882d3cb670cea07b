"""How envs are shown to language models, and RAGEN's rules through the pool, as a run of its configs plays them."""

import re
from typing import Any

import numpy as np
import pytest

from asyncrollout import EnvPool, Outcome, TextOptions, UsageError
from asyncrollout_envs.frozen_lake import FrozenLake, FrozenLakeText
from asyncrollout_envs.sokoban import Sokoban, SokobanText

ROOM = "######\n#PXO_#\n#_OX_#\n#____#\n######"
LAKE = "P__\n_O_\n__G"
LETTERS = ["W", " ", "G", "C", "B", "A", "@"]


def sokoban(task: str = ROOM, **kwargs: Any) -> tuple[Sokoban, SokobanText]:
    env = Sokoban(dim_room=(5, 6), num_boxes=2, **kwargs)
    env.reset(options={"task": task})
    return env, SokobanText(env, TextOptions())


def test_places_of_a_room_follow_its_moves() -> None:
    env, text = sokoban(observation_format="coord")
    size = "Size: 5 rows, 6 columns; places are (row, column), counted from (0, 0) at the top left."
    targets = "Targets: (1, 3), (2, 2)"
    assert text.describe(env.cells) == f"{size}\n{targets}\nBoxes: (1, 2), (2, 3)\nYou: (1, 1)"
    env.step(4)
    assert text.describe(env.cells) == f"{size}\n{targets}\nBoxes: (2, 3)\nBoxes on targets: (1, 3)\nYou: (1, 2)"
    env.step(2)
    assert str(text.describe(env.cells)).endswith("You, on a target: (2, 2)")


def test_rooms_that_differ_in_a_wall_read_differently() -> None:
    shown = []
    for room in (ROOM, ROOM.replace("_", "#", 1)):
        env, text = sokoban(room, observation_format="coord")
        shown.append(str(text.describe(env.cells)))
    assert "Walls" not in shown[0]
    assert re.fullmatch(re.escape(shown[0]) + r"\nWalls, beside those around it: \(\d, \d\)", shown[1])


def test_places_of_a_lake() -> None:
    env = FrozenLake(size=3, is_slippery=False, observation_format="grid_coord")
    env.reset(options={"task": LAKE})
    text = FrozenLakeText(env, TextOptions())
    for action, you in [(3, "You: (0, 1)"), (2, "You, in a hole: (1, 1)")]:
        env.step(action)
        shown = str(text.describe(env.cells))
        assert f"Start: (0, 0)\nGoal: (2, 2)\n{you}\nHoles: (1, 1)" in shown
    assert shown.endswith("Grid:\n___\n_X_\n__G")


def test_symbols_of_ones_own_are_shown_explained_and_read() -> None:
    task = "WWWWWW\nWABG W\nW GB W\nW    W\nWWWWWW"
    env, text = sokoban(task, symbols=LETTERS, meanings=["brick", "air", "goal", "done", "crate", "me", "me there"])
    assert text.describe(env.cells) == task
    assert "W brick,   air, G goal, C done, B crate, A me, @ me there" in text.system_prompt()
    assert "# wall" in sokoban()[1].system_prompt()


@pytest.mark.parametrize("env", [Sokoban, FrozenLake])
async def test_a_picture_is_shown_instead(env: Any) -> None:
    name = "sokoban" if env is Sokoban else "frozen_lake"
    async with EnvPool(backend="inline") as pool, pool.open(name, images=True) as one:
        first = await one.reset(seed=3)
        (picture,) = first.observation.images
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert not {*"#_"} & {*first.observation.text}
        assert "picture" in first.info["system_prompt"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"observation_format": "hex"}, "observation_format='hex' is not one of grid, coord, grid_coord"),
        ({"symbols": "#_O"}, "symbols='#_O' are not 7 different texts"),
        ({"symbols": "#_O√XPP"}, "symbols='#_O√XPP' are not 7 different texts"),
        ({"symbols": ["##", *"_O√XPS"]}, "'##' is not a single character"),
        ({"meanings": ["wall"]}, r"meanings=\['wall'\] are not 7 different texts"),
        ({"images": 1}, "images=1 is neither True nor False"),
    ],
)
def test_a_view_that_cannot_be_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Sokoban(**wrong)


async def answer(name: str, reply: str, task: Any = None, **kwargs: Any) -> Outcome:
    async with EnvPool(backend="inline") as pool, pool.open(name, style="ragen", **kwargs) as env:
        await env.reset(seed=3, task=task)
        return await env.step(f"<think>So.</think><answer>{reply}</answer>")


async def test_whatever_is_in_tags_is_an_answer() -> None:
    puzzle = {"target": 4, "nums": [2, 5, 3]}
    for reply, reward in [("2 + 5 - 3", 1.0), ("2, 5 and 3", 0.1), ("none", 0.0)]:
        outcome = await answer("countdown", reply, puzzle)
        assert (outcome.reward, outcome.done, outcome.info["action_is_effective"]) == (reward, True, reward > 0)
        assert outcome.observation.text == f"Your answer is worth {reward:g} points."
    outcome = await answer("metamathqa", "The answer is 5")
    assert (outcome.reward, outcome.done, outcome.observation.text) == (0.0, False, "Incorrect. Please think again.")


@pytest.mark.parametrize("style", ["plain", "ragen"])
async def test_an_arm_that_misses_may_cost(style: str) -> None:
    async with EnvPool(backend="inline") as pool:
        rewards, successes = set(), set()
        kwargs: dict[str, Any] = {"high_probability": 0.5, "high_score": 1.0, "miss_score": -2.0}
        async with pool.open("bandit", style=style, **kwargs) as env:
            for seed in range(30):
                await env.reset(seed=seed)
                outcome = await env.step("<answer>dragon</answer>")
                rewards.add(outcome.reward)
                successes.add(outcome.info["success"])
    assert rewards == {1.0, -2.0}
    assert successes == {style == "ragen"}  # in the mean, this arm pays less


async def test_webshop_tells_what_ragens_metrics_are_made_of() -> None:
    async with EnvPool(backend="inline") as pool, pool.open("webshop", style="ragen", text=False) as env:
        await env.reset(seed=3)
        first = await env.step("click[buy now]")
        assert (first.info["action_is_valid"], first.info["raw_reward"], first.info["end_of_page"]) == (False, 0, False)
        found = await env.step("search[lamp]")
        assert (found.info["action_is_valid"], found.info["success_purchase"]) == (True, False)
        product = next(one for one in await env.call("available_actions") if one.startswith("click[b0"))
        for action, ends in [(product, False), ("click[description]", True), ("click[< prev]", False)]:
            assert (await env.step(action)).info["end_of_page"] is ends
        bought = await env.step("click[buy now]")
        told = bought.info
        assert (bought.done, told["success_purchase"], told["success_find"]) == (True, True, told["success"])
        assert told["reward"] == bought.reward == told["raw_reward"]


@pytest.mark.parametrize("name", ["bandit", "countdown", "metamathqa", "webshop", "sudoku", "game_2048"])
async def test_a_style_is_one_of_two(name: str) -> None:
    async with EnvPool(backend="inline") as pool:
        with pytest.raises(UsageError, match="style='verl' is not one of plain, ragen"):
            await pool.open(name, style="verl")
