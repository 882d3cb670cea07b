"""What `docs/envs/` states of the shipped envs: their data, tasks, actions, rewards and lengths."""

import inspect
import json
import re
from importlib import import_module, resources
from typing import Any

import numpy as np
import pytest

from asyncrollout import EnvPool, Outcome, TextOptions
from asyncrollout.registry import env_names, find_env
from asyncrollout.text.replies import LONGEST
from asyncrollout_envs.household.rooms import ACTIVITIES
from asyncrollout_envs.webshop.generate import Generated
from tests.docs_page import ROOT

INDEX = (ROOT / "docs" / "envs" / "index.md").read_text()
PAGE = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "envs").glob("*.md")))
TEXT_ENVS = re.findall(r"^\| `(\w+)` \| .* \| .* \| .* \| `.* \|$", INDEX, re.MULTILINE)


def number(pattern: str) -> int:
    """The number that the page has there."""
    (found,) = re.findall(pattern, PAGE)
    return int(found.replace(",", ""))


async def first(env: str, task: Any = None, **kwargs: Any) -> Outcome:
    async with EnvPool(backend="inline") as pool, pool.open(env, **kwargs) as opened:
        return await opened.reset(seed=3, task=task)


def test_generated_data_are_as_many_as_documented() -> None:
    stock = [*Generated().stock()]
    assert number(r"a shop of ([\d,]+) products") == len(stock)
    assert number(r"products and ([\d,]+) goals") == sum(len(goals) for _, goals in stock)
    problems = json.loads(resources.files("asyncrollout_envs.metamathqa").joinpath("problems.json").read_text())
    assert number(r"(\d+) problems of \d+ kinds") == len(problems)
    assert number(r"problems of (\d+) kinds") == len({problem["type"] for problem in problems})


@pytest.mark.parametrize("env", TEXT_ENVS)
def test_every_text_env_has_splits(env: str) -> None:
    factory = find_env(env).factory
    assert isinstance(factory, str)
    module, _, name = factory.partition(":")
    assert inspect.signature(getattr(import_module(module), name)).parameters["split"].default == "train"


def test_every_text_env_is_in_the_table() -> None:
    specs = [find_env(name) for name in env_names()]
    ours = {spec.name for spec in specs if spec.text is not None and str(spec.factory).startswith("asyncrollout_envs")}
    assert ours == {*TEXT_ENVS}


def test_replies_are_read_by_the_documented_defaults() -> None:
    options = TextOptions()
    assert number(r"`max_actions_per_turn` \((\d+)\)") == options.max_actions_per_turn
    assert f"separated by `{options.separator}`" in PAGE
    assert f"costs `format_penalty` ({options.format_penalty}," in PAGE
    assert number(r"searched in its last ([\d,]+) characters") == LONGEST


@pytest.mark.parametrize("env", ["sokoban", "frozen_lake"])
async def test_a_map_in_the_symbols_that_an_env_shows_is_a_task(env: str) -> None:
    shown = (await first(env)).observation.text
    rows = [line for line in shown.splitlines() if re.fullmatch(r"[#_OXPSGVI√*+-]{3,}", line.strip())]
    again = await first(env, task="\n".join(rows))
    assert rows
    assert all(row in again.observation.text for row in rows)


@pytest.mark.parametrize(
    ("env", "task", "shown"),
    [
        ("countdown", {"target": 24, "nums": [3, 5, 9]}, "Target: 24, nums: [3, 5, 9]"),
        ("metamathqa", 0, None),
        ("webshop", 0, None),
        *(("household", name, None) for name in ACTIVITIES),
    ],
    ids=str,
)
async def test_tasks_are_as_documented(env: str, task: Any, shown: str | None) -> None:
    told = await first(env, task)
    assert told.observation.text == (await first(env, task)).observation.text
    assert shown is None or shown in told.observation.text


def test_every_activity_of_a_household_is_documented() -> None:
    (row,) = re.findall(r"^\| `household` \| the name of an activity: (.*) \|$", PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == [*ACTIVITIES]


@pytest.mark.parametrize(("env", "size"), [("PointRobot-v0", 2), ("PointRobotSparse-v0", 2)])
async def test_an_episode_of_a_point_robot_has_as_many_steps_as_documented(env: str, size: int) -> None:
    async with EnvPool(backend="inline") as pool, pool.open(env) as opened:
        outcome, steps = await opened.reset(seed=3), 0
        while not outcome.done:
            outcome = await opened.step(np.zeros(size))
            steps += 1
    (row,) = re.findall(rf"^\| `{env}` \|.*\| (\d+) steps \|$", PAGE, re.MULTILINE)
    assert steps == int(row)


@pytest.mark.parametrize(
    ("replies", "rewards"),
    [(["<answer>Right</answer>"], [10.9]), (["<answer>4</answer>"], [10.9]), (["<answer>Up</answer>"], [-0.1])],
)
async def test_rewards_of_sokoban_are_as_documented(replies: list[str], rewards: list[float]) -> None:
    """One step, a box on its target, and all of them there: -0.1, 1 and 10."""
    room = "######\n#____#\n#PXO_#\n#____#\n######\n######"
    async with EnvPool(backend="inline") as pool, pool.open("sokoban") as env:
        await env.reset(seed=3, task=room)
        assert [(await env.step(reply)).reward for reply in replies] == pytest.approx(rewards)


async def test_attempts_at_a_question_earn_half_each_time() -> None:
    async with EnvPool(backend="inline") as pool, pool.open("metamathqa", expert=True) as env:
        right = (await env.reset(seed=3)).info["expert"]
        for attempt in range(3):
            await env.reset(seed=3)
            for _ in range(attempt):
                await env.step("<answer>it is nowhere near</answer>")
            assert (await env.step(right)).reward == 1 / 2**attempt
