"""What a model reads in RAGEN's place: every piece that RAGEN's prompts have, in their order, for every tag."""

import logging
from typing import Any

import numpy as np
import pytest

from asyncrollout import RolloutError, UsageError
from asyncrollout.dropin.ragen import ContextManager, DataProto, EnvStateManager, LLMAgentProxy, PromptTemplates
from asyncrollout.dropin.ragen.env_keys import KNOWN_TAGS, REFUSED_TYPES
from asyncrollout.dropin.ragen.envs import REGISTERED_ENV_CONFIGS, REGISTERED_ENVS
from asyncrollout.dropin.ragen.states import NO_ACTION
from tests.envs.ragen import config, registered  # noqa: F401 (a fixture)
from tests.test_dropin_ragen_proxy import Actor, Words

pytestmark = pytest.mark.usefixtures("registered")

GRID_OF_SOKOBAN = ["#: wall", "_: ", "O: target", "√: box on", "X: box", "P: player", "S: player on"]
GRID_OF_LAKE = ["P: player", "_: ", "O: hole", "G: goal", "X: player in", "√: player on"]
OTHER_GRID = ["W: wall", ".: empty", "G: target", "C: box on target", "B: box", "A: player", "@: player on target"]
MOVES, LAKE_MOVES = ["Up, Down, Left, Right"], ["Left, Down, Right, Up"]
FACES = ["U, U', D, D', L, L', R, R', F, F', B, B'"]

PIECES: dict[str, tuple[list[str], list[str]]] = {
    "SimpleSokoban": (GRID_OF_SOKOBAN, MOVES),
    "LargerSokoban": (GRID_OF_SOKOBAN, MOVES),
    "CoordSokoban": (GRID_OF_SOKOBAN, MOVES),
    "VisualSimpleSokoban": (GRID_OF_SOKOBAN, MOVES),
    "SokobanDifferentGridVocab": (OTHER_GRID, MOVES),
    "FrozenLake": (GRID_OF_LAKE, LAKE_MOVES),
    "CoordFrozenLake": (GRID_OF_LAKE, LAKE_MOVES),
    "game_2048": ([], ["Up, Right, Down, Left"]),
    "rubikscube": ([], FACES),
    **{tag: ([], []) for tag in ("Bandit", "BanditTest", "Countdown", "MetamathQA", "WebShop", "WebShopFull")},
    **{tag: ([], []) for tag in ("SimpleSudoku", "MediumSudoku")},
}
"""Of each tag: the meanings of symbols, and the list of actions. RAGEN has none where these are empty."""

REFUSED = {tag for tag, known in KNOWN_TAGS.items() if known["env_type"] in REFUSED_TYPES}


def settings(tag: str, **proxy: Any) -> dict[str, Any]:
    part = {"env_groups": 1, "group_size": 2, "env_configs": {"tags": [tag], "n_groups": [1]}}
    custom = {**KNOWN_TAGS[tag], "env_instruction": "These are the rules.", "max_tokens": 120}
    return {
        "es_manager": {"train": part, "val": part, "use_multiprocessing": False},
        "custom_envs": {tag: custom},
        "agent_proxy": {"action_sep": "&&", **proxy},
        "actor_rollout_ref": {"rollout": {"response_length": 400}},
    }


def history(*replies: str) -> list[dict[str, Any]]:
    turns = [
        {"state": f"state {place}", "actions_left": 9 - place, "llm_response": reply, "reward": place / 4}
        for place, reply in enumerate(replies, start=1)
    ]
    return [*turns, {"state": f"state {len(replies) + 1}", "actions_left": 8 - len(replies)}]


def episode(*replies: str, env_id: int = 0, **more: Any) -> dict[str, Any]:
    return {"env_id": env_id, "group_id": 0, "tag": "walk", "penalty": 0, "history": history(*replies), **more}


def missing_or_out_of_order(text: str, pieces: list[str]) -> list[str]:
    at, wrong = 0, []
    for piece in pieces:
        found = text.find(piece, at)
        wrong += [piece] if found < 0 else []
        at = max(found, at)
    return wrong


def test_every_tag_of_ragen_is_in_the_table() -> None:
    assert PIECES.keys() | REFUSED == KNOWN_TAGS.keys()
    assert len(REFUSED) == 6


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("tag", PIECES)
def test_prompts_have_every_piece_in_order(tag: str, thinks: bool) -> None:
    symbols, actions = PIECES[tag]
    context = ContextManager(settings(tag, enable_think=thinks))
    messages = context.messages({"env_id": 1, "tag": tag, "history": history("<answer>a</answer>")})
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    most = [f"{KNOWN_TAGS[tag]['max_actions_per_traj']} actions", '" && "'] if actions else []
    form = [*(["<think>", "</think>"] if thinks else []), "<answer>", "</answer>"]
    turn_1 = ["Turn 1:", "State:", "state 1", "8 actions left", *form, "120 words"]
    turn_2 = ["Turn 2:", "State:", "state 2", "7 actions left", *form, "120 words"]
    text = "\n".join(message["content"] for message in messages)
    pieces = ["helpful assistant", "These are the rules.", *symbols, *actions, *most, *turn_1, "Reward:\n0.25", *turn_2]
    assert missing_or_out_of_order(text, pieces) == []
    assert ("<think>" in text) == thinks
    assert context.prefix_lookup[0] == context.prefix_lookup[1]
    assert context.env_nums == {tag: 2}


@pytest.mark.parametrize("tag", sorted(REFUSED))
def test_tags_that_are_not_shipped_are_refused_with_the_reason(tag: str) -> None:
    for make in (ContextManager, EnvStateManager):
        with pytest.raises(UsageError, match=r"is not shipped: it needs"):
            make(settings(tag))


@pytest.mark.parametrize("tag", [tag for tag in PIECES if tag != "WebShopFull"])  # whose data are a download
def test_every_tag_plays_through_the_proxy(tag: str) -> None:
    actor = Actor(lambda text: "<think>On.</think><answer>Up</answer>")
    proxy = LLMAgentProxy(settings(tag, max_turn=2), actor)
    assert len(proxy.rollout(DataProto())) == 2
    proxy.close()


def test_coordinates_are_explained_where_there_is_no_grid() -> None:
    given = settings("CoordSokoban")
    given["custom_envs"]["CoordSokoban"]["env_config"] = {"observation_format": "coord", "num_boxes": 1}
    rules = ContextManager(given).prefix_lookup[0]
    assert "(row, column)" in rules
    assert "wall" not in rules


def test_what_a_tag_says_of_states_is_played_as_well_as_told() -> None:
    given = settings("SimpleSokoban")
    given["custom_envs"]["SimpleSokoban"]["observation_format"] = "coord"
    assert "(row, column)" in ContextManager(given).prefix_lookup[0]
    manager = EnvStateManager(given)
    state = manager.reset(seed=1)[0]["history"][0]["state"]
    assert "Boxes: (" in state
    assert "#" not in state
    manager.close()


def test_what_a_tag_says_of_actions_is_refused_where_it_cannot_be_played() -> None:
    given = settings("SimpleSokoban")
    given["custom_envs"]["SimpleSokoban"]["action_lookup"] = {1: "North", 2: "South", 3: "West", 4: "East"}
    manager = EnvStateManager(given)
    with pytest.raises(RolloutError, match=r"action_lookup=.*is not supported by env 'sokoban'"):
        manager.reset(seed=1)
    manager.close()


def test_a_reply_without_actions_is_pointed_out() -> None:
    manager = EnvStateManager(settings("SimpleSokoban"))
    manager.reset(seed=1)
    (cache,) = manager.step([{"env_id": 0, "llm_response": "hm", "llm_raw_response": "hm", "actions": []}])
    assert cache["history"][-1]["manager_invalid_action"]
    told = ContextManager(settings("SimpleSokoban")).messages(cache)
    assert "no valid action" in told[-1]["content"]
    assert "no valid action" not in told[1]["content"]
    manager.close()


def test_templates_are_used_as_they_are() -> None:
    templates = PromptTemplates(
        system="S.",
        opening="[{rules}]",
        legend=" L {symbols}",
        actions=" A {actions}",
        limit=" N {count} {separator}",
        turn="<{turn}|{body}>",
        body="{state}|{actions_left}|{format}{length}",
        length="|{max_tokens}",
        think_format="F",
        reward="R{reward}",
    )
    context = ContextManager(settings("FrozenLake"), templates=templates)
    messages = context.messages({"env_id": 0, "tag": "FrozenLake", "history": history("a")})
    symbols = "P: player, _: ice, O: hole, G: goal, X: player in a hole, √: player on the goal"
    rules = f"These are the rules. L {symbols} A Left, Down, Right, Up N 10 &&"
    assert [message["content"] for message in messages] == [
        "S.", f"[{rules}]<1|state 1|8|F|120>", "a", "R0.25<2|state 2|7|F|120>"
    ]  # fmt: skip


def test_the_length_of_a_reply_is_the_models_where_the_tag_says_none() -> None:
    given = settings("Countdown")
    del given["custom_envs"]["Countdown"]["max_tokens"]
    assert "400 words" in ContextManager(given).messages({"env_id": 0, "history": history()})[-1]["content"]
    del given["actor_rollout_ref"]
    assert "words" not in ContextManager(given).messages({"env_id": 0, "history": history()})[-1]["content"]


@pytest.mark.parametrize(("thinks", "tag"), [(True, "<think>"), (False, "<answer>")])
def test_prompts_end_with_the_tag_that_replies_continue(thinks: bool, tag: str) -> None:
    tokenizer = Words()
    context = ContextManager(config("walk") | {"agent_proxy": {"enable_think": thinks}}, tokenizer)
    inputs = context.get_lm_inputs([episode()])
    assert tokenizer.decode(inputs.batch["input_ids"][0].tolist()).endswith(tag)
    said = "up || down</answer>" if not thinks else "so</think><answer>up || down</answer>"
    answers = DataProto(None, {"env_ids": [0], "response_texts": [said]})
    (asked,) = context.get_env_inputs(answers)
    assert asked["actions"] == ["up", "down"]
    expected = f"{'<think>so</think>' if thinks else ''}<answer>up || down</answer>"
    assert (asked["llm_raw_response"], asked["llm_response"]) == (tag + said, expected)
    assert context._parse_response(tag + said) == (expected, ["up", "down"])


WINDOWS: list[tuple[dict[str, Any], list[list[int]]]] = [
    ({}, [[1, 2, 3]]),
    ({"context_window_mode": "full", "max_context_window": -1}, [[1, 2, 3]]),
    ({"max_context_window": 2}, [[2, 3]]),
    ({"context_window_mode": "limited_multi_turn", "max_context_window": 2}, [[1], [1, 2], [2, 3]]),
    ({"context_window_mode": "limited_multi_turn"}, [[1], [2], [3]]),
    ({"context_window_mode": "limited_multi_turn", "max_context_window": -1}, [[1], [1, 2], [1, 2, 3]]),
    ({"context_window_mode": "single_turn", "max_context_window": 2}, [[1], [1, 2], [2, 3]]),
    ({"context_window_mode": "single_turn", "max_context_window": 1}, [[1], [2], [3]]),
]


@pytest.mark.parametrize(("proxy", "rows"), WINDOWS)
def test_rows_have_the_turns_within_the_context_window(proxy: dict[str, Any], rows: list[list[int]]) -> None:
    tokenizer = Words()
    context = ContextManager(config("walk") | {"agent_proxy": proxy}, tokenizer)
    done = episode("reply 1", "reply 2", "reply 3")
    batch = context.formulate_rollouts([done])
    texts = [str(messages) for messages in batch.non_tensor_batch["messages_list"]]
    assert [[turn for turn in (1, 2, 3) if f"state {turn}" in text] for text in texts] == rows
    assert not any("state 4" in text for text in texts)
    assert np.allclose(batch.batch["rm_scores"].sum(-1), 1.5)
    learned = [
        tokenizer.decode(row[mask == 1])
        for row, mask in zip(batch.batch["responses"], batch.batch["loss_mask"], strict=True)
    ]
    per_turn = "context_window_mode" in proxy and proxy["context_window_mode"] != "full"
    assert [text.count("reply") for text in learned] == ([1] * len(rows) if per_turn else [len(rows[0])])
    if per_turn:
        assert batch.non_tensor_batch["episode_ids"].tolist() == [0] * len(rows)
    present = str(context.messages(done))
    assert "state 4" in present
    assert ("state 1" in present) == (not proxy or proxy.get("max_context_window") == -1)


def test_a_window_that_does_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    given = config("walk") | {"agent_proxy": {"context_window_mode": "full", "max_context_window": 5}}
    with caplog.at_level(logging.WARNING):
        ContextManager(given)
    assert "max_context_window=5 has no effect with context_window_mode 'full'" in caplog.text


def test_states_that_are_pictures_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """RAGEN's context manager has no pictures either, whatever its processor is."""
    with caplog.at_level(logging.WARNING):
        ContextManager(settings("SimpleSokoban"), Words(), processor=object())
        assert caplog.text == ""
        context = ContextManager(settings("VisualSimpleSokoban"), Words(), processor=object())
    assert "custom_envs.VisualSimpleSokoban: its states are pictures, and prompts have none" in caplog.text
    assert "reads '<images>' in their place" in caplog.text
    states = EnvStateManager(settings("VisualSimpleSokoban"), mode="train")
    inputs = context.get_lm_inputs(states.reset(seed=3))
    states.close()
    assert all("<images>" in messages[-1]["content"] for messages in inputs.non_tensor_batch["messages_list"])


KITCHEN = "You are in a kitchen. You see a drawer 1, and a fridge 1."
FIRST = f"-= Welcome to TextWorld, ALFRED! =-\n\n{KITCHEN}\n\nYour task is to: put a hot egg in the fridge."
HOUSE = [
    {
        "state": f"{FIRST}\n\nAdmissible actions: [go to drawer 1, look]",
        "actions_left": 9,
        "llm_response": "<think>a</think><answer>go to drawer 1</answer>",
        "reward": 0.0,
    },
    {
        "state": f"You arrive at drawer 1. {'It is closed. ' * 20}\n\nAdmissible actions: [open drawer 1]",
        "actions_left": 8,
        "llm_response": "I cannot think of anything.",
        "reward": 0.0,
    },
    {"state": "Nothing happens.\n\nAdmissible actions: [open drawer 1, look]", "actions_left": 7, NO_ACTION: True},
]


@pytest.mark.parametrize(("window", "shown"), [(3, [1, 2]), (2, [2]), (1, [])])
def test_single_turns_of_alfworld_tell_what_ragens_memory_tells(
    window: int, shown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTERED_ENVS, "alfworld", REGISTERED_ENVS["bandit"])
    monkeypatch.setitem(REGISTERED_ENV_CONFIGS, "alfworld", REGISTERED_ENV_CONFIGS["bandit"])
    given = settings("Bandit", context_window_mode="single_turn", max_context_window=window)
    given["custom_envs"]["Bandit"] |= {"env_type": "alfworld", "env_config": {}}
    context = ContextManager(given, Words())
    *_, told = context.messages({**episode(), "history": HOUSE})
    past = {
        1: [f"[Observation 1: '{KITCHEN}\nYour task is to: put a hot egg in the fridge.', action 1: 'go to drawer 1']"],
        2: [
            f"[Observation 2: 'You arrive at drawer 1. {'It is closed. ' * 20}"[:214],
            "...', action 2: 'I cannot think",
        ],
    }
    pieces = ["task is to: put a hot egg in the fridge.\n", "taken 2 step(s)"]
    pieces += [f"last {len(shown)} observations"] * bool(shown) + [piece for turn in shown for piece in past[turn]]
    pieces += ["This is step 3. You observe: Nothing happens.\n", "possible actions are: [open drawer 1, look]"]
    pieces += ["no valid action", "You have 7 actions left", "<think> your thoughts", "at most 120 words"]
    assert missing_or_out_of_order(told["content"], pieces) == []
    assert told["content"].count("[Observation") == len(shown)
    first = context.messages({**episode(), "history": HOUSE[:1]}, is_over=True)
    assert [message["role"] for message in first] == ["system", "user", "assistant"]
    assert "step(s)" not in first[1]["content"]


def test_scores_of_turns_need_rows_of_episodes() -> None:
    proxy = {"context_window_mode": "single_turn", "use_turn_scores": True}
    with pytest.raises(UsageError, match=r"use_turn_scores needs a row for each episode"):
        ContextManager(config("walk") | {"agent_proxy": proxy})


def test_conversations_that_are_too_long_lose_their_oldest_turns(caplog: pytest.LogCaptureFixture) -> None:
    done = episode("reply 1", "reply 2", "reply 3")
    given = config("walk") | {"agent_proxy": {"context_window_mode": "full"}}
    whole = ContextManager(given, Words()).formulate_rollouts([done]).batch["input_ids"].shape[1]
    for limit, turns in ((whole, [1, 2, 3]), (whole - 1, [2, 3]), (whole // 2, [3])):
        limited = given | {"actor_rollout_ref": {"rollout": {"max_model_len": limit}}}
        text = str(ContextManager(limited, Words()).formulate_rollouts([done]).non_tensor_batch["messages_list"][0])
        assert [turn for turn in (1, 2, 3) if f"state {turn}" in text] == turns
        assert "helpful assistant" in text
    with caplog.at_level(logging.WARNING):
        limited = given | {"actor_rollout_ref": {"rollout": {"max_model_len": 3}}}
        ContextManager(limited, Words()).messages(done)
    assert "a single turn is longer than" in caplog.text
    older = config("walk") | {"actor_rollout_ref": {"rollout": {"max_model_len": 3}}}
    assert "state 1" in str(ContextManager(older, Words()).messages(done))


def test_without_the_response_mask_all_but_the_system_is_learned() -> None:
    tokenizer = Words()
    context = ContextManager(config("walk") | {"enable_response_mask": False}, tokenizer)
    batch = context.formulate_rollouts([episode("reply 1")]).batch
    text = tokenizer.decode(batch["responses"][0][batch["loss_mask"][0] == 1])
    assert text.startswith("<|user|>")
    assert "state 1" in text
    assert "reply 1" in text


def test_collapse_detection_gets_prompts_and_thoughts() -> None:
    tokenizer = Words()
    asked = {"collapse_detection": {"first_turn_enabled": True, "multi_turn_enabled": True}}
    context = ContextManager(config("walk") | asked, tokenizer)
    done = episode("<think>first thought</think><answer>a</answer>", "no thought", "<think>third</think>")
    columns = context.formulate_rollouts([done]).non_tensor_batch
    assert tokenizer.decode(columns["first_turn_reasoning_ids"][0]) == "first thought"
    assert tokenizer.decode(columns["first_turn_prompt_ids"][0]).endswith("<think>")
    assert [tokenizer.decode(ids) for ids in columns["all_turns_reasoning_ids"][0]] == ["first thought", "third"]
    assert (columns["turn_counts"].tolist(), columns["turn_counts_total"].tolist()) == ([2], [3])
    prompts = [tokenizer.decode(ids) for ids in columns["all_turns_prompt_ids"][0]]
    assert ["no thought" in prompt for prompt in prompts] == [False, True]
    assert "first_turn_prompt_ids" not in context.formulate_rollouts([done], False).non_tensor_batch


def test_metrics_and_histories_of_a_batch() -> None:
    caches = [
        episode("a", env_id=place, metrics={"walk/success": success})
        for place, success in enumerate([1.0, 0.0, 1.0, 0.0])
    ]
    validated = ContextManager(config("walk"), Words(), None, "val").formulate_rollouts(caches)
    metrics = validated.meta_info["metrics"]
    assert (metrics["walk/success"], metrics["walk/non-zero/success"]) == (0.5, 1.0)
    assert metrics["response_length"] > 0
    assert validated.non_tensor_batch["history"][2] == caches[2]["history"]
    assert validated.non_tensor_batch["metrics"][2] == {"walk/success": 1.0}
    assert "history" not in ContextManager(config("walk")).formulate_rollouts(caches).non_tensor_batch


@pytest.mark.parametrize(
    ("actions", "reason"),
    [([], "it names no action in <answer> tags"), (["Up", "jump", "hop"], "not an action: 'jump'")],
)
def test_a_turn_begins_with_why_the_last_reply_was_invalid_if_asked_for(actions: list[str], reason: str) -> None:
    caches, told = [], []
    for explain in (False, True):
        given = settings("SimpleSokoban")
        given["agent_proxy"] = {**given.get("agent_proxy", {}), "explain_invalid": explain}
        manager = EnvStateManager(given)
        manager.reset(seed=1)
        (cache,) = manager.step([{"env_id": 0, "llm_response": "hm", "llm_raw_response": "hm", "actions": actions}])
        caches.append(cache["history"][-1])
        told.append(ContextManager(given).messages(cache)[-1]["content"])
        manager.close()
    assert caches[1] == {**caches[0], "invalid_reason": reason}
    line = f"Your last reply was invalid: {reason}. Please try again.\n"
    assert line not in told[0]
    assert told[1].replace(line, "" if actions else PromptTemplates().warning) == told[0]
