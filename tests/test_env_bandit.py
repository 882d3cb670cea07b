"""Bandit: what the arms pay, how they are named, and that members of a group have each their own luck."""

import time
from typing import Any

import numpy as np
import pytest

from asyncrollout import EnvPool, TextOptions, UsageError
from asyncrollout_envs.bandit import RISKY_NAMES, STEADY_NAMES, Bandit, BanditText


def pay(action: Any, seed: int, member: int = 0, **kwargs: Any) -> float:
    env = Bandit(**kwargs)
    env.reset(seed=seed, options={"member": member})
    return float(env.step(action)[1])


def test_steady_arm_pays_always() -> None:
    assert {pay("phoenix", seed) for seed in range(50)} == {0.1}


def test_risky_arm_pays_seldom() -> None:
    paid = [pay("dragon", seed) for seed in range(2000)]
    assert set(paid) == {0.0, 1.0}
    assert np.mean(paid) == pytest.approx(0.25, abs=0.04)


def test_members_have_each_their_own_luck() -> None:
    paid = [pay("dragon", 7, member) for member in range(200)]
    assert np.mean(paid) == pytest.approx(0.25, abs=0.12)
    assert paid == [pay("dragon", 7, member) for member in range(200)]


async def test_members_of_a_group_through_the_pool(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        starts, paid = set(), []
        for member in range(40):
            async with pool.open("bandit") as env:
                starts.add((await env.reset(seed=7, member=member)).observation.text)
                paid.append((await env.step("<answer>dragon</answer>")).reward)
    assert len(starts) == 1
    assert set(paid) == {0.0, 1.0}


def test_order_of_the_arms_depends_on_the_seed() -> None:
    env = Bandit()
    orders = set()
    for seed in range(20):
        env.reset(seed=seed)
        orders.add(env.arms)
    assert orders == {("phoenix", "dragon"), ("dragon", "phoenix")}


@pytest.mark.parametrize("number", [1, 2])
def test_number_stands_for_the_arm_in_the_order_told(number: int) -> None:
    env = Bandit()
    observation, _ = env.reset(seed=3)
    *_, info = env.step(number)
    assert f"{number}. {info['arm']}" in observation


@pytest.mark.parametrize("said", ["2", "Arm 2", "arm number 2", "#2", "I choose arm 2.", "number 2"])
def test_number_may_be_said_in_words(said: str) -> None:
    env = Bandit()
    env.reset(seed=3)
    text = BanditText(env, TextOptions())
    assert text.parse(f"<answer>{said}</answer>").actions == (2,)
    assert not text.parse(f"<answer>{said.replace('2', '3')}</answer>").valid


def test_two_arms_at_once_are_none() -> None:
    env = Bandit()
    env.reset(seed=3)
    assert not BanditText(env, TextOptions()).parse("<answer>arm 1 or arm 2</answer>").valid


def test_success_is_the_better_arm() -> None:
    env = Bandit()
    env.reset(seed=3)
    assert env.step("dragon")[4]["success"]
    env.reset(seed=3)
    assert not env.step("phoenix")[4]["success"]


def test_prompt_offers_as_many_choices_as_there_are() -> None:
    def prompt(max_steps: int) -> str:
        env = Bandit(max_steps=max_steps)
        env.reset(seed=3)
        return BanditText(env, TextOptions()).system_prompt()

    assert "actions in one reply" not in prompt(1)
    assert "up to 3 actions in one reply" in prompt(3)


def test_better_arm_may_be_the_steady_one() -> None:
    env = Bandit(high_probability=0.05)
    env.reset(seed=3)
    assert env.best_arms == ("phoenix",)


def test_one_choice_unless_told_otherwise() -> None:
    env = Bandit()
    env.reset(seed=3)
    assert env.step(1)[2]
    env = Bandit(max_steps=2)
    env.reset(seed=3)
    assert not env.step(1)[2]
    observation, _, terminated, _, _ = env.step("phoenix")
    assert terminated
    assert observation.startswith("phoenix paid 0.1.")


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_many_arms_have_names_of_their_split(split: Any) -> None:
    env = Bandit(num_arms=5, split=split)
    env.reset(seed=3)
    assert len(set(env.arms)) == 5
    assert env.risky in RISKY_NAMES[split]
    assert set(env.arms) - {env.risky} <= set(STEADY_NAMES[split])


def test_no_name_is_in_two_splits() -> None:
    for words in (STEADY_NAMES, RISKY_NAMES):
        assert len({name for split in words.values() for name in split}) == sum(map(len, words.values()))


def test_own_names() -> None:
    env = Bandit(names=["Blue Whale", "red fox"])
    text = BanditText(env, TextOptions())
    env.reset(seed=3)
    assert text.parse("<answer>blue whale</answer>").actions == ("Blue Whale",)
    assert text.parse("the Blue Whale, please").actions == ("Blue Whale",)
    assert not text.parse("<answer>dragon</answer>").valid
    assert not text.parse("<answer>3</answer>").valid


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"names": "dragon"}, "names='dragon'"),
        ({"names": ["a", "A "]}, "different names"),
        ({"names": None}, "names=None"),
        ({"names": [3, 4]}, r"names=\[3, 4\] are not"),
        ({"names": ["2", "b"]}, "'2' is not a name that differs from a number"),
        ({"names": [" ", "b"]}, "'' is not a name"),
        ({"num_arms": 1}, "num_arms=1 is not a whole number from 2"),
        ({"num_arms": 50}, r"there are words for 11 arms; give names=\[...\]"),
        ({"high_probability": 2}, "high_probability=2"),
        ({"low_score": "much"}, "low_score='much'"),
        ({"max_steps": 0}, "max_steps=0"),
    ],
)
def test_wrong_keyword_arguments(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Bandit(**kwargs)


@pytest.mark.parametrize("action", ["griffin", 0, 3, None, True, 1.0])
def test_wrong_action(action: Any) -> None:
    with pytest.raises(ValueError, match="neither an arm"):
        pay(action, 1)


@pytest.mark.parametrize("kwargs", [{"low_score": 0.25}, {"low_score": 0.3, "high_probability": 0.3}])
def test_arms_of_equal_means_are_all_the_best(kwargs: dict[str, Any]) -> None:
    for arm in ("phoenix", "dragon"):
        env = Bandit(**kwargs)
        env.reset(seed=3)
        assert env.step(arm)[4]["success"]


@pytest.mark.parametrize("style", ["plain", "ragen"])
def test_rules_are_there_before_a_reset(style: Any) -> None:
    assert "<answer> phoenix </answer>" in BanditText(Bandit(style=style), TextOptions()).system_prompt()


@pytest.mark.parametrize("part", ["\n", "\n ", ">", "> ", "*", "\n* ", "1. ", "arm ", "\t\n"])
def test_no_reply_takes_long(part: str) -> None:
    reply = part * (1_000_000 // len(part))
    began = time.process_time()
    BanditText(Bandit(), TextOptions()).parse(reply)
    BanditText.project(f"<answer>{reply[:30_000]}</answer>", TextOptions())
    assert time.process_time() - began < 1  # a minute, if each line looks through all those after it
