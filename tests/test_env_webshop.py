"""Playing in the generated shop: pages, actions, rewards, splits, and the expert."""

from collections.abc import Iterator
from typing import Any

import pytest

from asyncrollout import EnvPool, TextOptions, UsageError
from asyncrollout_envs.seeding import Split
from asyncrollout_envs.webshop import WebShop, WebShopText
from asyncrollout_envs.webshop.env import split_range
from asyncrollout_envs.webshop.pages import ItemPage, ResultsPage

Step = tuple[str, float, bool, bool, dict[str, Any]]

SPLITS: tuple[Split, ...] = ("train", "val", "test")
LENIENT = TextOptions()


@pytest.fixture
def env() -> Iterator[WebShop]:
    env = WebShop()
    env.reset(seed=0)
    yield env
    env.close()


@pytest.fixture
def text(env: WebShop) -> WebShopText:
    return WebShopText(env, LENIENT)


def do(env: WebShop, *actions: str) -> Step:
    for action in actions:
        outcome = env.step(action)
        assert outcome[-1]["action_is_effective"], action
    return outcome


def buy(env: WebShop, text: WebShopText) -> tuple[int, Step]:
    """Let the expert go to the end."""
    for steps in range(1, 20):
        (action,) = text.parse(text.solve()).actions
        outcome = env.step(action)
        if outcome[2] or outcome[3]:
            return steps, outcome
    raise AssertionError("it never ends")


def first_result(env: WebShop) -> str:
    return next(action for action in env.available_actions() if action.startswith("click[b0"))


def item(env: WebShop) -> ItemPage:
    assert isinstance(env.page, ItemPage)
    return env.page


def an_option(env: WebShop) -> str:
    """The click that chooses the first value of the product's first option."""
    return f"click[{next(iter(item(env).product.options.values()))[0]}]"


def walk(env: WebShop, way: list[str]) -> None:
    """Play actions; `open` is for the first result, `option` for an option."""
    for action in way:
        do(env, first_result(env) if action == "open" else an_option(env) if action == "option" else action)


def test_it_begins_on_the_search_page(env: WebShop, text: WebShopText) -> None:
    observation, info = env.reset(seed=0)
    assert env.goal.instruction in observation
    assert env.available_actions() == ["search[<words>]"]
    assert text.describe(observation).endswith("Available actions:\nsearch[<words>]")
    assert set(info) == {"goal_index"}


def test_results_come_ten_to_a_page(env: WebShop) -> None:
    observation, reward, terminated, truncated, _ = do(env, "search[boots]")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation.count("[B0") == 10
    assert "Page 1 (Total results: 32)" in observation
    first = env.available_actions()
    assert first[:2] == ["click[back to search]", "click[next >]"]
    assert len(first) == 12
    do(env, "click[next >]")
    second = env.available_actions()
    assert second[:3] == ["click[back to search]", "click[< prev]", "click[next >]"]
    assert not set(first[2:]) & set(second[3:])
    do(env, "click[next >]", "click[next >]")
    assert "click[next >]" not in env.available_actions()
    assert len(env.available_actions()) == 2 + 2
    do(env, "click[< prev]", "click[< prev]", "click[< prev]")
    assert env.available_actions() == first


def test_a_result_shows_number_title_and_price(env: WebShop) -> None:
    observation, *_ = do(env, "search[boots]")
    product = env.catalogue.product(first_result(env)[6:-1].upper())
    assert f"\n[{product.asin}] {product.title} | {product.price_tag}\n" in observation


def test_nothing_found_is_a_page_too(env: WebShop) -> None:
    observation, *_ = do(env, "search[zzzz]")
    assert "Total results: 0" in observation
    assert env.available_actions() == ["click[back to search]"]


def test_a_product_has_options_and_pages_of_details(env: WebShop) -> None:
    do(env, "search[shirts]")
    do(env, first_result(env))
    product = item(env).product
    values = [f"click[{value}]" for values in product.options.values() for value in values]
    details = ["click[description]", "click[features]", "click[reviews]"]
    offered = ["click[back to search]", "click[< prev]", *details, *values, "click[buy now]"]
    assert env.available_actions() == offered
    for detail, expected in zip(
        details, [product.description, "\n".join(product.features), "\n".join(product.reviews)], strict=True
    ):
        assert expected in do(env, detail)[0]
        assert env.available_actions() == ["click[back to search]", "click[< prev]"]
        do(env, "click[< prev]")
        assert env.available_actions() == offered


def test_options_are_chosen_changed_and_forgotten(env: WebShop) -> None:
    do(env, "search[shirts]")
    do(env, first_result(env))
    one, other = next(iter(item(env).product.options.values()))[:2]
    assert f"(chosen: {one})" in do(env, f"click[{one}]")[0]
    observation, *_ = do(env, f"click[{other}]")
    assert f"(chosen: {other})" in observation
    assert f"(chosen: {one})" not in observation
    assert "chosen" in do(env, "click[description]", "click[< prev]")[0]
    do(env, "click[< prev]")
    assert "chosen" not in do(env, first_result(env))[0]


def test_back_to_search_leads_there_from_everywhere(env: WebShop) -> None:
    for way in (["search[shirts]"], ["search[shirts]", "open"], ["search[shirts]", "open", "click[features]"]):
        walk(env, way)
        do(env, "click[back to search]")
        assert env.available_actions() == ["search[<words>]"]


@pytest.mark.parametrize(
    "action", ["click[nothing]", "click[buy now]", "click[b000000000]", "nonsense", "", "search[]"]
)
def test_what_is_not_on_the_page_has_no_effect(env: WebShop, action: Any) -> None:
    before = env.state_key()
    observation, reward, terminated, truncated, info = env.step(action)
    assert info == {"action_is_effective": False, "success": False}
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation.startswith("That has no effect on this page.")
    assert env.state_key() == before


def test_searching_works_on_the_search_page_only(env: WebShop) -> None:
    do(env, "search[shirts]")
    before = env.available_actions()
    assert env.step("search[boots]")[-1]["action_is_effective"] is False
    assert env.available_actions() == before
    do(env, "click[back to search]", "search[boots]")
    assert env.available_actions() != before


def test_choosing_what_is_chosen_has_no_effect(env: WebShop) -> None:
    do(env, "search[shirts]")
    do(env, first_result(env))
    option = an_option(env)
    do(env, option)
    assert env.step(option)[-1]["action_is_effective"] is False


def test_actions_are_read_in_any_case(env: WebShop) -> None:
    do(env, "SEARCH[Shirts]")
    do(env, first_result(env).upper(), "Click[Features]", " click [ < PREV ] ")
    assert "click[buy now]" in env.available_actions()


@pytest.mark.parametrize("action", [3, None, ["search[x]"]])
def test_an_action_that_is_no_text_is_an_error(env: WebShop, action: Any) -> None:
    with pytest.raises(UsageError, match="an action is a string"):
        env.step(action)


def test_the_expert_succeeds() -> None:
    for split in SPLITS:
        env = WebShop(split=split)
        text = WebShopText(env, LENIENT)
        for task in range(0, len(split_range(split, env.catalogue.goals)), 10):
            env.reset(options={"task": task})
            steps, (_, reward, terminated, truncated, info) = buy(env, text)
            assert (reward, terminated, truncated) == (1.0, True, False)
            assert info == {"action_is_effective": True, "success": True, "score": 1.0}
            assert steps <= 8
        env.close()


@pytest.mark.parametrize(
    "way",
    [
        ["search[zzzz]"],
        ["search[lamps]", "click[next >]"],
        ["search[lamps]", "open", "option"],
        ["search[lamps]", "open", "click[reviews]"],
    ],
)
def test_the_expert_finds_its_way_from_everywhere(env: WebShop, text: WebShopText, way: list[str]) -> None:
    walk(env, way)
    assert buy(env, text)[1][-1]["success"] is True


def test_the_expert_corrects_options_and_turns_pages(env: WebShop, text: WebShopText) -> None:
    goal = env.goal
    do(env, f"search[{goal.query}]")
    assert isinstance(env.page, ResultsPage)
    place = [one.asin for one in env.page.found].index(goal.asin)
    for _ in range(len(env.page.found) // 10):
        env.step("click[next >]")
    while not isinstance(env.page, ItemPage):
        env.step(*text.parse(text.solve()).actions)
    assert env.page.product.asin == goal.asin
    assert env.page.results.number == place // 10 + 1
    wrong = next(value for value in env.page.product.options["color"] if value not in goal.options)
    do(env, f"click[{wrong}]")
    assert buy(env, text)[1][-1]["success"] is True


def test_a_poor_purchase_scores_a_fraction(env: WebShop, text: WebShopText) -> None:
    goal = env.goal
    while "buy now" not in text.solve():
        env.step(*text.parse(text.solve()).actions)
    wrong = next(value for value in item(env).product.options["color"] if value not in goal.options)
    observation, reward, terminated, _, info = do(env, f"click[{wrong}]", "click[buy now]")
    wishes = len(goal.attributes) + len(goal.options) + 1
    assert reward == info["score"] == pytest.approx((wishes - 1) / wishes)
    assert (terminated, info["success"]) == (True, False)
    assert f"Your score (min 0.0, max 1.0): {reward:.3f}" in observation
    assert env.available_actions() == []


def test_a_binary_reward_is_for_perfect_purchases_only() -> None:
    env = WebShop(reward="binary")
    text = WebShopText(env, LENIENT)
    env.reset(seed=0)
    assert buy(env, text)[1][1] == 1.0
    env.reset(seed=0)
    do(env, f"search[{env.goal.query}]")
    do(env, first_result(env))
    _, reward, terminated, _, info = env.step("click[buy now]")
    assert (reward, terminated) == (0.0, True)
    assert 0 < info["score"] < 1
    env.close()


def test_an_episode_is_cut_off_after_max_steps() -> None:
    env = WebShop(max_steps=2)
    env.reset(seed=0)
    assert env.step("nonsense")[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step("search[shirts]")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info == {"action_is_effective": True, "success": False, "score": 0.0}
    with pytest.raises(UsageError, match="the episode is over"):
        env.step("click[next >]")
    env.close()


def test_a_purchase_at_the_last_step_is_no_cut() -> None:
    env = WebShop(max_steps=3)
    env.reset(seed=0)
    do(env, "search[shirts]")
    do(env, first_result(env))
    assert env.step("click[buy now]")[2:4] == (True, False)
    with pytest.raises(UsageError, match="the episode is over"):
        env.step("click[buy now]")
    env.close()


@pytest.mark.parametrize(
    ("goals", "sizes"),
    [(12_087, (500, 1000, 10_587)), (3000, (500, 1000, 1500)), (600, (100, 200, 300)), (1, (0, 0, 1))],
)
def test_the_splits_are_those_of_webshop(goals: int, sizes: tuple[int, ...]) -> None:
    test, val, train = (split_range(split, goals) for split in ("test", "val", "train"))
    assert (len(test), len(val), len(train)) == sizes
    assert [*test, *val, *train] == list(range(goals))


def test_the_seed_decides_the_goal_and_splits_share_none() -> None:
    told = {}
    for split in SPLITS:
        env = WebShop(split=split)
        told[split] = [env.reset(seed=seed)[0] for seed in range(50)]
        assert told[split] == [env.reset(seed=seed)[0] for seed in range(50)]
        assert len(set(told[split])) > 40
        env.close()
    assert not set(told["train"]) & set(told["val"])
    assert not set(told["train"]) & set(told["test"])
    assert not set(told["val"]) & set(told["test"])


def test_a_task_is_a_goals_place_in_its_split() -> None:
    env = WebShop(split="test")
    observation, info = env.reset(seed=5)
    assert env.reset(seed=9, options={"task": info["goal_index"]}) == (observation, info)
    assert env.reset(options={"task": 499})[1] == {"goal_index": 499}
    for wrong in (500, -1, True, "1", 1.0):
        with pytest.raises(UsageError, match=f"^webshop: task={wrong!r} .*split='test' has 0 to 499"):
            env.reset(options={"task": wrong})
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"split": "dev"}, "split='dev' is not one of train, val, test"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"max_steps": 2.5}, "max_steps=2.5"),
        ({"reward": "points"}, "reward='points' is not one of score, binary"),
        ({"data_path": 5}, "data_path=5"),
        ({"human_goals": "yes"}, "human_goals='yes' is neither True nor False"),
    ],
)
def test_wrong_arguments_are_named(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^webshop: {message}"):
        WebShop(**kwargs)


def test_it_must_be_reset_and_open() -> None:
    env = WebShop()
    with pytest.raises(UsageError, match=r"reset\(\) comes first"):
        env.step("search[x]")
    env.close()
    with pytest.raises(UsageError, match="closed"):
        env.reset(seed=0)


def test_the_anchor_tells_what_the_page_shows(env: WebShop, text: WebShopText) -> None:
    seen = [text.anchor()]
    for action in ("search[shirts]", "click[next >]", "open", "option", "click[reviews]"):
        walk(env, [action])
        seen.append(text.anchor())
    assert len(set(seen)) == len(seen)
    do(env, "click[< prev]")
    assert text.anchor() == seen[-2]
    env.step("click[nothing]")
    assert text.anchor() == seen[-2]
    env.reset(seed=1)
    assert text.anchor() != seen[0]


def test_the_default_action_buys_nothing(env: WebShop) -> None:
    do(env, "search[shirts]")
    do(env, first_result(env))
    assert do(env, WebShopText.default_action)[1:4] == (0.0, False, False)
    assert WebShopText.project(WebShopText.default_action, LENIENT).valid


def test_the_prompt_tells_the_actions_and_the_format(text: WebShopText) -> None:
    prompt = text.system_prompt()
    for word in ("search[", "click[", "click[buy now]", "click[next >]", "click[< prev]", "click[back to search]"):
        assert word in prompt
    assert "<think>" in prompt
    assert text.tell("click[buy now]") == "click[buy now]"


async def test_it_is_played_through_a_pool(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open("webshop", split="test", expert=True) as env:
        outcome = await env.reset(seed=0)
        assert await env.call("available_actions") == ["search[<words>]"]
        while not outcome.done:
            outcome = await env.step(outcome.info["expert"])
        assert (outcome.reward, outcome.info["success"]) == (1.0, True)
