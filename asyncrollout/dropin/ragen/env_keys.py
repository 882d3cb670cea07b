"""RAGEN's environments as ours: names of types, and the tags that its own files define."""

from collections.abc import Mapping
from typing import Any

from asyncrollout.dropin.ragen.env_configs import our_kwargs

__all__ = ["ENV_TYPES", "KNOWN_TAGS", "REFUSED_TYPES", "our_env", "our_kwargs", "played_config", "shares_problem"]

_OF_TAG_OR_ENV = ("observation_format", "grid_vocab", "action_lookup")

ENV_TYPES = {
    "bandit": "bandit",
    "countdown": "countdown",
    "game_2048": "game_2048",
    "frozen_lake": "frozen_lake",
    "frozenlake": "frozen_lake",
    "metamathqa": "metamathqa",
    "metamath_qa": "metamathqa",
    "rubikscube": "rubikscube",
    "sokoban": "sokoban",
    "sudoku": "sudoku",
    "webshop": "webshop",
}

REFUSED_TYPES = {
    "alfworld": "it needs the packages alfworld and textworld, and ALFRED's games, which are a download",
    "deepcoder": "it needs the data set agentica-org/DeepCoder-Preview-Dataset, a download, and runs what models write",
    "lean": "it needs a Kimina Lean server and the data set CoderBak/minif2f, a download",
    "search": "it needs HotpotQA's questions, a download, and without mock_mode a retrieval server",
}
"""RAGEN's other env types, and why there is none of ours."""


def _tag(env_type: str, max_actions: int, **env_config: Any) -> dict[str, Any]:
    return {"env_type": env_type, "max_actions_per_traj": max_actions, "env_config": env_config}


_SIMPLE = {"dim_x": 6, "dim_y": 6, "num_boxes": 1, "max_steps": 100}
_OTHER_SYMBOLS = {
    "W": "wall",
    ".": "empty",
    "G": "target",
    "C": "box on target",
    "B": "box",
    "A": "player",
    "@": "player on target",
}
_SUDOKU = {"grid_size": 9, "render_format": "with_feedback", "show_conflicts": True, "show_valid_numbers": True}

KNOWN_TAGS: dict[str, dict[str, Any]] = {
    "SimpleSokoban": _tag("sokoban", 10, **_SIMPLE),
    "CoordSokoban": _tag("sokoban", 10, **_SIMPLE, observation_format="grid_coord"),
    "VisualSimpleSokoban": _tag("sokoban", 10, **_SIMPLE, render_mode="rgb_array"),
    "SokobanDifferentGridVocab": _tag(
        "sokoban",
        10,
        **_SIMPLE,
        search_depth=30,
        grid_lookup=dict(enumerate(_OTHER_SYMBOLS)),
        grid_vocab=_OTHER_SYMBOLS,
    ),
    "LargerSokoban": _tag("sokoban", 10, dim_x=8, dim_y=8, num_boxes=2, max_steps=100, search_depth=10),
    "Countdown": _tag("countdown", 1),
    "Bandit": _tag("bandit", 1, split="train"),
    "BanditTest": _tag("bandit", 1, split="test"),
    "FrozenLake": _tag("frozen_lake", 10, success_rate=0.8),
    "CoordFrozenLake": _tag("frozen_lake", 10, success_rate=0.8, observation_format="grid_coord"),
    "MetamathQA": _tag("metamathqa", 1),
    "WebShop": _tag("webshop", 9, dataset="small"),
    "WebShopFull": _tag("webshop", 15, dataset="full"),
    "SimpleSudoku": _tag("sudoku", 20, **_SUDOKU, difficulty="easy", max_steps=81),
    "MediumSudoku": _tag("sudoku", 30, **_SUDOKU, difficulty="medium", max_steps=81),
    "game_2048": _tag("game_2048", 700),
    "rubikscube": _tag("rubikscube", 20, scramble_depth=1, max_steps=20, render_mode="text"),
    "Alfworld": _tag("alfworld", 50, eval_dataset="eval_in_distribution"),
    "AlfworldOOD": _tag("alfworld", 50, eval_dataset="eval_out_of_distribution"),
    "DeepCoder": _tag("deepcoder", 1, max_steps=1),
    "Lean": _tag("lean", 30),
    "SearchQA": _tag("search", 10, max_steps=10, max_search_results=5),
    "SearchQAMock": _tag("search", 10, max_steps=10, max_search_results=5, mock_mode=True),
}
"""The tags of RAGEN's `config/envs.yaml`, for configs that do not define them."""


def played_config(tag: Mapping[str, Any]) -> dict[str, Any]:
    """A tag's `env_config`, with what the tag itself says of states and actions: prompts tell of what is played."""
    own = {key: tag[key] for key in _OF_TAG_OR_ENV if tag.get(key) is not None}
    return {**(tag.get("env_config") or {}), **own}


def shares_problem(n_groups: list[int], tags: int, env_groups: int | None) -> str | None:
    """Why these cannot be the groups of each tag, if they cannot.

    `n_groups` that do not add up to `env_groups` are shares of it, which must be whole numbers of groups.
    """
    if len(n_groups) != tags:
        return f"found {len(n_groups)} entries, but tags has {tags}"
    total = sum(n_groups)
    if env_groups is not None and env_groups % total:
        return f"found {n_groups}, {total} in all, but env_groups is {env_groups}: make it {total}, or a multiple of it"
    return None


def our_env(env_type: Any) -> Any:
    """Our name of an env type; one that is not RAGEN's is left as it is."""
    return ENV_TYPES.get(env_type.lower(), env_type) if isinstance(env_type, str) else env_type
