"""Whole rollouts through RAGEN's names: prompts, replies, scores, dynamic sampling, and what the trainer gets."""

import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from asyncrollout import ExhaustedError, UsageError
from asyncrollout.dropin.ragen import (
    ContextManager,
    DataProto,
    LLMAgentProxy,
    MultiProcessEnvironmentContainer,
    SokobanEnvironmentManager,
    TrajectoryCollector,
    create_projection_function,
)
from asyncrollout.dropin.ragen.managers import EnvironmentManagerBase
from tests.envs.ragen import config, registered  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("registered")


class Words:
    """A tokenizer of words and spaces, with a chat template like ChatML's."""

    pad_token_id = 0

    def __init__(self) -> None:
        self.words = ["<pad>"]

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool, tokenize: bool
    ) -> str:
        assert not tokenize
        told = "".join(f"<|{message['role']}|> {message['content']} <|end|>\n" for message in messages)
        return told + "<|assistant|> " * add_generation_prompt

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        found = re.findall(r"\s+|\S+", text)
        self.words += [word for word in dict.fromkeys(found) if word not in self.words]
        return [self.words.index(word) for word in found]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[token] for token in ids if token)

    def batch_decode(self, rows: Any, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [self.decode(row) for row in np.asarray(rows).tolist()]


class Actor:
    """Says what it is told to, by a function of the prompt's text; as texts, or with a tokenizer as tokens."""

    def __init__(self, reply: Any, tokenizer: Words | None = None) -> None:
        self.reply = reply
        self.tokenizer = tokenizer
        self.asked: list[int] = []
        self.meta_infos: list[dict[str, Any]] = []

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        self.asked.append(len(prompts))
        self.meta_infos.append(prompts.meta_info)
        told = [messages[-1]["content"] for messages in prompts.non_tensor_batch["messages_list"]]
        replies = [self.reply(text) for text in told]
        if self.tokenizer is None:
            return DataProto(None, {"response_texts": replies})
        rows = [self.tokenizer.encode(reply, add_special_tokens=False) for reply in replies]
        width = max(map(len, rows))
        return DataProto({"responses": [row + [0] * (width - len(row)) for row in rows]})


def walker(text: str) -> str:
    """Walks to the goal."""
    return "<think>On.</think><answer>forth || forth</answer>"


def places(batch: DataProto) -> dict[str, list[Any]]:
    return {key: column.tolist() for key, column in batch.non_tensor_batch.items()}


# Rollouts of the state manager


def test_a_rollout_without_tokens() -> None:
    settings = config("walk", groups=2, size=2, use_multiprocessing=False)
    actor = Actor(lambda text: walker(text) if "at 0" in text or "Turn 2" in text else "I give up.")
    proxy = LLMAgentProxy(settings, actor)
    rollouts = proxy.rollout(DataProto(meta_info={"eos_token_id": 7}))
    assert rollouts.batch["rm_scores"].shape == (4, 1)
    assert rollouts.non_tensor_batch["env_ids"].tolist() == [0, 1, 2, 3]
    assert rollouts.non_tensor_batch["group_ids"].tolist() == [0, 0, 1, 1]
    assert actor.meta_infos == [{"eos_token_id": 7}] * len(actor.asked)
    assert len(actor.asked) == 5  # max_turn
    assert rollouts.meta_info["metrics"]["walk/num_actions"] >= 2
    messages = rollouts.non_tensor_batch["messages_list"][0]
    assert [message["role"] for message in messages[:4]] == ["system", "user", "assistant", "user"]
    assert "Reward:\n" in messages[3]["content"]
    assert messages[-1]["role"] == "assistant"
    proxy.close()


def test_done_environments_are_asked_no_more() -> None:
    settings = config("walk", groups=1, size=3, use_multiprocessing=False)
    asked_in_order = iter(range(1000))
    actor = Actor(lambda text: f"<answer>{'forth || ' * 5 if next(asked_in_order) % 3 == 0 else 'back'}</answer>")
    proxy = LLMAgentProxy(settings, actor)
    proxy.rollout(DataProto())
    assert actor.asked[0] == 3
    assert actor.asked[1] == 2
    assert actor.asked == sorted(actor.asked, reverse=True)


def test_tokens_masks_and_scores_stand_where_the_replies_do() -> None:
    tokenizer = Words()
    settings = config("walk", groups=2, size=2, use_multiprocessing=False) | {"seed": 4}
    proxy = LLMAgentProxy(settings, Actor(walker, tokenizer), tokenizer)
    batch = proxy.rollout(DataProto()).batch
    width = batch["input_ids"].shape[1]
    for key in ("responses", "loss_mask", "rm_scores", "original_rm_scores"):
        assert batch[key].shape == (4, width - 1)
    for row in range(4):
        spoken = batch["responses"][row][batch["loss_mask"][row] == 1]
        assert set(re.findall(r"<answer>.*?</answer>", tokenizer.decode(spoken))) == {"<answer>forth || forth</answer>"}
        assert "State:" not in tokenizer.decode(spoken)
        (scored,) = np.flatnonzero(batch["rm_scores"][row])
        assert batch["loss_mask"][row][scored] == 1
        assert not batch["loss_mask"][row][scored + 1 :].any()
        first = int(np.flatnonzero(batch["attention_mask"][row])[0])
        assert batch["position_ids"][row][first:].tolist() == list(range(width - first))
    assert np.allclose(batch["rm_scores"].sum(-1), [1.0 - 0.1 * steps for steps in _steps(batch, tokenizer)])


def _steps(batch: dict[str, Any], tokenizer: Words) -> list[int]:
    firsts = [re.search(r"at (\d) of 5", tokenizer.decode(row)) for row in batch["input_ids"].tolist()]
    return [5 - int(first[1]) for first in firsts if first]


@pytest.mark.parametrize("method", ["identity", "mean", "mean_std", "asym_clip"])
@pytest.mark.parametrize("grouping", ["state", "inductive", "batch"])
def test_rewards_are_normalised_and_the_raw_ones_kept(grouping: str, method: str) -> None:
    settings = config("walk", "bandit") | {
        "agent_proxy": {"reward_normalization": {"grouping": grouping, "method": method}}
    }
    context = ContextManager(settings)
    gained, penalties = [1.0, 0.5, 0.3, 0.3], [-0.1, 0, 0, -0.2]
    caches = [
        {"env_id": index, "group_id": index // 2, "tag": ["walk", "bandit"][index // 2], "penalty": penalties[index],
         "history": [{"state": "", "actions_left": 1, "reward": gained[index], "llm_response": "", "info": {}}]}
        for index in range(4)
    ]  # fmt: skip
    batch = context.formulate_rollouts(caches).batch
    raw = np.add(gained, penalties)
    assert np.allclose(batch["original_rm_scores"].sum(-1), raw)
    groups = [slice(0, 4)] if grouping == "batch" else [slice(0, 2), slice(2, 4)]
    expected = np.concatenate([_normalised(raw[part], method) for part in groups])
    assert np.allclose(batch["rm_scores"].sum(-1), expected, atol=1e-6)


def _normalised(x: Any, method: str) -> Any:
    if method == "identity":
        return x
    centred = x - x.mean()
    if method == "mean":
        return centred
    std = x.std(ddof=1)
    scaled = centred / (std + 1e-6) if std > 1e-6 else 0 * x
    return scaled.clip(-1, 3) if method == "asym_clip" else scaled


def test_turn_scores_stand_at_the_ends_of_turns() -> None:
    tokenizer = Words()
    settings = config("walk", groups=1, size=1, use_multiprocessing=False) | {"agent_proxy": {"use_turn_scores": True}}
    proxy = LLMAgentProxy(settings, Actor(lambda text: "<answer>back</answer>", tokenizer), tokenizer)
    scores = proxy.rollout(DataProto()).batch["rm_scores"][0]
    assert scores[scores != 0].tolist() == [-0.1] * 5


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("<think>a</think><answer>up || down</answer>", ["up", "down"]),
        ("prefilled</think>\n<answer>up</answer>", ["up"]),
        ("<answer>1||2||3||4||5||6</answer>", ["1", "2", "3", "4", "5"]),
        ("<think><answer>up</answer></think>", []),
        ("just up", []),
        ("<answer> || </answer>", []),
    ],
)
def test_replies_become_actions(text: str, actions: list[str]) -> None:
    context = ContextManager(config("walk"))
    (asked,) = context.get_env_inputs(DataProto(None, {"env_ids": [3], "response_texts": [text]}))
    raw = text if "<think>" in text else f"<think>{text}"  # which the prompt ended with
    assert (asked["env_id"], asked["actions"], asked["llm_raw_response"]) == (3, actions, raw)
    if actions:
        assert asked["llm_response"].endswith(f"<answer>{' || '.join(actions)}</answer>")


def test_a_template_that_changes_the_past_is_refused() -> None:
    class Forgetful(Words):
        def apply_chat_template(
            self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool, tokenize: bool
        ) -> str:
            return super().apply_chat_template(messages[-2:], add_generation_prompt, tokenize)

    tokenizer = Forgetful()
    proxy = LLMAgentProxy(
        config("walk", use_multiprocessing=False), Actor(lambda text: "<answer>back</answer>", tokenizer), tokenizer
    )
    with pytest.raises(UsageError, match="chat template changes what came before"):
        proxy.rollout(DataProto())


def test_the_proxys_parts_can_be_reached() -> None:
    settings = config("walk", use_multiprocessing=False)
    proxy = LLMAgentProxy(settings, Actor(walker))
    assert proxy.config is settings
    for mode, states, context in (
        ("train", proxy.train_es_manager, proxy.train_ctx_manager),
        ("val", proxy.val_es_manager, proxy.val_ctx_manager),
    ):
        assert (states.mode, context.mode) == (mode, mode)
        assert states.sys_config is settings
        assert context.config is settings
    outputs = proxy.val_es_manager.reset()
    replies = proxy.generate_sequences(proxy.val_ctx_manager.get_lm_inputs(outputs, prepare_for_update=False))
    assert len(proxy.val_es_manager.step(proxy.val_ctx_manager.get_env_inputs(replies))) == 2
    proxy.close()


def test_worker_groups_get_rows_that_they_can_share_evenly() -> None:
    actor = Actor(walker)
    actor.world_size = 4  # type: ignore[attr-defined]
    proxy = LLMAgentProxy(config("walk", groups=3, size=2, use_multiprocessing=False), actor)
    assert len(proxy.rollout(DataProto())) == 6
    assert actor.asked[0] == 8
    proxy.close()


# Rollouts of the collector


def test_the_proxy_uses_parallel_environments_once_it_has_them() -> None:
    settings = config("walk", groups=2, size=2, max_workers=1) | {"algorithm": {"filter_groups": {"enable": True}}}
    actor = Actor(lambda text: "<action>forth</action>")
    proxy = LLMAgentProxy(settings, actor)
    assert proxy.init_parallel_environments()
    validated = proxy.rollout(DataProto(), val=True)  # dynamic sampling is for training
    assert {len(validated)} == {sum(actor.asked)}
    assert "val:" in validated.non_tensor_batch["anchor_obs"][0]
    proxy.close()


def test_failing_environments_fall_back_with_both_lines(caplog: pytest.LogCaptureFixture) -> None:
    settings = config("walk", use_multiprocessing=False)
    del settings["es_manager"]["val"]
    proxy = LLMAgentProxy(settings, Actor(walker))
    assert not proxy.init_parallel_environments()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "Failed to initialize parallel environments: config: es_manager.val is missing: say how many of which tags",
        "Falling back to original environment system",
    ]
    assert len(proxy.rollout(DataProto())) == 2
    with pytest.raises(UsageError, match=r"es_manager\.val is missing"):
        proxy.rollout(DataProto(), val=True)


def walk_manager(groups: int = 3, size: int = 2, **kwargs: Any) -> EnvironmentManagerBase:
    container = MultiProcessEnvironmentContainer("walk", groups, size, 1, kwargs, parallel=False)
    return EnvironmentManagerBase(container, create_projection_function("generic"), "walk")


def test_a_vanilla_loop_gives_a_row_for_each_turn() -> None:
    actor = Actor(lambda text: "<action>forth</action>")
    gen_batch = DataProto(None, {"data_source": ["a", "b"]}, {"temperature": 1})
    batch = TrajectoryCollector({"env": {"max_steps": 9}}).multi_turn_loop(gen_batch, actor, walk_manager())
    found = places(batch)
    assert len(batch) == sum(actor.asked)
    assert actor.asked == sorted(actor.asked, reverse=True)  # those that are done are asked no more
    assert actor.meta_infos[0] == {"temperature": 1}
    lengths = {uid: found["traj_uid"].count(uid) for uid in found["traj_uid"]}
    assert found["episode_lengths"] == [lengths[uid] for uid in found["traj_uid"]]
    assert len(lengths) == 6
    assert len(set(found["uid"])) == 3
    assert all(
        np.isclose(reward, 1 - 0.1 * length)
        for reward, length in zip(found["episode_rewards"], found["episode_lengths"], strict=True)
    )
    assert set(found["success_rate"]) == {1.0}
    assert all(found["active_masks"])
    assert found["data_source"][:1] == ["a"]
    assert set(found["data_source"]) == {"a", "b", "default"}


def test_pictures_stay_objects_and_arrays_of_any_shape_stay_arrays() -> None:
    class Model:
        turn = 0

        def generate_sequences(self, prompts: DataProto) -> DataProto:
            self.turn += 1
            shapes = {"score": (), "responses": (self.turn,), "hidden": (2, self.turn)}
            arrays = {key: np.full((len(prompts), *shape), self.turn) for key, shape in shapes.items()}
            return DataProto(arrays, {"response_texts": ["<action>back</action>"] * len(prompts)})

    envs = walk_manager(1, 1, render_mode="rgb_array")
    batch = TrajectoryCollector({"env": {"max_steps": 2}}).multi_turn_loop(DataProto(), Model(), envs)
    assert {key: value.tolist() for key, value in batch.batch.items()} == {
        "score": [1, 2], "responses": [[1, 0], [2, 2]], "hidden": [[[1, 0], [1, 0]], [[2, 2], [2, 2]]]
    }  # fmt: skip
    pictures = [shown["image"][0] for shown in batch.non_tensor_batch["multi_modal_data"]]
    assert [picture.shape for picture in pictures] == [(4, 4, 3)] * 2
    assert all(map(np.array_equal, pictures, batch.non_tensor_batch["anchor_obs"]))


def test_turns_are_bounded() -> None:
    actor = Actor(lambda text: "<action>back</action>")
    TrajectoryCollector({"agent_proxy": {"max_turn": 3}}).multi_turn_loop(DataProto(), actor, walk_manager())
    assert actor.asked == [6] * 3


def luck(share: float) -> Any:
    """Forth, or raised eyebrows: some episodes end in failure, so that some groups vary."""
    rng = np.random.default_rng(3)
    return lambda text: f"<action>{'forth' if rng.random() < share else 'back'}</action>"


def dynamic(**rules: Any) -> dict[str, Any]:
    return {"env": {"max_steps": 4}, "algorithm": {"filter_groups": {"enable": True, **rules}}}


def test_dynamic_sampling_gives_exactly_the_groups_asked_for() -> None:
    collector = TrajectoryCollector(dynamic() | {"data": {"train_batch_size": 4}})
    actor, manager = Actor(luck(0.7)), walk_manager(groups=6)
    seen: set[str] = set()
    surplus = 0
    for _ in range(4):
        carried = [episode.uid for group in collector.carried for episode in group]
        surplus += len(carried)
        found = places(collector.multi_turn_loop(DataProto(), actor, manager))
        episodes = list(dict.fromkeys(found["traj_uid"]))
        assert (len(set(found["uid"])), len(episodes)) == (4, 8)
        assert episodes[: len(carried)] == carried[:8]
        assert seen.isdisjoint(episodes)
        seen.update(episodes)
        for uid in set(found["uid"]):
            rewards = {
                reward for reward, owner in zip(found["episode_rewards"], found["uid"], strict=True) if owner == uid
            }
            assert len(rewards) > 1
        assert all(found["kept"])
    assert surplus


def test_groups_that_were_kept_outlive_a_model_that_fails() -> None:
    collector = TrajectoryCollector(dynamic() | {"data": {"train_batch_size": 40}})
    actor, manager = Actor(luck(0.7)), walk_manager(groups=6)
    generate, calls = actor.generate_sequences, 0

    def generate_a_while(prompts: DataProto) -> DataProto:
        nonlocal calls
        calls += 1
        if calls > 10:  # in the third try at most: a try is up to four turns
            raise ConnectionError("the model is gone")
        return generate(prompts)

    actor.generate_sequences = generate_a_while  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        collector.multi_turn_loop(DataProto(), actor, manager)
    kept = [episode.uid for group in collector.carried for episode in group]
    assert kept
    actor.generate_sequences = generate  # type: ignore[method-assign]
    found = places(collector.multi_turn_loop(DataProto(), actor, manager))
    assert list(dict.fromkeys(found["traj_uid"]))[: len(kept)] == kept


@pytest.mark.parametrize("policy", ["fill", "short", "raise"])
def test_exhaustion_follows_a_policy(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    rules = dynamic(max_num_gen_batches=2, on_exhausted=policy)
    collector = TrajectoryCollector(rules)
    actor, manager = Actor(lambda text: "<action>back</action>"), walk_manager(groups=3)
    if policy != "fill":
        with pytest.raises(ExhaustedError, match=r"0 of 3 groups were kept in 2 tries.*6 had equal rewards or failed"):
            collector.multi_turn_loop(DataProto(), actor, manager)
        return
    batch = collector.multi_turn_loop(DataProto(), actor, manager)
    assert len(set(batch.non_tensor_batch["uid"].tolist())) == 3
    assert not any(batch.non_tensor_batch["kept"])
    assert "0 of 3 groups were kept in 2 tries" in caplog.text
    assert len(actor.asked) == 2 * 4


def test_a_group_with_a_failure_is_not_kept_for_its_variance() -> None:
    words = iter(["forth", "raise"] * 6)
    collector = TrajectoryCollector(
        {"env": {"max_steps": 1}, "algorithm": {"filter_groups": {"enable": True, "max_num_gen_batches": 1}}}
    )
    found = places(
        collector.multi_turn_loop(DataProto(), Actor(lambda text: f"<action>{next(words)}</action>"), walk_manager())
    )
    assert found["failed"] == [False, True] * 3
    assert len(set(found["episode_rewards"])) > 1
    assert not any(found["kept"])


def test_retries_play_new_puzzles() -> None:
    container = MultiProcessEnvironmentContainer("sokoban", 2, 2, 1, parallel=False)
    manager = SokobanEnvironmentManager(container, create_projection_function("sokoban"), "sokoban")
    rooms: list[str] = []

    def reply(text: str) -> str:
        rooms.append(text)
        return "<action>up</action>"

    rules = {"env": {"max_steps": 1}, "algorithm": {"filter_groups": {"enable": True, "max_num_gen_batches": 3}}}
    TrajectoryCollector(rules).multi_turn_loop(DataProto(), Actor(reply), manager)
    assert len(rooms) == 12
    assert len(set(rooms)) == 6


def test_prompts_are_tokens_too() -> None:
    tokenizer = Words()
    collector = TrajectoryCollector({"data": {"max_prompt_length": 400}, "env": {"max_steps": 2}}, tokenizer)
    manager = walk_manager(groups=1)
    prompts = collector.preprocess_batch(DataProto(), manager.reset()[0])
    assert prompts.batch["input_ids"].shape == (2, 400)
    text = tokenizer.decode(prompts.batch["input_ids"][0].tolist())
    assert text == tokenizer.apply_chat_template(prompts.non_tensor_batch["messages_list"][0], True, tokenize=False)
    assert prompts.batch["attention_mask"][0].sum() == np.count_nonzero(prompts.batch["input_ids"][0])
    batch = collector.multi_turn_loop(DataProto(), Actor(lambda text: "<action>back</action>", tokenizer), manager)
    assert batch.batch["responses"].shape[0] == len(batch) == 4
    with pytest.raises(UsageError, match=r"data\.max_prompt_length=5"):
        TrajectoryCollector({"data": {"max_prompt_length": 5}}, tokenizer).preprocess_batch(
            DataProto(), manager.reset()[0]
        )


@pytest.mark.parametrize(
    ("answers", "told"),
    [(DataProto(None, {"response_texts": ["one"]}), "1 replies for 6 prompts"), (DataProto(), "must give batch")],
)
def test_wrong_answers_of_a_model_are_told(answers: DataProto, told: str) -> None:
    class Silent:
        def generate_sequences(self, prompts: DataProto) -> DataProto:
            return answers

    with pytest.raises(UsageError, match=told):
        TrajectoryCollector({}).multi_turn_loop(DataProto(), Silent(), walk_manager())
    with pytest.raises(UsageError, match="no generate_sequences"):
        LLMAgentProxy(config("walk"), object())


# The batch


def test_a_batch_is_cut_joined_and_repeated() -> None:
    data = DataProto({"x": [[1], [2], [3]]}, {"name": [["a"], ["b"], ["c"]]}, {"about": "it"})
    assert len(data) == 3
    assert data[1].non_tensor_batch["name"] == ["b"]
    assert data[np.array([True, False, True])].batch["x"].tolist() == [[1], [3]]
    assert data.repeat(2).batch["x"].ravel().tolist() == [1, 1, 2, 2, 3, 3]
    assert data.repeat(2, interleave=False).batch["x"].ravel().tolist() == [1, 2, 3] * 2
    assert DataProto.concat([data, data[:1]]).batch["x"].ravel().tolist() == [1, 2, 3, 1]
    taken = data.pop(batch_keys=["x"])
    assert ([*data.batch], [*taken.batch], len(data)) == ([], ["x"], 3)
    assert data.union(taken).batch["x"].shape == (3, 1)
    with pytest.raises(UsageError, match=r"different lengths: \{'x': 3, 'y': 1\}"):
        taken.union(DataProto({"y": [1]}))
