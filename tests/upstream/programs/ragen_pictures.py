"""What RAGEN's own context manager and ours make of states that are pictures: a mark in the text, and no picture.

Usage: python ragen_pictures.py SOURCES, in an empty folder. Stand-ins are those of `ragen.py`.
"""

import sys
import types
from pathlib import Path
from typing import Any

import ragen as programs  # type: ignore[import-not-found] # beside this file
from hydra import compose, initialize_config_dir  # type: ignore[import-not-found]

from asyncrollout.dropin.ragen import ContextManager, EnvStateManager

ONE_ROOM = [
    *("es_manager.train.env_groups=1", "es_manager.train.group_size=1", "es_manager.train.env_configs.n_groups=[1]"),
    "es_manager.train.env_configs.tags=[VisualSimpleSokoban]",
]


def their_class(sources: Path) -> Any:
    del sys.modules["ragen"]  # the programs beside this file, which hide the package
    path = programs.lay_out(sources, "ragen/llm_agent/ctx_manager.py", set())
    module = types.ModuleType("ragen.llm_agent.ctx_manager")
    sys.modules[module.__name__] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module.ContextManager


def main(sources: Path) -> None:
    programs.install_stand_ins()
    sys.path.insert(0, str(sources))
    theirs = their_class(sources)
    with initialize_config_dir(str(Path("config").resolve()), version_base=None):
        config = compose("base", overrides=ONE_ROOM)
    states = EnvStateManager(config, mode="train")
    caches = states.reset(seed=3)
    (picture,) = caches[0]["history"][0]["images"]
    print(f"the state is a picture of {picture.shape}")
    for name, made in (("theirs", theirs), ("ours", ContextManager)):
        manager = made(config=config, tokenizer=programs.make_tokenizer(), processor=object(), mode="train")
        inputs = manager.get_lm_inputs(caches, prepare_for_update=False)
        (messages,) = inputs.non_tensor_batch["messages_list"]
        assert "<images>" in messages[-1]["content"], (name, messages)
        given = sorted([*inputs.batch.keys(), *inputs.non_tensor_batch])
        assert not [key for key in given if "image" in key or "modal" in key], (name, given)
        print(f"{name}: a mark, and of {', '.join(given)} no picture")
    states.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
