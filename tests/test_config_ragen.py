"""RAGEN's keys mean what RAGEN means by them."""

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

import asyncrollout as ar
from asyncrollout import config
from asyncrollout.config import schema
from asyncrollout.config.dialect import Note
from asyncrollout.dropin.ragen.config_keys import RAGEN_KEYS, TOP_LEVEL, translate
from asyncrollout.dropin.ragen.env_keys import ENV_TYPES, KNOWN_TAGS, REFUSED_TYPES
from asyncrollout.registry import env_names

parse_config = functools.partial(config.parse_config, dialect=RAGEN_KEYS)
read_config = functools.partial(config.read_config, dialect=RAGEN_KEYS)

PARALLEL = """
es_manager:
  train:
    env_groups: 4
    group_size: 3
    env_configs: {tags: ["SokobanEnv"], n_groups: [1]}
  val:
    env_groups: 2
    group_size: 1
    env_configs: {tags: ["SokobanEnv"], n_groups: [1]}
custom_envs:
  SokobanEnv:
    env_type: sokoban
    max_actions_per_traj: 50
    env_config: {dim_room: [6, 6], num_boxes: 1, max_steps: 100, search_depth: 30}
use_parallel_envs: false
algorithm:
  filter_groups: {enable: true, max_num_gen_batches: 10}
agent_proxy:
  reward_normalization: {grouping: "state", method: "mean_std"}
"""
WORKERS = """
es_manager:
  use_multiprocessing: true
  max_workers: 8
  sequential_env_types: ['webshop']
  format_penalty: 0.1
  train: {env_groups: 3, group_size: 2, env_configs: {tags: [WebShop, FrozenLake], n_groups: [1, 2]}}
"""


def error_of(text: str) -> str:
    with pytest.raises(ar.UsageError) as caught:
        parse_config(text)
    return str(caught.value)


def notes_of(values: dict[str, Any]) -> dict[str, Note]:
    return {note.key: note for note in translate(values).notes}


def test_parallel_envs_and_dynamic_sampling() -> None:
    config = parse_config(PARALLEL)
    kwargs = {"dim_room": [6, 6], "num_boxes": 1, "max_steps": 100, "search_depth": 30, "max_actions_per_traj": 50}
    assert config.env == [schema.EnvEntry("sokoban", "SokobanEnv", 1.0, kwargs)]
    assert (config.groups, config.group_size, config.backend) == (4, 3, "inline")
    assert (config.keep, config.max_num_gen_batches) == (schema.RewardVaries(), 10)
    assert config.reward_normalization == schema.Normalization("state", "mean_std")


def test_workers_and_envs_that_run_on_the_loop() -> None:
    config = parse_config(WORKERS)
    assert config.workers == 8
    assert config.backend is None
    assert [(entry.env, entry.tag, entry.share, entry.runs) for entry in config.entries] == [
        ("webshop", "WebShop", 1.0, "light"),
        ("frozen_lake", "FrozenLake", 2.0, None),
    ]
    assert [entry.env_kwargs for entry in config.entries] == [
        {
            "style": "ragen",
            "reward": "binary",
            "human_goals": False,
            "max_steps": 1_000_000,
            "max_actions_per_traj": 9,
            "format_penalty": 0.1,
        },
        {"success_rate": 0.8, "p": 0.9, "max_steps": 1_000_000, "max_actions_per_traj": 10, "format_penalty": 0.1},
    ]


@pytest.mark.parametrize("penalty", [0.1, -0.1])
@pytest.mark.parametrize("section", ["es_manager", "agent_proxy"])
def test_a_format_penalty_of_either_sign_is_subtracted(penalty: float, section: str) -> None:
    assert parse_config(f"env: bandit\n{section}: {{format_penalty: {penalty}}}").env_kwargs == {"format_penalty": 0.1}


def test_turns_actions_and_seeds() -> None:
    config = parse_config("""
env: sokoban
limits: {tokens: 100}
seed: {train: 10000, val: 123}
agent_proxy: {max_turn: 5, max_actions_per_turn: 2, action_sep: "||", enable_think: true}
""")
    assert config.seed == 10_000
    assert config.limits == ar.Limits(turns=5, tokens=100)
    assert config.env_kwargs == {"max_actions_per_turn": 2, "separator": "||", "think": True}


def test_what_an_env_has_of_its_own_comes_first() -> None:
    config = parse_config("""
es_manager: {format_penalty: -0.1, train: {env_configs: {tags: [A, Bandit]}}}
custom_envs: {A: {env_type: FrozenLake, env_config: {format_penalty: 0.5, size: 4, render_mode: text, p: 0.8}}}
""")
    assert [entry.env_kwargs for entry in config.entries] == [
        {"format_penalty": 0.5, "size": 4, "p": 0.8, "max_steps": 1_000_000},
        {"split": "train", "num_arms": 2, "style": "ragen", "max_actions_per_traj": 1, "format_penalty": 0.1},
    ]


def test_configs_of_envs_are_renamed() -> None:
    config = parse_config("""
es_manager: {train: {env_configs: {tags: [S, B]}}}
custom_envs:
  S: {env_type: sokoban, env_config: {dim_x: 6, dim_y: 8, num_boxes: 2, observation_format: grid}}
  B: {env_type: bandit, env_config: {lo_arm_score: 0.2, hi_arm_hiscore: 2, hi_arm_hiscore_prob: 0.5}}
""")
    assert [entry.env_kwargs for entry in config.entries] == [
        {"num_boxes": 2, "dim_room": [6, 8], "observation_format": "grid"},
        {"low_score": 0.2, "high_score": 2, "high_probability": 0.5, "style": "ragen"},
    ]


def test_what_a_tag_says_of_states_is_played() -> None:
    config = parse_config("""
es_manager: {train: {env_configs: {tags: [S]}}}
custom_envs: {S: {env_type: sokoban, observation_format: coord, env_config: {num_boxes: 1}}}
""")
    assert config.entries[0].env_kwargs == {"num_boxes": 1, "observation_format": "coord"}


def test_tables_name_envs_that_there_are() -> None:
    assert {*ENV_TYPES.values()} <= {*env_names()}
    assert {tag["env_type"] for tag in KNOWN_TAGS.values()} <= ENV_TYPES.keys() | REFUSED_TYPES.keys()


REFUSED = [tag for tag, custom in KNOWN_TAGS.items() if custom["env_type"] in REFUSED_TYPES]


async def test_every_tag_of_ragen_opens() -> None:
    tags = ", ".join(tag for tag in KNOWN_TAGS if tag not in (*REFUSED, "WebShopFull"))
    config = parse_config(f"es_manager: {{format_penalty: -0.1, train: {{env_configs: {{tags: [{tags}]}}}}}}")
    async with ar.EnvPool(backend="inline") as pool:
        for entry in config.entries:
            async with pool.open(entry.env, **entry.env_kwargs) as env:
                assert (await env.reset(seed=1)).observation.text


@pytest.mark.parametrize("tag", REFUSED)
def test_tags_that_need_a_download_or_a_server_are_refused_by_name(tag: str) -> None:
    env_type = KNOWN_TAGS[tag]["env_type"]
    told = error_of(f"es_manager: {{train: {{env_configs: {{tags: [{tag}]}}}}}}")
    assert f"env type '{env_type}' is not shipped: {REFUSED_TYPES[env_type]}" in told


def test_an_env_config_that_cannot_be_followed_is_refused_by_its_key() -> None:
    custom = "{S: {env_type: sokoban, env_config: {action_lookup: {1: North}}}}"
    told = error_of(f"es_manager: {{train: {{env_configs: {{tags: [S, WebShopFull]}}}}}}\ncustom_envs: {custom}")
    assert "custom_envs.S: env_config.action_lookup={1: 'North'} is not supported by env 'sokoban'" in told
    assert "tags.1: env_config.dataset='full' needs WebShop's full data" in told


@pytest.mark.parametrize(
    ("n_groups", "shares"), [("[1, 3]", [1, 3]), ("[2, 6]", [2, 6]), ("[1, 1]", [1, 1]), ("null", [1, 1])]
)
def test_numbers_of_groups_are_shares(n_groups: str, shares: list[float]) -> None:
    tags = f"{{tags: [Bandit, Countdown], n_groups: {n_groups}}}"
    config = parse_config(f"es_manager: {{train: {{env_groups: 8, env_configs: {tags}}}}}")
    assert config.groups == 8
    assert [entry.share for entry in config.entries] == shares


@pytest.mark.parametrize(
    ("rollout", "keep"),
    [
        ("ratio: 0.25, type: std", schema.TopStd(0.25)),
        ("ratio: 0.25, type: std_rev", schema.TopStd(0.25, largest=False)),
        ("ratio: 0.25", schema.TopStd(0.25)),
        ("ratio: 1, type: std", None),
        ("value: 0.9, strategy: top_p", schema.TopP(0.9)),
        ("value: 0.9", schema.TopP(0.9)),
        ("value: 4, strategy: top_k_abs, type: smallest", schema.TopKAbs(4, largest=False)),
        ("value: 0.9, strategy: min_p, metric: reward_sum", schema.MinP(0.9, metric="reward_sum")),
        (
            "value: 0.9, include_zero: false, top_p_prob_mode: softmax",
            schema.TopP(0.9, include_zero=False, softmax=True),
        ),
        ("value: 0.5, strategy: top_k, selection_eps: 0", schema.TopK(0.5, selection_eps=0)),
    ],
)
def test_filters_of_whole_batches(rollout: str, keep: schema.Keep | None) -> None:
    keys = ", ".join(f"rollout_filter_{key}" for key in rollout.split(", "))
    assert parse_config(f"env: bandit\nactor_rollout_ref: {{rollout: {{{keys}, temperature: 1}}}}").keep == keep


@pytest.mark.parametrize(
    ("algorithm", "advantage"),
    [
        ("adv_estimator: gae", None),
        ("adv_estimator: grpo", "grpo"),
        ("adv_estimator: grpo, norm_adv_by_std_in_grpo: false", "dr_grpo"),
        ("adv_estimator: reinforce_plus_plus, gamma: 1.0", "reinforce_pp"),
        ("adv_estimator: gigpo", "gigpo"),
    ],
)
def test_advantages(algorithm: str, advantage: str | None) -> None:
    assert parse_config(f"env: bandit\nalgorithm: {{{algorithm}}}").advantage == advantage


@pytest.mark.parametrize(
    ("filter_groups", "keep", "most"),
    [
        ("{enable: true, metric: acc, max_num_gen_batches: 3}", schema.RewardVaries(), 3),
        ("{enable: true, max_num_gen_batches: 0}", schema.RewardVaries(), None),
        ("{enable: true}", schema.RewardVaries(), 10),
        ("{enable: false, max_num_gen_batches: 3}", None, 10),
    ],
)
def test_dynamic_sampling(filter_groups: str, keep: schema.Keep | None, most: int | None) -> None:
    config = parse_config(f"env: bandit\nalgorithm: {{filter_groups: {filter_groups}}}")
    assert (config.keep, config.max_num_gen_batches) == (keep, most)


@pytest.mark.parametrize(
    "text",
    [
        "group_size: 3\nes_manager: {train: {group_size: 3}}\nenv: bandit",
        "keep: reward_varies\nalgorithm: {filter_groups: {enable: true}}\nenv: bandit",
        "env_kwargs: {format_penalty: 0.1}\nes_manager: {format_penalty: -0.1}\nenv: bandit",
        "workers: 3\nmax_workers: 3\nes_manager: {max_workers: 3}\nenv: bandit",
    ],
)
def test_the_same_said_twice_is_fine(text: str) -> None:
    assert parse_config(text).env == "bandit"


SAME = "means the same"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "group_size: 4\nes_manager: {train: {group_size: 3}}",
            f"line 3: es_manager.train.group_size: found 3, but group_size {SAME}, and is 4: give one of them",
        ),
        (
            "env_kwargs: {format_penalty: 0.2}\nes_manager: {format_penalty: -0.1}",
            f"es_manager.format_penalty: found 0.1, but env_kwargs.format_penalty {SAME}",
        ),
        (
            "max_workers: 3\nes_manager: {max_workers: 4}",
            f"es_manager.max_workers: found 4, but max_workers {SAME}, and is 3",
        ),
        (
            "es_manager: {train: {env_configs: {tags: [Bandit]}}}",
            f"es_manager.train.env_configs.tags: found a list of 1 items, but env {SAME}",
        ),
        (
            "algorithm: {filter_groups: {enable: true}}\nactor_rollout_ref: {rollout: {rollout_filter_ratio: 0.5}}",
            f"but algorithm.filter_groups.enable {SAME}",
        ),
    ],
)
def test_something_else_said_twice_is_an_error(text: str, error: str) -> None:
    assert error in error_of(f"env: bandit\n{text}")


@pytest.mark.parametrize(
    ("tags", "n_groups", "error"),
    [
        (
            "[Bandit, Countdown]",
            "[1, 2]",
            "n_groups: found [1, 2], 3 in all, but env_groups is 4: make it 3, or a multiple of it",
        ),
        (
            "[Bandit]",
            "[1, 2]",
            "n_groups: found 2 entries, but tags has 1",
        ),
        ("[Bandit]", "[0]", "n_groups: found a list of 1 items, expected"),
        ("[Bandits]", "[4]", "tags.0: found 'Bandits', which custom_envs does not define: did you mean 'Bandit'"),
        ("Bandit", "[4]", "line 1: es_manager.train.env_configs.tags: found 'Bandit', expected a list of tags"),
    ],
)
def test_tags_that_are_not_valid(tags: str, n_groups: str, error: str) -> None:
    configs = f"{{tags: {tags}, n_groups: {n_groups}}}"
    assert error in error_of(f"es_manager: {{train: {{env_groups: 4, env_configs: {configs}}}}}")


@pytest.mark.parametrize(
    ("custom_envs", "error"),
    [
        ("[A]", "custom_envs: found a list of 1 items, expected a mapping of tags to envs"),
        ("{A: 3}", "line 2: custom_envs.A: found 3, expected a mapping with env_type"),
        ("{A: {env_type: []}}", "line 2: custom_envs.A.env_type: found a list of 0 items, expected a text"),
        ("{A: {env_config: 3}}", "custom_envs.A: found a mapping of 1 keys, expected a mapping with env_type and with"),
        ("\n  A: {env_type: bandid}", "line 3: custom_envs.A.env_type (as env.0.env): no env is called 'bandid'"),
        (
            "{A: {env_type: bandit, env_config: {x: 010}}}",
            "custom_envs.A.env_config.x (as env.0.env_kwargs.x): found 010",
        ),
        ("{A: {env_type: bandit, env_config: {api_key: sk-canary}}}", "a key is never written into a file"),
    ],
)
def test_custom_envs_that_are_not_valid(custom_envs: str, error: str) -> None:
    reported = error_of(f"es_manager: {{train: {{env_configs: {{tags: [A]}}}}}}\ncustom_envs: {custom_envs}")
    assert error in reported
    assert "canary" not in reported


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "es_manager: {train: {group_size: 0}}",
            "line 2: es_manager.train.group_size (as group_size): found 0, expected",
        ),
        ("es_manager: [1]", "line 2: es_manager: found a list of 1 items, expected a mapping"),
        ("agent_proxy: {max_turn: no}", "agent_proxy.max_turn (as limits.turns): found false, expected a whole number"),
        ("agent_proxy: {reward_normalization: {method: mean_sdt}}", "found 'mean_sdt': did you mean 'mean_std'"),
        ("algorithm: {filter_groups: {enable: 1}}", "algorithm.filter_groups.enable: found 1, expected true or false"),
        ("use_parallel_envs: 2", "use_parallel_envs: found 2, expected true or false"),
        ("sequential_env_types: webshop", "sequential_env_types: found 'webshop', expected a list of env types"),
    ],
)
def test_values_that_are_not_valid(line: str, error: str) -> None:
    assert error in error_of(f"env: bandit\n{line}")


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (
            "rollout_filter_value: 1, rollout_filter_metric: entropy",
            "rollout_filter_metric (as keep.metric): found 'entropy'",
        ),
        ("rollout_filter_ratio: 0.5, rollout_filter_type: large", "rollout_filter_type: found 'large': did you mean"),
        ("rollout_filter_ratio: 2", "rollout_filter_ratio (as keep.ratio): found 2, expected a number from 0 to 1"),
    ],
)
def test_filters_that_are_not_valid(keys: str, error: str) -> None:
    assert error in error_of(f"env: bandit\nactor_rollout_ref: {{rollout: {{{keys}}}}}")


def test_notes_say_what_became_of_each_key() -> None:
    notes = notes_of(
        {
            "es_manager": {"train": {"group_size": 3}, "val": {"env_groups": 1}, "max_workers": 2},
            "use_parallel_envs": False,
            "sequential_env_types": ["webshop"],
            "trainer": {"a": {"b": 1}},
            "algorithm": {"adv_estimator": "gae", "lam": 1.0},
            "env": "bandit",
        }
    )
    assert notes == {
        note.key: note
        for note in [
            Note("es_manager.train.group_size", "group_size"),
            Note("es_manager.val", why="a run has no validation"),
            Note("es_manager.max_workers", why="there are no workers with backend: inline"),
            Note("use_parallel_envs", "backend"),
            Note("sequential_env_types", why="no entry of env is of these types"),
            Note("trainer", why="for the trainer"),
            Note("algorithm.adv_estimator", why="'gae' is not one of ours: set advantage, if one is wanted"),
            Note("algorithm.lam", why="for the trainer"),
        ]
    }


@pytest.mark.parametrize(
    ("named", "setting"),
    [
        ("model_path: m", "model_path"),
        ("actor_rollout_ref: {model: {path: m}}", "actor_rollout_ref.model.path"),
        ("model_path: m\nactor_rollout_ref: {model: {path: '${model_path}'}}", "model_path"),
    ],
)
def test_an_expert_in_the_place_of_the_file_s_model_is_a_warning(named: str, setting: str) -> None:
    with capture_logs() as events:
        parse_config(f"env: bandit\n{named}")
        parse_config(f"env: bandit\npolicy: solver\n{named}")
    (event,) = (event for event in events if event["log_level"] == "warning")
    assert (event["event"], event["setting"]) == ("setting_not_applied", setting)
    assert "the envs' own experts play (policy: solver): set policy" in event["why"]


def test_what_became_of_the_keys_is_logged() -> None:
    with capture_logs() as events:
        parse_config("env: bandit\nes_manager: {train: {group_size: 3}}\ntrainer: {a: 1}")
        parse_config("env: bandit\nseed: 1")
    (event,) = events
    assert event["event"] == "foreign_keys"
    assert event["mapped"] == ["es_manager.train.group_size -> group_size"]
    assert event["unused"] == ["trainer: for the trainer"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("agent_proxy: {max_turns: 3}", "agent_proxy.max_turns: not a known key: did you mean 'agent_proxy.max_turn'?"),
        (
            "es_manager: {train: {env_group: 8}}",
            "es_manager.train.env_group: not a known key: did you mean 'es_manager.train.env_groups'?",
        ),
        (
            "actor_rollout_ref: {rollout: {temprature: 0.5}}",
            "actor_rollout_ref.rollout.temprature: not a known key: did you mean 'actor_rollout_ref.rollout.temp",
        ),
        ("actor_rollout_ref: {rollout: {best_of: 4}}", "actor_rollout_ref.rollout.best_of: not a known key"),
        ("algorithm: {filter_groups: {enabled: true}}", "algorithm.filter_groups.enabled: not a known key"),
        ("es_manager: {use_threads: true}", "es_manager.use_threads: not a known key"),
        ("seed: {train: 1, test: 2}", "seed.test: not a known key"),
    ],
)
def test_a_key_that_is_neither_used_nor_the_trainers_is_refused(line: str, error: str) -> None:
    assert f"line 2: {error}" in error_of(f"env: bandit\n{line}")


def test_a_key_of_a_tag_that_is_not_known_is_refused() -> None:
    told = error_of(
        "es_manager: {train: {env_configs: {tags: [A]}}}\ncustom_envs: {A: {env_type: bandit, max_action: 3}}"
    )
    assert "custom_envs.A.max_action: not a known key: did you mean 'max_tokens' or 'max_actions_per_traj'" in told


def test_values_are_left_as_they_are() -> None:
    values = {"env": [{"env": "bandit"}], "es_manager": {"format_penalty": -0.1}}
    translated = translate(values)
    assert translated.values == {"env": [{"env": "bandit", "env_kwargs": {"format_penalty": 0.1}}]}
    assert values == {"env": [{"env": "bandit"}], "es_manager": {"format_penalty": -0.1}}
    assert translate({"env": "bandit", "seed": 3}).notes == []


junk = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 0.5, "x", "sokoban", "grpo", "top_p"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["Bandit", "x", "train"]), inner, max_size=2)
    ),
    max_leaves=5,
)
sections = {
    "es_manager": ["train", "val", "format_penalty", "max_workers", "use_multiprocessing", "sequential_env_types"],
    "agent_proxy": ["max_turn", "reward_normalization", "max_actions_per_turn", "action_sep"],
    "algorithm": ["filter_groups", "adv_estimator", "norm_adv_by_std_in_grpo"],
}
train = st.dictionaries(st.sampled_from(["env_groups", "group_size", "env_configs"]), junk, max_size=3)
tags = st.lists(st.sampled_from(["Bandit", "x"])) | junk
configs = st.fixed_dictionaries({"env_configs": st.fixed_dictionaries({"tags": tags, "n_groups": junk})})
customs = st.fixed_dictionaries({"env_type": junk, "env_config": junk}) | junk
filters = st.dictionaries(st.sampled_from([f"rollout_filter_{name}" for name in ("value", "type", "ratio")]), junk)
entries = st.lists(st.fixed_dictionaries({"env": junk, "env_kwargs": junk}), max_size=2)
parts = {name: st.dictionaries(st.sampled_from(keys), junk, max_size=4) | junk for name, keys in sections.items()}
alone = ["max_workers", "sequential_env_types", "use_parallel_envs", "seed", "env_kwargs", "limits", "keep"]
theirs = st.fixed_dictionaries(
    {},
    optional={
        **parts,
        **dict.fromkeys(alone, junk),
        "es_manager": parts["es_manager"] | st.fixed_dictionaries({"train": train | configs}),
        "actor_rollout_ref": st.fixed_dictionaries({"rollout": filters}),
        "custom_envs": st.dictionaries(st.sampled_from(["Bandit", "x"]), customs) | junk,
        "env": junk | entries,
    },
)


@example({"env": [[]], "es_manager": {"format_penalty": True}})
@given(theirs)
def test_whatever_is_written_is_mapped_or_an_error(values: dict[str, Any]) -> None:
    reported = "config.yaml"
    try:
        parse_config(yaml.safe_dump(values))
    except ar.UsageError as error:
        reported = str(error)
    assert reported.startswith("config.yaml")


def test_names_at_the_top_are_no_keys_of_ours() -> None:
    assert not {*TOP_LEVEL} & {*schema.Config.__struct_fields__}


def test_an_override_may_be_a_key_of_theirs() -> None:
    assert parse_config("env: bandit", ["es_manager.train.group_size=3"]).group_size == 3


def test_a_misspelt_key_of_theirs_is_named() -> None:
    assert "unknown key 'es_manger': did you mean 'es_manager'?" in error_of("env: bandit\nes_manger: 1")


def test_problems_of_keys_with_dots_have_their_line() -> None:
    reported = error_of("es_manager.train.group_size: x\nenv: bandit")
    assert reported.startswith("config.yaml, line 1: es_manager.train.group_size")


def test_a_key_that_contradicts_an_override_says_which_is_the_override() -> None:
    with pytest.raises(ar.UsageError) as caught:
        parse_config("env: bandit\nes_manager: {train: {group_size: 4}}", ["group_size=2"])
    reported = "line 2: es_manager.train.group_size: found 4, but group_size means the same, and is 2: give one of them"
    assert str(caught.value) == f"config.yaml, {reported} (group_size is from override 'group_size')"


def test_native_configurations_know_none_of_these_keys() -> None:
    with pytest.raises(ar.UsageError, match="unknown key 'es_manager'"):
        config.parse_config("env: bandit\nes_manager: {train: {group_size: 4}}")


# Upstream's own files. Each key below is one of them; with `val` and the lists of tags left out.

JUNE_2025 = """
system: {CUDA_VISIBLE_DEVICES: "0"}
micro_batch_size_per_gpu: 4
ppo_mini_batch_size: 32
model_path: Qwen/Qwen2.5-0.5B-Instruct
enable_response_mask: true
grpo_advantage_length_weight: false
lora: {rank: 0, alpha: 16, target_modules: all-linear}
actor_rollout_ref:
  model: {path: "${model_path}", lora_rank: "${lora.rank}"}
  actor: {ppo_mini_batch_size: "${ppo_mini_batch_size}", use_ref: true, optim: {betas: [0.9, 0.999]}}
  ref: {log_prob_micro_batch_size_per_gpu: 4}
  rollout:
    log_prob_micro_batch_size_per_gpu: 4
    tensor_model_parallel_size: 1
    max_model_len: 3600
    prompt_length: 1
    response_length: 400
    gpu_memory_utilization: 0.5
    max_num_batched_tokens: 8192
    temperature: 1
    rollout_filter_ratio: 0.25
    rollout_filter_type: std
    enforce_eager: true
    free_cache_engine: true
    val_kwargs: {do_sample: true, temperature: 0.5}
    tp_size_check: true
critic: {ppo_mini_batch_size: 32, model: {path: "${model_path}"}}
data: {max_prompt_length: null, max_response_length: null, train_batch_size: null}
algorithm:
  {gamma: 1.0, lam: 1.0, high_level_gamma: 0.95, adv_estimator: gae, bi_level_gae: false, kl_penalty: kl,
   kl_ctrl: {type: fixed, kl_coef: 0.0}}
trainer: {project_name: p, total_training_steps: 200, logger: [console, wandb]}
agent_proxy:
  max_turn: 5
  action_sep: "||"
  max_actions_per_turn: 5
  use_turn_scores: false
  enable_think: true
  reward_normalization: {grouping: state, method: identity}
es_manager:
  format_penalty: -0.1
  train: {env_groups: 8, group_size: 16, env_configs: {tags: [SimpleSokoban], n_groups: [8]}}
  val: {env_groups: 256, group_size: 1, env_configs: {tags: [SimpleSokoban], n_groups: [256]}}
ctx_manager: {generation: {gen_config: {top_p: "${actor_rollout_ref.rollout.top_p}", kwargs: null}}}
"""
APRIL_2026 = """
seed: {train: 10000, val: 123}
log_prob_micro_batch_size_per_gpu: "${micro_batch_size_per_gpu}"
micro_batch_size_per_gpu: 1
actor_rollout_ref:
  actor: {filter_loss_scaling: none, loss_agg_mode: token-mean}
  rollout:
    name: vllm
    load_format: auto
    rollout_filter_ratio: null
    rollout_filter_value: 1.0
    rollout_filter_strategy: top_p
    rollout_filter_type: largest
    rollout_filter_include_zero: true
    rollout_filter_top_p_prob_mode: linear
    rollout_filter_selection_eps: 0.01
    rollout_filter_empty_stop_steps: 5
    rollout_filter_metric: reward_variance
    gradient_analysis_num_buckets: 6
    gradient_analysis_bucket_mode: quantile
algorithm: {zero_task_advantage: false, norm_adv_by_std_in_grpo: true, soft_advantage_reweight: false}
agent_proxy: {context_window_mode: full, max_context_window: -1, batch_adjust_mode: copy, max_actions_per_turn: 2}
collapse_detection: {compute_freq: 5, first_turn_enabled: true, multi_turn_enabled: true, num_samples: 64}
trainer: {local_log_dir: results/, gradient_analysis_mode: false}
es_manager: {train: {env_configs: {tags: [CoordSokoban]}}}
"""


@pytest.fixture
def upstream_files(tmp_path: Path) -> Path:
    """A folder with files as upstream's, each on top of another; verl's own file is not there, as in a checkout."""
    (tmp_path / "base.yaml").write_text(f"defaults: [ppo_trainer, envs]\n{JUNE_2025}")
    (tmp_path / "envs.yaml").write_text(
        "custom_envs: {SimpleSokoban: {env_type: sokoban, max_actions_per_traj: 10, max_tokens: 100,\n"
        "  env_instruction: 'Push the boxes to their targets.', env_config: {dim_x: 6, dim_y: 6, num_boxes: 1}}}"
    )
    (tmp_path / "april.yaml").write_text(
        f"defaults: [base]\nhydra: {{searchpath: [pkg://verl.trainer.config]}}\n{APRIL_2026}"
    )
    (tmp_path / "run.yaml").write_text("defaults: [base]\ntrainer: {experiment_name: mine}\n")
    return tmp_path


def test_files_that_a_file_builds_on_are_read(upstream_files: Path) -> None:
    config = read_config(upstream_files / "run.yaml")
    assert (config.groups, config.group_size, config.limits.turns) == (8, 16, 5)
    assert config.keep == schema.TopStd(0.25)
    (entry,) = config.entries
    assert {key: entry.env_kwargs[key] for key in ("format_penalty", "dim_room", "max_actions_per_turn")} == {
        "format_penalty": 0.1,
        "dim_room": [6, 6],
        "max_actions_per_turn": 5,
    }
    assert config.agent.sampling == ar.Sampling(temperature=1, max_tokens=400)


def test_the_newer_files_are_read_too(upstream_files: Path) -> None:
    config = read_config(upstream_files / "april.yaml", ["es_manager.train.group_size=4"])
    assert (config.seed, config.groups, config.group_size) == (10_000, 8, 4)
    assert config.keep == schema.TopP(1.0)
    assert config.agent.history is None
    assert [entry.tag for entry in config.entries] == ["CoordSokoban"]


def test_a_file_that_is_not_there_is_an_error(upstream_files: Path) -> None:
    (upstream_files / "base.yaml").unlink()
    with pytest.raises(ar.UsageError, match=r"run.yaml: defaults: 'base': there is no base.yaml in .*: add"):
        read_config(upstream_files / "run.yaml")


def test_what_of_verl_is_missing_is_logged(upstream_files: Path) -> None:
    with capture_logs() as events:
        read_config(upstream_files / "run.yaml")
    (event,) = (event for event in events if event["event"] == "foreign_keys")
    assert [line for line in event["unused"] if line.startswith("defaults: ppo_trainer.yaml")]


@pytest.mark.parametrize(
    ("rollout", "sampling"),
    [
        ("temperature: 0.7, top_p: 0.9, response_length: 64", ar.Sampling(temperature=0.7, top_p=0.9, max_tokens=64)),
        ("top_k: -1", ar.Sampling()),
        ("top_k: 20", ar.Sampling(extra={"top_k": 20})),
        ("do_sample: false, temperature: 1", ar.Sampling(temperature=0)),
        ("do_sample: true, temperature: 1", ar.Sampling(temperature=1)),
        ("val_kwargs: {temperature: 0.1}", ar.Sampling()),
    ],
)
def test_how_the_model_samples(rollout: str, sampling: ar.Sampling) -> None:
    assert parse_config(f"env: bandit\nactor_rollout_ref: {{rollout: {{{rollout}}}}}").agent.sampling == sampling


def test_references_are_followed_where_a_value_counts() -> None:
    config = parse_config("""
env: bandit
lora: {rank: 3}
es_manager: {train: {group_size: "${lora.rank}"}}
ctx_manager: {generation: {top_p: "${actor_rollout_ref.rollout.top_p}"}}
""")
    assert config.group_size == 3
    told = error_of("env: bandit\nes_manager: {train: {group_size: '${lora.rank}'}}")
    assert "es_manager.train.group_size: found '${lora.rank}'" in told
    assert "refers to a key that is not there" in told


@pytest.mark.parametrize(
    ("keys", "history"),
    [
        ("context_window_mode: full, max_context_window: -1", None),
        ("context_window_mode: full, max_context_window: 3", None),
        ("context_window_mode: limited_multi_turn, max_context_window: 3", 2),
        ("context_window_mode: limited_multi_turn, max_context_window: -1", None),
        ("context_window_mode: limited_multi_turn", 0),
        ("max_context_window: 2", 1),
    ],
)
def test_how_many_turns_the_model_sees(keys: str, history: int | None) -> None:
    assert parse_config(f"env: bandit\nagent_proxy: {{{keys}}}").agent.history == history


def test_a_context_window_that_a_run_does_not_have_is_refused() -> None:
    told = error_of("env: bandit\nagent_proxy: {context_window_mode: single_turn}")
    assert "agent_proxy.context_window_mode: found 'single_turn', expected full or limited_multi_turn" in told


def test_without_workers_everything_runs_one_after_the_other() -> None:
    config = parse_config("env: bandit\nes_manager: {max_workers: 0}")
    assert (config.backend, config.workers) == ("inline", None)
    assert parse_config("env: bandit\nes_manager: {use_parallel_execution: false}").backend == "inline"


def test_models_of_ragens_evaluations_are_named_as_policies() -> None:
    models = "env: bandit\nmodel_config: {model_name: gpt-4o}\nmodel_info: {gpt-4o: {provider_name: openai}}"
    assert "model_config: name the model as a policy instead" in error_of(models)
    assert parse_config(f"{models}\npolicy: solver").env == "bandit"


@pytest.mark.parametrize("thinks", [True, False])
async def test_prompts_of_a_tag_carry_its_instruction(thinks: bool) -> None:
    config = parse_config(f"""
es_manager: {{train: {{env_configs: {{tags: [A]}}}}}}
agent_proxy: {{enable_think: {thinks}, action_sep: "&&"}}
custom_envs:
  A:
    env_type: sokoban
    max_actions_per_traj: 7
    max_tokens: 90
    env_instruction: Bring every box home.
    env_config: {{num_boxes: 1}}
""")
    (entry,) = config.entries
    async with ar.EnvPool(backend="inline") as pool, pool.open(entry.env, **entry.env_kwargs) as env:
        prompt = (await env.reset(seed=1)).info["system_prompt"]
    pieces = ["Bring every box home.", "#: wall", "Up, Down, Left, Right", "7 actions", "&&", "90 words", "<answer>"]
    assert [piece for piece in pieces if piece not in prompt] == []
    assert sorted(pieces, key=prompt.index) == pieces
    assert ("<think>" in prompt) == thinks
    assert config.agent.template == "ragen"


@pytest.mark.parametrize(
    "place",
    [
        "actor_rollout_ref: {model: {api_key: canary-in-clear}}",
        "actor_rollout_ref:\n  rollout:\n    engine_kwargs:\n      api_key: |\n        canary-in-clear",
        "trainer: {wandb: {api_key: canary-in-clear}}",
        "trainer: {notes: [hf_canarycanarycanarycanary]}",
        "custom_envs: {Unused: {env_type: bandit, env_config: {api_key: canary-in-clear}}}",
        "policy: solver\nmodel_info: {gpt: {api_key: canary-in-clear}}",
    ],
)
def test_a_secret_below_their_names_is_refused_and_not_repeated(place: str) -> None:
    told = error_of(f"env: bandit\n{place}")
    assert "a key is never written into a file" in told
    assert "canary" not in told
