"""RAGEN's `env_config` of each env type, as keyword arguments of ours.

Every key has an effect, or is one that has none in RAGEN either, or its value is the only one that there is. All else
is refused by name.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from asyncrollout.dropin.ragen import env_data
from asyncrollout.errors import UsageError

Config = dict[str, Any]

_LONG = 1_000_000
"""Steps of an env that RAGEN never ends by itself: `max_actions_per_traj` does."""


class Keys(msgspec.Struct, frozen=True):
    """`renamed` keys have another name here. `fixed` ones must have this value, `idle` ones may have any.

    `defaults` are RAGEN's, where they differ from ours; `finish` does what concerns several keys.
    """

    renamed: Mapping[str, str] = {}
    fixed: Mapping[str, Any] = {}
    idle: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = {}
    finish: Callable[[Config], Config] = dict


def _named(*names: str, first: int = 1) -> dict[int, str]:
    return dict(enumerate(names, start=first))


def _grid(symbols: str) -> Callable[[Config], Config]:
    """How a grid is shown: RAGEN's tables of symbols and of their meanings, and whether pictures are wanted."""

    def finish(kwargs: Config) -> Config:
        lookup, vocab = kwargs.pop("grid_lookup", None), kwargs.pop("grid_vocab", None)
        shown = _by_code("grid_lookup", lookup, len(symbols)) if lookup else [*symbols]
        if lookup:
            kwargs["symbols"] = shown
        if vocab:
            known = vocab if isinstance(vocab, Mapping) else {}
            if missing := [symbol for symbol in shown if symbol not in known]:
                raise UsageError(f"env_config.grid_vocab={vocab!r:.200} does not say what {missing[0]!r} means")
            kwargs["meanings"] = [str(vocab[symbol]) for symbol in shown]
        mode = kwargs.pop("render_mode", None) or "text"
        if mode not in ("text", "rgb_array"):
            raise UsageError(f"env_config.render_mode={mode!r:.200} is neither 'text' nor 'rgb_array'")
        if mode == "rgb_array":
            kwargs["images"] = True
        return kwargs

    return finish


def _by_code(key: str, table: Any, count: int) -> list[Any]:
    """The values of a table by its numbers from 0, which YAML and JSON may have as texts."""
    numbered = {str(code): value for code, value in table.items()} if isinstance(table, Mapping) else {}
    if sorted(numbered) != sorted(map(str, range(count))):
        raise UsageError(f"env_config.{key}={table!r:.200} must have an entry for each of 0 to {count - 1}")
    return [numbered[str(code)] for code in range(count)]


def _sokoban(kwargs: Config) -> Config:
    sides = [kwargs.pop(key, None) for key in ("dim_x", "dim_y")]
    if None not in sides:
        kwargs["dim_room"] = sides
    elif sides != [None, None]:
        raise UsageError("env_config: dim_x and dim_y go together: give both, or dim_room")
    return _grid("#_O√XPS")(kwargs)


def _frozen_lake(kwargs: Config) -> Config:
    """`success_rate` came with RAGEN's newer version, and other ice with it."""
    is_newer = "success_rate" in kwargs
    return _grid("P_OGX√")({"p": 0.9 if is_newer else 0.8, **kwargs})


def _bandit(kwargs: Config) -> Config:
    """Arms with fixed names are those of RAGEN's older version; the newer one has a `split` of many names."""
    names = [kwargs.pop(key, None) for key in ("lo_arm_name", "hi_arm_name")]
    if names != [None, None]:
        kwargs["names"] = [name or usual for name, usual in zip(names, ("phoenix", "dragon"), strict=True)]
    elif kwargs.get("split") in ("train", "test") and not {"names", "num_arms"} & kwargs.keys():
        kwargs["num_arms"] = 2
    return kwargs


KEYS: dict[str, Keys] = {
    "sokoban": Keys(
        fixed={"action_lookup": _named("Up", "Down", "Left", "Right")}, defaults={"num_boxes": 3}, finish=_sokoban
    ),
    "frozen_lake": Keys(
        fixed={
            "action_lookup": _named("Left", "Down", "Right", "Up"),
            "action_map": {1: 0, 2: 1, 3: 2, 4: 3},
            "map_lookup": {"P": 0, "F": 1, "H": 2, "G": 3},
        },
        idle=frozenset({"map_seed"}),
        defaults={"max_steps": _LONG},
        finish=_frozen_lake,
    ),
    "bandit": Keys(
        renamed={
            "lo_arm_score": "low_score",
            "hi_arm_hiscore": "high_score",
            "hi_arm_loscore": "miss_score",
            "hi_arm_hiscore_prob": "high_probability",
        },
        fixed={"action_space_start": 1, "render_mode": "text"},
        idle=frozenset({"action_lookup"}),
        defaults={"style": "ragen"},
        finish=_bandit,
    ),
    "countdown": Keys(
        fixed={"render_mode": "text", "score": 1, "format_score": 0.1},
        defaults={"style": "ragen", "max_instances": 20_000},
        finish=env_data.find_puzzles,
    ),
    "metamathqa": Keys(defaults={"style": "ragen", "max_attempts": None}, finish=env_data.find_problems),
    "webshop": Keys(
        fixed={
            "observation_mode": "text",
            "render_mode": "text",
            "server": None,
            "filter_goals": None,
            "limit_goals": -1,
            "num_products": None,
            "show_attrs": False,
        },
        defaults={"style": "ragen", "reward": "binary", "human_goals": False, "max_steps": _LONG},
        finish=env_data.find_shop,
    ),
    "sudoku": Keys(
        renamed={
            "correct_placement_score": "placed_score",
            "invalid_action_score": "invalid_score",
            "completion_bonus": "solved_score",
        },
        fixed={"render_mode": "text"},
        idle=frozenset({"show_candidates"}),
        defaults={"style": "ragen", "render_format": "detailed"},
    ),
    "game_2048": Keys(
        fixed={"render_mode": "text", "action_lookup": _named("Up", "Right", "Down", "Left", first=0)},
        defaults={"style": "ragen", "max_steps": _LONG},
    ),
    "rubikscube": Keys(
        fixed={
            "render_mode": "text",
            "action_lookup": _named(*(face + turn for face in "UDLRFB" for turn in ("", "'"))),
        },
    ),
}


def our_kwargs(env: Any, config: Mapping[Any, Any]) -> tuple[Config, list[str]]:
    """Keyword arguments of our env, and the keys that change nothing."""
    keys = KEYS.get(env) if isinstance(env, str) else None
    if keys is None:
        return copy.deepcopy(dict(config)), []
    unused = [key for key in config if key in keys.fixed or key in keys.idle]
    for key in unused:
        if key in keys.fixed and not _is_same(config[key], keys.fixed[key]):
            raise UsageError(
                f"env_config.{key}={config[key]!r:.200} is not supported by env {env!r}: it can only be "
                f"{keys.fixed[key]!r}"
            )
    kwargs = {keys.renamed.get(key, key): copy.deepcopy(value) for key, value in config.items() if key not in unused}
    return keys.finish({**keys.defaults, **kwargs}), unused


def _is_same(given: Any, only: Any) -> bool:
    """Keys of a mapping may be texts, or bytes; None stands for what is usual."""
    if given is None or not isinstance(only, Mapping):
        return given is None or (given == only and isinstance(given, bool) == isinstance(only, bool))
    plain = {_text(key): value for key, value in given.items()} if isinstance(given, Mapping) else None
    return plain == {_text(key): value for key, value in only.items()}


def _text(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)
