"""RAGEN's environments as ours: names of types, keys of their configs, and the tags that its own files define."""

import copy
from typing import Any

ENV_TYPES = {
    "bandit": "bandit",
    "countdown": "countdown",
    "frozen_lake": "frozen_lake",
    "frozenlake": "frozen_lake",
    "metamathqa": "metamathqa",
    "metamath_qa": "metamathqa",
    "sokoban": "sokoban",
    "webshop": "webshop",
}

_RENAMED = {
    "bandit": {
        "lo_arm_score": "low_score",
        "hi_arm_hiscore": "high_score",
        "hi_arm_hiscore_prob": "high_probability",
    }
}
_UNUSED = frozenset(
    {
        "action_lookup",
        "action_map",
        "action_space_start",
        "grid_lookup",
        "grid_vocab",
        "hi_arm_loscore",
        "map_lookup",
        "map_seed",
        "observation_format",
        "render_mode",
    }
)
"""What RAGEN's configs have, and our envs decide by themselves."""

_SIMPLE_SOKOBAN = {"dim_room": [6, 6], "num_boxes": 1, "max_steps": 100}

KNOWN_TAGS: dict[str, dict[str, Any]] = {
    "SimpleSokoban": {"env_type": "sokoban", "max_actions_per_traj": 10, "env_config": _SIMPLE_SOKOBAN},
    "CoordSokoban": {"env_type": "sokoban", "max_actions_per_traj": 10, "env_config": _SIMPLE_SOKOBAN},
    "LargerSokoban": {
        "env_type": "sokoban",
        "max_actions_per_traj": 10,
        "env_config": {"dim_room": [8, 8], "num_boxes": 2, "max_steps": 100, "search_depth": 10},
    },
    "Countdown": {"env_type": "countdown", "max_actions_per_traj": 1},
    "Bandit": {"env_type": "bandit", "max_actions_per_traj": 1},
    "BanditTest": {"env_type": "bandit", "max_actions_per_traj": 1, "env_config": {"split": "test"}},
    "FrozenLake": {"env_type": "frozen_lake", "max_actions_per_traj": 10},
    "MetamathQA": {"env_type": "metamathqa", "max_actions_per_traj": 1},
    "WebShop": {"env_type": "webshop", "max_actions_per_traj": 9},
}


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


def our_kwargs(env: Any, config: dict[Any, Any]) -> tuple[dict[Any, Any], list[str]]:
    """Keyword arguments of our env, and the keys that it has no use for."""
    renamed = _RENAMED.get(env, {}) if isinstance(env, str) else {}
    kwargs = {renamed.get(key, key): copy.deepcopy(value) for key, value in config.items() if key not in _UNUSED}
    if env == "sokoban" and {"dim_x", "dim_y"} <= kwargs.keys():
        kwargs["dim_room"] = [kwargs.pop("dim_x"), kwargs.pop("dim_y")]
    return kwargs, [key for key in config if key in _UNUSED]
