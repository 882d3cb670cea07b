"""The documents that RAGEN's parallel environments are described in: their blocks run, import lines changed only."""

import ast
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrollout.dropin.ragen import (
    DataProto,
    EnvStateManager,
    LLMAgentProxy,
    MultiProcessEnvironmentContainer,
    TrajectoryCollector,
    make_environments,
    validate_environment_config,
)
from tests.scripts.processes import ROOT

SEEDS = Path(__file__).parent / "seeds"
UNPARSABLE = {
    "parallel_envs 3": "the body of its last `else` is a comment",
    "state_manager 4": "it is a line for a shell, marked as Python",
}
"""Blocks that are no Python, though they say so."""


def _blocks() -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for seed in ("parallel_envs", "state_manager"):
        blocks = re.findall(r"^```(\w*)\n(.*?)^```", (SEEDS / f"{seed}.md").read_text(), re.DOTALL | re.MULTILINE)
        found |= {f"{seed} {place}": block for place, block in enumerate(blocks)}
    return found


BLOCKS = _blocks()


def run(block: str, **names: Any) -> dict[str, Any]:
    """Run a block, verbatim but for its imports, with what it needs from the code around it."""
    language, code = BLOCKS[block]
    assert language == "python"
    names = {"__name__": "seed", **names}
    exec(re.sub(r"from ragen\.\S+ import", "from asyncrollout.dropin.ragen import", code), names)
    return names


def read(*blocks: str) -> dict[str, Any]:
    """The YAML of blocks, put together."""
    merged: dict[str, Any] = {}
    for block in blocks:
        language, text = BLOCKS[block]
        assert language == "yaml"
        _merge(merged, yaml.safe_load(text))
    return merged


def _merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


class Mute:
    """A model that has nothing to say but one word."""

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        return DataProto(None, {"response_texts": ["<think>?</think><answer>Up</answer>"] * len(prompts)})


def test_all_blocks_are_here_and_only_the_listed_ones_do_not_parse() -> None:
    languages = [language for language, _ in BLOCKS.values()]
    assert [languages.count(kind) for kind in ("python", "yaml", "bash", "")] == [9, 5, 1, 1]
    broken = set()
    for name, (language, code) in BLOCKS.items():
        try:
            ast.parse(code) if language == "python" else None
        except SyntaxError:
            broken.add(name)
    assert broken == set(UNPARSABLE)


# Parallel environments


def test_the_containers_usage() -> None:
    names = run("parallel_envs 0")
    assert [len(names[name]) for name in ("obs_list", "rewards", "dones", "infos", "info_list")] == [12] * 5
    assert names["rewards"] == [-0.1] * 12
    names["container"].close()  # a second time


def test_the_projections_example() -> None:
    names = run("parallel_envs 1")
    assert (names["actions"], names["valids"]) == ([1, 2], [True, True])


@pytest.mark.parametrize("enabled", [True, False])
def test_the_trainers_hook(enabled: bool) -> None:
    settings = read("parallel_envs 4") | {"use_parallel_envs": enabled}
    names = run("parallel_envs 2", LLMAgentProxy=lambda _: LLMAgentProxy(settings, Mute()))

    class Trainer:
        config = type("Config", (), settings)
        init_agent_proxy = names["init_agent_proxy"]
        agent_proxy: LLMAgentProxy

        def _init_parallel_environments(self) -> None:
            self.agent_proxy.init_parallel_environments()

    trainer = Trainer()
    trainer.init_agent_proxy()
    assert hasattr(trainer.agent_proxy, "parallel_envs") == enabled
    trainer.agent_proxy.close()


def test_the_rollouts_dispatch() -> None:
    """Its `else` is empty in the document; with the proxy's own way there, and arguments, it runs."""
    code = BLOCKS["parallel_envs 3"][1]
    code = code.replace("# ... original code ...", "return 'original'").replace(
        "(...)", "(dataproto, self.actor_wg, envs, not val)"
    )
    names: dict[str, Any] = {"DataProto": DataProto}
    exec(textwrap.dedent(code), names)
    settings = read("parallel_envs 4", "parallel_envs 6") | {"agent_proxy": {"max_turn": 2}}
    settings.pop("use_parallel_envs")
    settings["algorithm"]["filter_groups"]["max_num_gen_batches"] = 2
    proxy = LLMAgentProxy(settings, Mute())
    assert names["rollout"](proxy, DataProto()) == "original"
    assert proxy.init_parallel_environments()
    for val, rows in ((False, 4 * 3 * 2), (True, 2 * 1 * 2)):
        assert len(names["rollout"](proxy, DataProto(), val=val)) == len(proxy.rollout(DataProto(), val=val)) == rows
    proxy.close()


def test_the_configuration_builds_training_and_validation() -> None:
    settings = read("parallel_envs 4")
    assert settings["use_parallel_envs"] is False
    assert validate_environment_config(settings)
    train, val = make_environments(settings)
    assert [len(manager.reset()[0]["text"]) for manager in (train, val)] == [12, 2]
    manager = EnvStateManager(settings)
    assert [cache["group_id"] for cache in manager.reset()] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_grouping() -> None:
    names = run("parallel_envs 5", MultiProcessEnvironmentContainer=MultiProcessEnvironmentContainer)
    rooms, _ = names["container"].reset()
    assert [rooms[start : start + 3] for start in range(0, 12, 3)] == [[rooms[start]] * 3 for start in range(0, 12, 3)]
    assert len(set(rooms)) == 4
    names["container"].close()


def test_dynamic_sampling_and_normalisation_settings() -> None:
    rules = TrajectoryCollector(read("parallel_envs 6"))._settings.algorithm.filter_groups
    assert (rules.enable, rules.max_num_gen_batches) == (True, 10)
    settings = read("parallel_envs 4", "parallel_envs 7") | {"seed": 1}
    proxy = LLMAgentProxy(settings, Mute())
    rollouts = proxy.rollout(DataProto())
    assert rollouts.batch["original_rm_scores"].any()
    assert not rollouts.batch["rm_scores"].any()  # one model with one word: all members of a group do the same


def test_debug_logging_and_its_level(caplog: pytest.LogCaptureFixture) -> None:
    run("parallel_envs 9")
    settings = read("parallel_envs 4")
    for level, expected in ((logging.DEBUG, True), (logging.WARNING, False)):
        caplog.clear()
        with caplog.at_level(level):
            for manager in make_environments(settings):
                manager.close()
        assert ("train environments: 4 groups of 3" in caplog.text) == expected


def test_the_fallback_lines(caplog: pytest.LogCaptureFixture) -> None:
    settings = read("parallel_envs 4") | {"use_parallel_envs": True}
    del settings["es_manager"]["val"]
    proxy = LLMAgentProxy(settings, Mute())
    proxy.init_parallel_environments()
    told = "\n".join(record.getMessage() for record in caplog.records)
    expected = re.escape(BLOCKS["parallel_envs 10"][1].strip()).replace("<error>", ".*val.*")
    assert re.fullmatch(expected, told)


# The state manager

INPUTS = [
    {"env_id": env_id, "llm_raw_response": "", "llm_response": "", "actions": ["Up", "left"]} for env_id in range(12)
]


def test_basic_usage_and_forced_sequential_processing() -> None:
    config = read("parallel_envs 4", "state_manager 0") | {"use_parallel_envs": True}
    config["es_manager"]["max_workers"] = 2
    names = {"EnvStateManager": EnvStateManager, "config": config, "all_env_inputs": INPUTS}
    parallel = run("state_manager 1", **names)
    assert len(parallel["env_outputs"]) == len(parallel["rollout_cache"]) == 12
    assert parallel["env_outputs"][0]["history"][0]["actions"] == [1, 3]

    class Begun(EnvStateManager):
        """The document's second example steps without a reset."""

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            self.reset(seed=42)

    sequential = run("state_manager 2", **{**names, "EnvStateManager": Begun})
    assert sequential["env_outputs"] == parallel["env_outputs"]
    assert not sequential["es_manager"].use_multiprocessing
    for found in (parallel, sequential):
        found["es_manager"].close()


def test_webshop_can_be_sequential_alone() -> None:
    settings = read("parallel_envs 4", "state_manager 3") | {"use_parallel_envs": True}
    settings["es_manager"]["train"]["env_configs"] = {"tags": ["SokobanEnv", "WebShop"], "n_groups": [1, 1]}
    settings["es_manager"]["max_workers"] = 1
    manager = EnvStateManager(settings)
    manager.reset()
    assert [worker.envs for worker in manager.stats().workers if worker.rank >= 0] == [6]
    manager.close()


@pytest.mark.parametrize("block", ["parallel_envs 8", "state_manager 4"])
def test_the_test_scripts_exit_well(block: str) -> None:
    python, script = BLOCKS[block][1].split()
    assert python == "python"
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script)], check=False, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
