"""The collector's batch: replies read by names, scores, seeds of validation, and what verl's trainer asks of it."""

import logging
from typing import Any

import numpy as np
import pytest

from asyncrollout import UsageError, rewards
from asyncrollout.dropin.ragen import (
    DataProto,
    EnvironmentManagerBase,
    LLMAgentProxy,
    MultiProcessEnvironmentContainer,
    TrajectoryCollector,
    create_single_environment_for_testing,
    make_environments,
)
from asyncrollout.dropin.ragen.factory import REGISTERED_PROJECTIONS
from asyncrollout.text.projections import create_projection_function
from tests.envs.ragen import config, registered  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("registered")


class Talker:
    """Says the next of some texts, in turn, whoever asks; remembers how many were asked."""

    def __init__(self, *texts: str, world_size: int | None = None) -> None:
        self.texts = texts
        self.said = 0
        self.asked: list[int] = []
        if world_size is not None:
            self.world_size = world_size

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        self.asked.append(len(prompts))
        texts = [self.texts[(self.said + place) % len(self.texts)] for place in range(len(prompts))]
        self.said += len(prompts)
        return DataProto(None, {"response_texts": texts})


def walk_manager(groups: int = 3, size: int = 2) -> EnvironmentManagerBase:
    container = MultiProcessEnvironmentContainer("walk", groups, size, 1, parallel=False)
    return EnvironmentManagerBase(container, create_projection_function("generic"), "walk")


def column(batch: Any, key: str) -> list[Any]:
    found: list[Any] = batch.non_tensor_batch[key].tolist()
    return found


# Replies to an environment of one's own


@pytest.mark.parametrize(
    ("reply", "chosen", "valid"),
    [
        ("<action>Back</action>", "Back", True),
        ("<answer> 2 </answer>", "Back", True),
        ("<think>Forth?</think> I go back.", "Back", True),
        ("<action>go back now</action>", "Back", True),
        ("<action>sideways</action>", "Forth", False),
        ("<action>forth or back</action>", "Forth", False),
        ("Hm.", "Forth", False),
        ("", "Forth", False),
    ],
)
def test_replies_are_read_by_the_names_of_an_own_environments_actions(reply: str, chosen: str, valid: bool) -> None:
    manager = create_single_environment_for_testing("walk")
    manager.reset()
    observations, _, _, infos = manager.step([reply])
    assert "error" not in infos[0]
    assert (infos[0]["said"], infos[0]["is_action_valid"]) == (chosen, valid)
    assert f"and chose {chosen}" in observations["text"][0]
    manager.close()


def test_dynamic_sampling_keeps_groups_with_unreadable_replies() -> None:
    rules = {"enable": True, "max_num_gen_batches": 1, "on_exhausted": "short"}
    collector = TrajectoryCollector({"env": {"max_steps": 8}, "algorithm": {"filter_groups": rules}})
    batch = collector.multi_turn_loop(
        DataProto(), Talker("<action>forth</action>", "?", "<action>back</action>"), walk_manager()
    )
    assert not any(column(batch, "failed"))
    assert not all(column(batch, "is_action_valid"))


def test_a_projection_of_ones_own_may_give_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        REGISTERED_PROJECTIONS,
        "walk",
        lambda texts: (["back" if "!" in text else "?" for text in texts], [True] * len(texts)),
    )
    manager = create_single_environment_for_testing("walk")
    manager.reset()
    assert manager.step(["forth!"])[3][0]["said"] == "Back"
    info = manager.step(["well"])[3][0]
    assert (info["said"], info["is_action_valid"]) == ("Forth", False)
    manager.close()


# Scores


def proxy_of(types: tuple[str, ...], actor: Talker, **more: Any) -> LLMAgentProxy:
    es_manager = {"max_workers": 1, **more.pop("es_manager", {})}
    proxy = LLMAgentProxy(config(*types, groups=2, size=3, **es_manager) | more, actor)
    assert proxy.init_parallel_environments()
    return proxy


@pytest.mark.parametrize("method", ["identity", "mean", "mean_std", "asym_clip"])
@pytest.mark.parametrize("grouping", ["state", "inductive", "batch"])
def test_scores_are_normalized_and_penalties_subtracted(grouping: Any, method: Any) -> None:
    normalization = {"grouping": grouping, "method": method}
    proxy = proxy_of(
        ("bandit", "walk"),
        Talker("<action>1</action>", "?", "<action>2</action>", "<action>1</action>", "Hm."),
        agent_proxy={"max_turn": 3, "reward_normalization": normalization},
        es_manager={"format_penalty": -0.5},
    )
    batch = proxy.rollout(DataProto())
    firsts = {uid: row for row, uid in reversed([*enumerate(column(batch, "traj_uid"))])}
    owners = [column(batch, "traj_uid")[row] for row in firsts.values()]
    unreadable = [
        sum(
            not valid
            for valid, uid in zip(column(batch, "is_action_valid"), column(batch, "traj_uid"), strict=True)
            if uid == owner
        )
        for owner in owners
    ]
    raw = np.array([column(batch, "episode_rewards")[row] for row in firsts.values()])
    expected = rewards.normalize(
        raw,
        penalties=0.5 * np.array(unreadable),
        groups=[column(batch, "uid")[row] for row in firsts.values()],
        tags=["bandit" if row < min(6, len(firsts)) else "walk" for row in range(len(firsts))],
        grouping=grouping,
        method=method,
    )
    assert sum(unreadable) > 3
    assert batch.batch["rm_scores"].shape == batch.batch["original_rm_scores"].shape == (len(batch), 1)
    assert np.allclose(batch.batch["rm_scores"][[*firsts.values()], 0], expected, atol=1e-6)
    assert np.allclose(batch.batch["original_rm_scores"][[*firsts.values()], 0], raw - 0.5 * np.array(unreadable))
    proxy.close()


def test_an_unreadable_bandit_reply_pays_the_penalty() -> None:
    proxy = proxy_of(("bandit",), Talker("no idea"), es_manager={"format_penalty": 2.0})
    batch = proxy.rollout(DataProto())
    assert (batch.batch["original_rm_scores"] < 0).all()
    assert np.allclose(batch.batch["original_rm_scores"][:, 0], np.array(column(batch, "episode_rewards")) - 2.0)
    proxy.close()


def test_turn_scores_are_each_turns_own() -> None:
    proxy = proxy_of(
        ("walk",), Talker("<action>back</action>", "?"), agent_proxy={"max_turn": 2, "use_turn_scores": True}
    )
    batch = proxy.rollout(DataProto())
    expected = [
        reward - (0.0 if valid else 0.1)
        for reward, valid in zip(column(batch, "rewards"), column(batch, "is_action_valid"), strict=True)
    ]
    assert np.allclose(batch.batch["rm_scores"][:, 0], expected)
    proxy.close()


def test_groups_whose_penalties_differ_are_kept() -> None:
    settings = {
        "env": {"max_steps": 1},
        "es_manager": {},
        "algorithm": {"filter_groups": {"enable": True, "max_num_gen_batches": 1, "on_exhausted": "raise"}},
    }
    actor = Talker("<action>forth</action>", "?")  # which is played as the same
    batch = TrajectoryCollector(settings).multi_turn_loop(DataProto(), actor, walk_manager())
    assert len(set(column(batch, "uid"))) == 3
    assert len(set(column(batch, "episode_rewards"))) == 1


class Tokens:
    """A tokenizer of characters."""

    pad_token_id = 0

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool, tokenize: bool) -> str:
        return str(messages[0]["content"])

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(letter) % 1000 + 1 for letter in text]

    def batch_decode(self, rows: Any, skip_special_tokens: bool) -> list[str]:
        return ["".join(chr(token - 1) for token in row if token) for row in rows]


@pytest.mark.parametrize("with_mask", [True, False])
def test_scores_stand_at_the_last_token_of_a_reply(with_mask: bool) -> None:
    tokenizer, text = Tokens(), "<action>back</action>"

    class Model:
        def generate_sequences(self, prompts: DataProto) -> DataProto:
            ids = tokenizer.encode(text, add_special_tokens=False)
            replies = np.array([ids + [0] * 4] * len(prompts))
            if not with_mask:
                return DataProto({"responses": replies})
            mask = np.concatenate([prompts.batch["attention_mask"], replies != 0], axis=1)
            return DataProto({"prompts": prompts.batch["input_ids"], "responses": replies, "attention_mask": mask})

    settings = {"agent_proxy": {"max_turn": 2}, "es_manager": {}, "data": {"max_prompt_length": 700}}
    batch = TrajectoryCollector(settings, tokenizer).multi_turn_loop(DataProto(), Model(), walk_manager())
    assert {str(np.flatnonzero(row).tolist()) for row in batch.batch["rm_scores"]} == {f"[{len(text) - 1}]"}


def test_replies_of_different_widths_are_filled_up_with_the_padding_token() -> None:
    class Padded(Tokens):
        pad_token_id = 7

    class Model:
        widths = iter((2, 4, 3))

        def generate_sequences(self, prompts: DataProto) -> DataProto:
            width, texts = next(self.widths), ["<action>back</action>"] * len(prompts)
            return DataProto({"responses": np.full((len(prompts), width), 5)}, {"response_texts": texts})

    settings = {"agent_proxy": {"max_turn": 3}, "es_manager": {}, "data": {"max_prompt_length": 700}}
    batch = TrajectoryCollector(settings, Padded()).multi_turn_loop(DataProto(), Model(), walk_manager(1, 1))
    assert batch.batch["responses"].tolist() == [[5, 5, 7, 7], [5, 5, 5, 5], [5, 5, 5, 7]]
    assert np.argwhere(batch.batch["rm_scores"]).tolist() == [[0, 1], [1, 3], [2, 2]]


def test_a_column_of_several_kinds_keeps_its_values() -> None:
    class Model:
        notes = iter((1, "late"))

        def generate_sequences(self, prompts: DataProto) -> DataProto:
            return DataProto(None, {"response_texts": ["back"] * len(prompts), "note": [next(self.notes)]})

    batch = TrajectoryCollector({"env": {"max_steps": 2}}).multi_turn_loop(DataProto(), Model(), walk_manager(1, 1))
    assert column(batch, "note") == [1, "late"]


@pytest.mark.parametrize("amount", [0.5, -0.5])
def test_a_penalty_among_the_agents_keys_costs_as_much_in_both_ways_to_collect(amount: float) -> None:
    settings = config("walk", groups=1, size=2, max_workers=0) | {
        "agent_proxy": {"max_turn": 2, "format_penalty": amount}
    }
    proxy = LLMAgentProxy(settings, Talker("?"))
    assert proxy.rollout(DataProto()).batch["original_rm_scores"].ravel().tolist() == [-1.0, -1.0]
    assert proxy.init_parallel_environments()
    batch = proxy.rollout(DataProto())
    costs = np.array(column(batch, "episode_rewards")) - batch.batch["original_rm_scores"].ravel()
    assert costs.tolist() == pytest.approx([1.0] * 4)
    proxy.close()


@pytest.mark.parametrize("count", [1, 3])
def test_there_is_a_reply_for_each_environment(count: int) -> None:
    manager = walk_manager(groups=1)
    manager.reset()
    with pytest.raises(UsageError, match=f"{count} replies for 2 environments"):
        manager.step(["back"] * count)


@pytest.mark.parametrize("count", [1, 3])
def test_a_projection_gives_one_action_for_each_reply(count: int) -> None:
    manager = walk_manager(groups=1)
    manager.projection_f = lambda texts: ([1] * count, [True] * count)
    manager.reset()
    with pytest.raises(UsageError, match=f"'walk' gave {count} actions .* for 2 replies"):
        manager.step(["back"] * 2)


@pytest.mark.parametrize(
    ("truncation", "left"), [("left", slice(-50, None)), ("right", slice(0, 50)), ("middle", None), ("error", None)]
)
def test_long_prompts_are_cut_as_the_config_says(truncation: str, left: slice | None) -> None:
    tokenizer, manager = Tokens(), walk_manager(groups=1)
    settings = {"data": {"max_prompt_length": 50, "truncation": truncation}}
    collector = TrajectoryCollector(settings, tokenizer)
    observations, _ = manager.reset()
    if truncation == "error":
        with pytest.raises(UsageError, match=r"set data\.truncation to left, right or middle"):
            collector.preprocess_batch(DataProto(), observations)
        return
    prompts = collector.preprocess_batch(DataProto(), observations)
    whole = tokenizer.encode(observations["text"][0], add_special_tokens=False)
    expected = whole[:25] + whole[-25:] if left is None else whole[left]
    assert prompts.batch["input_ids"][0].tolist() == prompts.non_tensor_batch["raw_prompt_ids"][0] == expected


def test_options_of_the_chat_template_are_the_configs() -> None:
    """As of verl-agent's `data.apply_chat_template_kwargs`, such as Qwen3's `enable_thinking`."""

    class Thinking(Tokens):
        def apply_chat_template(
            self, messages: Any, add_generation_prompt: bool, tokenize: bool, **options: Any
        ) -> str:
            return f"{options} and no more"

    settings = {"data": {"max_prompt_length": 90, "apply_chat_template_kwargs": {"enable_thinking": False}}}
    tokenizer, manager = Thinking(), walk_manager(groups=1)
    prompts = TrajectoryCollector(settings, tokenizer).preprocess_batch(DataProto(), manager.reset()[0])
    expected = tokenizer.encode("{'enable_thinking': False} and no more", add_special_tokens=False)
    assert prompts.non_tensor_batch["raw_prompt_ids"][0] == expected


# Seeds


def starts(manager: EnvironmentManagerBase) -> list[str]:
    found: list[str] = manager.reset()[0]["anchor"]
    return found


@pytest.mark.parametrize("types", [("sokoban",), ("walk", "sokoban")])
def test_validation_plays_the_same_every_time_by_its_own_seed(types: tuple[str, ...]) -> None:
    found = {}
    for val in (None, 7, 8):
        settings = config(*types, groups=3) | {"use_parallel_envs": False, "seed": {"train": 5, "val": val}}
        train, manager = make_environments(settings)
        rooms = [starts(manager) for _ in range(3)]
        assert rooms[0] == rooms[1] == rooms[2]
        found[val] = tuple(rooms[0])
        assert starts(train) != starts(train)
    assert len({*found.values()}) == 3


def test_training_never_takes_the_seeds_of_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config("walk", groups=4, size=1) | {"use_parallel_envs": False, "seed": {"train": 90, "val": 103}}
    train, val = make_environments(settings)
    seeds: dict[str, list[int]] = {"train": [], "val": []}
    for mode, manager in (("train", train), ("val", val)):
        container = manager.envs._target
        reset = container.reset

        async def noted(given: Any, members: Any, *, mode: str = mode, reset: Any = reset) -> Any:
            seeds[mode] += given
            return await reset(given, members)

        monkeypatch.setattr(container, "reset", noted)
        for _ in range(40):
            manager.reset()
    assert set(seeds["val"]) == {103, 104, 105, 106}
    assert len(set(seeds["train"])) == len(seeds["train"]) == 160
    assert set(seeds["train"]).isdisjoint(seeds["val"])
    assert min(seeds["train"]) == 90


# What verl's trainer asks of a batch


def test_prompts_are_padded_to_a_multiple_of_the_models_world_size() -> None:
    alone, several = Talker("<action>forth</action>"), Talker("<action>forth</action>", world_size=4)
    batches = [
        TrajectoryCollector({"env": {"max_steps": 5}}).multi_turn_loop(DataProto(), actor, walk_manager())
        for actor in (alone, several)
    ]
    assert several.asked == [-(-count // 4) * 4 for count in alone.asked]
    assert alone.asked != several.asked
    for key in ("rewards", "anchor_obs", "episode_rewards"):
        assert column(batches[0], key) == column(batches[1], key)


def test_success_rates_are_the_same_in_all_rows_and_tool_calls_are_counted() -> None:
    actor = Talker("<action>forth</action>", "<action>back</action>")
    batch = TrajectoryCollector({"env": {"max_steps": 6}}).multi_turn_loop(DataProto(), actor, walk_manager())
    by_episode = dict(zip(column(batch, "traj_uid"), column(batch, "success"), strict=True))
    assert 0 < sum(by_episode.values()) < len(by_episode)
    assert set(column(batch, "success_rate")) == {sum(by_episode.values()) / len(by_episode)}
    assert set(column(batch, "tool_callings")) == {0.0}


def test_a_data_source_is_that_of_a_group_or_of_a_row() -> None:
    for sources, expected in ((["a", "b", "c"], "aabbcc"), ([*"abcdef"], "abcdef")):
        gen_batch = DataProto(None, {"data_source": sources})
        batch = TrajectoryCollector({"env": {"max_steps": 1}}).multi_turn_loop(gen_batch, Talker("?"), walk_manager())
        assert "".join(column(batch, "data_source")) == expected


def test_arguments_for_verl_agents_search_are_refused() -> None:
    manager = walk_manager()
    assert len(manager.reset(kwargs=[{}, {}])[1]) == 6
    gen_batch = DataProto(None, {"env_kwargs": [{"question": "?"}] * 3})
    with pytest.raises(UsageError, match="walk: env_kwargs are for verl-agent's search environment"):
        TrajectoryCollector({}).multi_turn_loop(gen_batch, Talker("?"), manager)


def test_other_sections_of_a_config_are_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __init__(self) -> None:
            self.env = {"max_steps": 2}

        @property
        def model(self) -> Any:
            raise LookupError("a value that only the trainer has")

    actor = Talker("<action>back</action>")
    with caplog.at_level(logging.WARNING):
        TrajectoryCollector(Broken()).multi_turn_loop(DataProto(), actor, walk_manager())
    assert actor.asked == [6, 6]


def test_managers_say_why_a_reply_was_invalid_if_asked_for() -> None:
    shown = []
    for explain in (False, True):
        given = config("sokoban", "bandit", groups=1, size=1)
        given["agent_proxy"] = {"explain_invalid": explain}
        train, val = make_environments(given)
        train.reset()
        observations, *_, infos = train.step(["<action>jump</action>", "I wonder."])
        shown.append(observations["text"])
        reasons = [info.get("invalid_reason") for info in infos]
        train.close()
        val.close()
    assert reasons == ["not an action: 'jump'", "no <answer> or <action> tag"]
    lines = [f"Your last reply was invalid: {reason}.\n" for reason in reasons]
    assert shown[1] == [line + text for line, text in zip(lines, shown[0], strict=True)]
