"""Managers, factory and collector of RAGEN's parallel branches over our container; their collector over our managers.

Usage: python ragen_collector.py DIRECTORY, of a branch's sources, with verl-agent's in PYTHONPATH for verl. A scripted
model stands in for the GPU engine, a tokenizer of bytes for a model's, and our container for the branch's own.
"""

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from verl import DataProto
from verl_agent import Model, make_gen_batch, make_tokenizer  # type: ignore[import-not-found] # beside this file

from asyncrollout.dropin import ragen

CONFIG = {
    "seed": 3,
    "env": {"max_steps": 4, "rollout": {"n": 3}},
    "data": {"train_batch_size": 2, "max_prompt_length": 6000, "truncation": "error"},
    "algorithm": {"filter_groups": {"enable": False, "max_num_gen_batches": 3}},
    "es_manager": {
        "train": {"env_groups": 2, "group_size": 3, "env_configs": {"tags": ["Room"], "n_groups": [2]}},
        "val": {"env_groups": 4, "group_size": 1, "env_configs": {"tags": ["Room"], "n_groups": [4]}},
    },
    "custom_envs": {
        "Room": {"env_type": "sokoban", "max_actions_per_traj": 20, "env_config": {"dim_room": [6, 6], "num_boxes": 1}}
    },
}


def load_branch(folder: Path) -> dict[str, Any]:
    """The branch's modules; its package imports every environment, so that they are loaded one by one."""
    package = types.ModuleType("branch")
    package.__path__ = [str(folder / "ragen" / "env")]
    container: Any = types.ModuleType("branch.parallel_env_container")
    container.MultiProcessEnvironmentContainer = ragen.MultiProcessEnvironmentContainer
    container.to_numpy = np.asarray
    sys.modules |= {"branch": package, "branch.parallel_env_container": container}
    names = ("environment_factory", "environment_manager", "trajectory_collector")
    return {name: importlib.import_module(f"branch.{name}") for name in names}


class Answerer(Model):  # type: ignore[misc]
    """Reads the prompt's tokens: the branch's collector sends no `raw_prompt_ids`."""

    def generate_sequences(self, prompts: Any) -> Any:
        masks = prompts.batch["attention_mask"].bool()
        rows = [ids[mask].tolist() for ids, mask in zip(prompts.batch["input_ids"], masks, strict=True)]
        column = np.empty(len(rows), dtype=object)
        column[:] = rows
        prompts.non_tensor_batch["raw_prompt_ids"] = column
        return super().generate_sequences(prompts)


def describe(batch: Any) -> list[tuple[list[int], float, bool]]:
    """Each row's prompt and reply in tokens, its reward and whether it could be read, in any order."""
    columns = zip(
        batch.batch["input_ids"].tolist(),
        batch.non_tensor_batch["rewards"],
        batch.non_tensor_batch["is_action_valid"],
        strict=True,
    )
    return sorted((ids, round(float(reward), 6), bool(valid)) for ids, reward, valid in columns)


def main(folder: Path) -> None:
    branch, config, tokenizer = load_branch(folder), OmegaConf.create(CONFIG), make_tokenizer()
    collector = branch["trajectory_collector"].TrajectoryCollector(config, tokenizer)

    def roll(managers: Any, collector: Any) -> Any:
        model = Answerer(tokenizer)
        model.world_size = 1
        return collector.multi_turn_loop(make_gen_batch(tokenizer, 2), model, managers[0], is_train=True)

    theirs = branch["environment_factory"].make_environments(config)
    batch = roll(theirs, collector)
    assert isinstance(batch, DataProto)
    print(f"the branch's managers and collector over our container: {len(batch)} rows")
    with_ours = ragen.make_environments(config)
    first = roll(with_ours, collector)
    again = ragen.make_environments(config)
    second = roll(again, ragen.TrajectoryCollector(config, tokenizer))
    assert describe(second) == describe(first), "the collectors differ"
    print(f"the branch's collector over our managers: {len(first)} rows, the same as ours")
    for manager in (*theirs, *with_ours, *again):
        manager.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
