"""verl-agent's names: environments from its configuration, prompts with what its own say, and its ways of reading."""

import logging
import re
from typing import Any

import numpy as np
import pytest

from asyncrollout import UsageError
from asyncrollout.dropin.verl_agent import (
    DataProto,
    EnvironmentManagerBase,
    SokobanEnvironmentManager,
    TrajectoryCollector,
    WebshopEnvironmentManager,
    make_envs,
    sokoban_projection,
    webshop_projection,
)

SYMBOLS = [
    "# ",
    "wall",
    "_ ",
    "floor",
    "O ",
    "target",
    "X ",
    "box",
    "P ",
    "you",
    "√ ",
    "box on a target",
    "S ",
    "on a target",
]
RULES = ["push every box", "win", "never pulled", "wall", "corner"]
FORMAT = ["up, down, left, right", "ONE action", "step by step", "<think>", "</think>", "<action>", "</action>"]
HISTORY = ["3 step", "last 2", "Step 2", "'Down'", "Step 3", "'Left'", "step 4"]
SOKOBAN = ["Sokoban", *SYMBOLS, *RULES, "{room}", *FORMAT]
"""The pieces of verl-agent's prompts, in their order; `{room}` stands for the room."""
SOKOBAN_LATER = ["Sokoban", *SYMBOLS, *RULES, *HISTORY, "{room}", *FORMAT]
VISUAL = ["Sokoban", *RULES, "picture", "You", "Box", "Target", "<image>", *FORMAT]
SHOP_FORMAT = ["[\n'", "',\n]", "one action", "step by step", "<think>", "</think>", "<action>", "</action>"]
SHOP = ["WebShop", "task", "{task}", "{page}", *SHOP_FORMAT]
SHOP_LATER = [
    "WebShop",
    "{task}",
    "1 step",
    "last 1",
    "Step 1",
    "[Search]",
    "{action}",
    "step 2",
    "{page}",
    *SHOP_FORMAT,
]


def config(name: str = "Sokoban", *, n: int = 2, train: int = 3, val: int = 2, **env: Any) -> dict[str, Any]:
    """As verl-agent's file has it."""
    defaults: dict[str, Any] = {
        "env_name": name,
        "seed": 0,
        "max_steps": 15,
        "history_length": 2,
        "resources_per_worker": {"num_cpus": 0.1, "num_gpus": 0},
        "rollout": {"n": n},
        "alfworld": {"eval_dataset": "eval_in_distribution"},
        "search": {"topk": 3},
        "sokoban": {"dim_room": [6, 6], "num_boxes": 1, "search_depth": 30, "mode": "tiny_rgb_array"},
        "webshop": {"use_small": True, "human_goals": False},
    }
    return {"env": {**defaults, **env}, "data": {"train_batch_size": train, "val_batch_size": val}}


def said(action: str) -> str:
    return f"<think>Well.</think><action>{action}</action>"


def check_pieces(text: str, pieces: list[str], **values: str) -> None:
    """Each piece stands after the one before."""
    at = 0
    for piece in pieces:
        wanted = values[piece[1:-1]] if piece.startswith("{") else piece
        found = text.find(wanted, at)
        assert found >= 0, f"{wanted!r} is not in {text[at:]!r}"
        at = found + len(wanted)


# Environments


def test_groups_for_training_and_single_ones_for_validation() -> None:
    train, val = make_envs(config())
    assert isinstance(train, SokobanEnvironmentManager)
    rooms = train.reset(kwargs=None)[0]["anchor"]
    assert [rooms[start] == rooms[start + 1] for start in (0, 2, 4)] == [True] * 3
    assert len(set(rooms)) == 3
    assert train.reset(kwargs=None)[0]["anchor"] != rooms
    first, infos = val.reset(kwargs=None)
    assert (len(first["anchor"]), infos) == (2, [{"won": False}] * 2)
    assert val.reset(kwargs=None)[0] == first
    train.close()
    val.close()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("alfworld/AlfredTWEnv", "'alfworld/AlfredTWEnv' is not available: ALFWorld needs its own engine"),
        ("AppWorld", "AppWorld needs its own servers"),
        ("gym_cards/Points24-v0", "gym_cards package"),
        ("search", "retrieval server"),
        ("chess", "available: sokoban, webshop"),
    ],
)
def test_environments_that_are_not_here_are_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        make_envs(config(name))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sokoban": {"mode": "list"}}, "Invalid enum value 'list' - at 'env.sokoban.mode'"),
        ({"sokoban": {"boxes": 2}}, "unknown field 'boxes' - at 'env.sokoban'"),
        ({"rollout": {"n": 2.5}}, "Expected 'int', got 'float' - at 'env.rollout.n'"),
        ({"max_steps": 0}, "env.max_steps"),
    ],
)
def test_wrong_values_are_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        make_envs(config(**change))


def test_missing_sections_and_keys_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match="config: env is missing"):
        make_envs({})
    settings = config()
    del settings["data"]["val_batch_size"]
    with pytest.raises(UsageError, match=r"data\.val_batch_size is missing"):
        make_envs(settings)
    with caplog.at_level(logging.WARNING):
        for manager in make_envs(config(maximum_steps=3)):
            manager.close()
    assert [record.getMessage() for record in caplog.records] == ["config: not read: env.maximum_steps"]


# Sokoban


def test_a_room_is_played_and_standing_still_takes_no_step() -> None:
    train, val = make_envs(config(n=1, train=1, max_steps=2))
    val.close()
    (room,) = train.reset()[0]["anchor"]
    assert {*room} <= {*"#_O√XPS \t\n"}
    for _ in range(3):
        observations, rewards, dones, infos = train.step(["nothing"])
        assert (rewards.tolist(), dones.tolist()) == ([-0.1], [False])
        assert infos == [{"action_is_effective": False, "won": False, "is_action_valid": False}]
        assert observations["anchor"] == [room]
    train.step([said("up")])
    assert train.step([said("down")])[2].tolist() == [True]
    _, rewards, dones, infos = train.step([said("up")])  # as verl-agent's collector does after the end
    assert (rewards.tolist(), dones.tolist(), infos) == ([0.0], [True], [{"is_action_valid": True}])
    train.close()


def test_sokoban_prompts_have_all_pieces_in_order() -> None:
    train, val = make_envs(config(n=1, train=1))
    val.close()
    observations, _ = train.reset()
    check_pieces(observations["text"][0], SOKOBAN, room=observations["anchor"][0])
    assert "Step 1" not in observations["text"][0]
    for move in ("up", "down", "left"):
        observations, *_ = train.step([said(move)])
    check_pieces(observations["text"][0], SOKOBAN_LATER, room=observations["anchor"][0])
    assert "Step 1:" not in observations["text"][0]
    train.close()


@pytest.mark.parametrize("length", [0, 1, 4])
def test_as_much_history_is_shown_as_the_config_says(length: int) -> None:
    train, val = make_envs(config(n=1, train=1, history_length=length))
    val.close()
    train.reset()
    for _ in range(5):
        observations, *_ = train.step([said("up")])
    assert len(re.findall(r"\[Step \d: you saw", observations["text"][0])) == length
    train.close()


def test_visual_sokoban_shows_pictures_of_sixteen_pixels_a_cell() -> None:
    shape = {"dim_room": [6, 7], "num_boxes": 1, "search_depth": 30, "mode": "rgb_array"}
    train, val = make_envs(config(n=1, train=2, sokoban=shape))
    val.close()
    observations, _ = train.reset(kwargs=None)
    assert (observations["image"].shape, observations["image"].dtype) == ((2, 96, 112, 3), np.uint8)
    assert np.array_equal(observations["anchor"], observations["image"])
    check_pieces(observations["text"][0], VISUAL)
    moved, *_ = train.step([said("up"), said("down")])
    assert moved["image"].shape == observations["image"].shape
    corner = observations["image"][0][:16, :16]
    assert np.array_equal(corner, observations["image"][0][:16, 16:32])  # two walls
    assert len(np.unique(observations["image"][0].reshape(-1, 3), axis=0)) > 5
    train.close()


# WebShop


def test_a_shop_is_played_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train, val = make_envs(config("Webshop", n=1, train=1))
    assert isinstance(train, WebshopEnvironmentManager)
    assert caplog.text.count("env.webshop.data_path is not given: generated products are sold") == 1
    val.close()
    observations, (info,) = train.reset()
    assert info["available_actions"] == {"has_search_bar": True, "clickables": []}
    check_pieces(observations["text"][0], SHOP, task=info["task"], page=observations["anchor"][0])
    assert info["task"] not in observations["anchor"][0]
    assert "'search[<your query>]'," in observations["text"][0]
    search = f"search[{' '.join(info['task'].split()[4:7])}]"
    observations, rewards, dones, (after,) = train.step([said(search)])
    assert (rewards.tolist(), dones.tolist(), after["won"], after["task_score"]) == ([0.0], [False], False, 0.0)
    assert not after["available_actions"]["has_search_bar"]
    page = observations["anchor"][0]
    check_pieces(observations["text"][0], SHOP_LATER, task=info["task"], page=page, action=f"'{search}'")
    product = next(button for button in after["available_actions"]["clickables"] if f"[{button.upper()}]" in page)
    train.step([said(f"click[{product}]")])
    _, rewards, dones, (bought,) = train.step([said("click[buy now]")])
    assert dones.tolist() == [True]
    assert 0 <= bought["task_score"] <= 1
    assert rewards.tolist() == [10.0 if bought["won"] else 0.0]
    found = train.success_evaluator(total_infos=[[info, after, bought, {}]])
    assert found["success_rate"].tolist() == [float(bought["won"])]
    assert found["webshop_task_score (not success_rate)"].tolist() == [bought["task_score"]]
    train.close()


def test_a_page_stays_the_same_anchor_however_it_was_reached() -> None:
    train, val = make_envs(config("Webshop", n=2, train=1))
    val.close()
    start = train.reset()[0]["anchor"]
    assert train.step([said("nonsense"), "no tag at all"])[0]["anchor"] == start
    train.close()


def test_prompts_that_are_too_long_go_without_history() -> None:
    from asyncrollout.dropin.verl_agent.prompts import webshop_prompt

    history = [{"step": 1, "observation": "x" * 13_000, "action": "search[red]"}]
    assert webshop_prompt("buy", "page", history, ["click[a]"]) == webshop_prompt("buy", "page", [], ["click[a]"])
    history[0]["observation"] = "x" * 12_000
    assert "search[red]" in webshop_prompt("buy", "page", history, ["click[a]"])


# Replies


@pytest.mark.parametrize(
    ("reply", "move", "valid"),
    [
        ("<think>a</think><action>up</action>", 1, True),
        ("<think>a</think><action>\nRIGHT\n</action>", 4, True),
        ("<think>a</think><action>move left</action>", 3, True),
        ("<think>a</think><action>still</action>", 0, True),
        ("<think>a</think><action>jump</action>", 0, False),
        ("<think>a</think><answer>up</answer>", 0, False),
        ("<action>down</action>", 2, False),
        ("<think>up", 0, False),
        ("", 0, False),
    ],
)
def test_moves_need_both_tags(reply: str, move: int, valid: bool) -> None:
    assert sokoban_projection([reply]) == ([move], [valid])


@pytest.mark.parametrize(
    ("reply", "action", "valid"),
    [
        ("<think>a</think><action>Search[Red shoes]</action>", "search[red shoes]", True),
        ("<action>click[buy now]</action>", "click[buy now]", False),
        ("<think>红</think><action>click[buy now]</action>", "click[buy now]", False),
        ("I would really like to search for SHOES", "ke to search for shoes"[-20:], False),
    ],
)
def test_a_shops_actions_need_both_tags(reply: str, action: str, valid: bool) -> None:
    assert webshop_projection([reply]) == ([action], [valid])


# Rollouts


class Walker:
    """Replies with moves in turn."""

    world_size = 4

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        assert len(prompts) % self.world_size == 0
        moves = ("up", "down", "left", "right", "fly")
        return DataProto(None, {"response_texts": [said(moves[row % 5]) for row in range(len(prompts))]})


@pytest.mark.parametrize("name", ["Sokoban", "Webshop"])
def test_our_collector_plays_them(name: str) -> None:
    settings = config(name, max_steps=3)
    managers: tuple[EnvironmentManagerBase, ...] = make_envs(settings)
    collector = TrajectoryCollector(settings)
    for manager, is_train, episodes in zip(managers, (True, False), (6, 2), strict=True):
        batch = collector.multi_turn_loop(DataProto(), Walker(), manager, is_train=is_train)
        assert len(set(batch.non_tensor_batch["traj_uid"])) == episodes
        assert max(batch.non_tensor_batch["turn"]) <= 2
        assert len(set(batch.non_tensor_batch["success_rate"])) == 1
        assert "rm_scores" not in batch.batch  # verl-agent's reward manager makes them
        assert batch.non_tensor_batch["is_action_valid"].all() == (name == "Webshop" or not is_train)
        assert ("webshop_task_score (not success_rate)" in batch.non_tensor_batch) == (name == "Webshop")
        manager.close()


@pytest.mark.parametrize(
    ("name", "reply", "reason"),
    [
        ("Sokoban", "up", "no <action> tag"),
        ("Sokoban", "<action>up</action>", "no <think> and </think>"),
        ("Sokoban", said("jump"), "not an action: 'jump'"),
        ("Webshop", said("\u4e2d"), "it has Chinese characters"),
    ],
)
def test_a_prompt_begins_with_why_the_last_reply_was_invalid_if_asked_for(name: str, reply: str, reason: str) -> None:
    shown = []
    for explain in (False, True):
        train, val = make_envs(config(name, n=1, train=2, val=1, explain_invalid=explain))
        train.reset()
        observations, *_, infos = train.step([reply, said("up" if name == "Sokoban" else "search[shoes]")])
        shown.append(observations["text"])
        assert [info.get("invalid_reason") for info in infos] == [reason if explain else None, None]
        later, *_ = train.step([said("up" if name == "Sokoban" else "search[shoes]")] * 2)
        assert not any(text.startswith("Your last reply") for text in later["text"])
        train.close()
        val.close()
    assert shown[1] == [f"Your last reply was invalid: {reason}.\n{shown[0][0]}", shown[0][1]]
