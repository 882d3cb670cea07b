"""RAGEN's keys, mapped onto ours."""

import difflib
from typing import Any

from asyncrollout.config.checking import Problem, found
from asyncrollout.config.dialect import Dialect, Translation
from asyncrollout.config.document import Path
from asyncrollout.config.suggestions import shown
from asyncrollout.dropin.key_mapping import KeyMapping
from asyncrollout.dropin.ragen.env_keys import KNOWN_TAGS, REFUSED_TYPES, our_env, our_kwargs, shares_problem
from asyncrollout.errors import UsageError
from asyncrollout.validation import did_you_mean

_TRAIN: Path = ("es_manager", "train")
_TAGS: Path = (*_TRAIN, "env_configs", "tags")
_N_GROUPS: Path = (*_TRAIN, "env_configs", "n_groups")
_ENV_GROUPS: Path = (*_TRAIN, "env_groups")
_CUSTOM: Path = ("custom_envs",)
_ENABLE: Path = ("algorithm", "filter_groups", "enable")
_BUDGET: Path = ("algorithm", "filter_groups", "max_num_gen_batches")
_ESTIMATOR: Path = ("algorithm", "adv_estimator")
_ROLLOUT: Path = ("actor_rollout_ref", "rollout")
_NORMALIZATION: Path = ("agent_proxy", "reward_normalization")

_RENAMED: dict[Path, Path] = {
    ("seed", "train"): ("seed",),
    _ENV_GROUPS: ("groups",),
    (*_TRAIN, "group_size"): ("group_size",),
    ("agent_proxy", "max_turn"): ("limits", "turns"),
    (*_NORMALIZATION, "grouping"): ("reward_normalization", "grouping"),
    (*_NORMALIZATION, "method"): ("reward_normalization", "method"),
}
_OF_EVERY_ENV: dict[Path, str] = {
    ("es_manager", "format_penalty"): "format_penalty",
    ("agent_proxy", "format_penalty"): "format_penalty",
    ("agent_proxy", "max_actions_per_turn"): "max_actions_per_turn",
    ("agent_proxy", "action_sep"): "separator",
}
_MAPPED = (*_RENAMED, *_OF_EVERY_ENV, _TAGS, _N_GROUPS, _ENABLE, _BUDGET)
_ADVANTAGES = {"grpo": "grpo", "rloo": "rloo", "reinforce_plus_plus": "reinforce_pp", "gigpo": "gigpo"}
_FILTER_KEYS = ("strategy", "value", "metric", "include_zero", "selection_eps", "top_p_prob_mode", "ratio", "type")
_LARGEST, _SMALLEST = ("largest", "std"), ("smallest", "std_rev")

TOP_LEVEL = [
    *("actor_rollout_ref", "agent_proxy", "algorithm", "collapse_detection", "critic", "ctx_manager", "custom_envs"),
    *("custom_reward_function", "data", "defaults", "enable_response_mask", "es_manager", "global_profiler"),
    *("grpo_advantage_length_weight", "hydra", "log_prob_micro_batch_size_per_gpu", "lora", "max_workers"),
    *("micro_batch_size_per_gpu", "model_path", "ppo_mini_batch_size", "ray_init", "ray_kwargs", "reward_model"),
    *("sequential_env_types", "system", "trainer", "transfer_queue", "use_parallel_envs"),
]
"""The names of RAGEN's and verl's configs; `seed` is one, too, if it is a mapping."""


def translate(values: dict[Any, Any]) -> Translation:
    """RAGEN's keys become ours; all others stay."""
    named = {key for key in values if key in TOP_LEVEL or (key == "seed" and isinstance(values[key], dict))}
    if not named:
        return Translation(values)
    theirs = {key: value for key, value in values.items() if key in named}
    keys = KeyMapping(theirs, {key: value for key, value in values.items() if key not in named})
    for source, ours in _RENAMED.items():
        if (value := keys.take(source)) is not None:
            keys.put(ours, value, source)
    _map_envs(keys)
    _map_text_options(keys)
    _map_workers(keys)
    _map_sequential(keys)
    _map_dapo(keys)
    _map_ranking(keys)
    _map_advantage(keys)
    keys.ignore(("es_manager", "val"), "a run has no validation")
    keys.ignore(("seed", "val"), "a run has no validation")
    for path in keys.ignored({path[0] for path in _MAPPED}):
        keys.note(path, why=f"not used{_meant(path)}")
    return Translation(keys.ours, keys.notes, keys.origins, keys.problems)


def _map_envs(keys: KeyMapping) -> None:
    """Tags, of which `custom_envs` says what they are."""
    tags, n_groups = keys.take(_TAGS), keys.take(_N_GROUPS)
    if tags is None:
        return
    defined = keys.take(_CUSTOM) or {}
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) for tag in tags):
        keys.refuse(_TAGS, tags, "a list of tags")
    elif not isinstance(defined, dict):
        keys.refuse(_CUSTOM, defined, "a mapping of tags to envs")
    else:
        shares = _shares(keys, n_groups, len(tags))
        entries = [_entry(keys, index, tag, defined) for index, tag in enumerate(tags)]
        keys.put(("env",), [{**entry, "share": share} for entry, share in zip(entries, shares, strict=True)], _TAGS)
        for tag in defined:
            if tag not in tags:
                keys.note((*_CUSTOM, str(tag)), why=f"not in {shown(_TAGS)}")


def _entry(keys: KeyMapping, index: int, tag: str, defined: dict[Any, Any]) -> dict[str, Any]:
    known = {**KNOWN_TAGS, **defined}
    if tag not in known:
        text = f"found {tag!r}, which custom_envs does not define{did_you_mean(tag, map(str, known))}"
        keys.problems.append(Problem((*_TAGS, index), text))
        return {"env": tag}
    here, custom = (*_CUSTOM, tag), known[tag]
    config = (custom.get("env_config") or {}) if isinstance(custom, dict) else None
    if not isinstance(config, dict):
        keys.refuse(here, custom, "a mapping with env_type and with env_config, a mapping")
        return {"env": tag}
    env = our_env(custom.get("env_type", tag))
    if env in REFUSED_TYPES:
        place = (*here, "env_type") if tag in defined else (*_TAGS, index)
        keys.problems.append(Problem(place, f"env type {env!r} is not shipped: {REFUSED_TYPES[env]}"))
        return {"env": tag}
    try:
        kwargs, unused = our_kwargs(env, config)
    except UsageError as error:
        keys.problems.append(Problem(here if tag in defined else (*_TAGS, index), str(error)))
        return {"env": tag}
    if custom.get("max_actions_per_traj") is not None:
        kwargs["max_actions_per_traj"] = custom["max_actions_per_traj"]
    if tag in defined:
        keys.origins[("env", index, "env")] = (*here, "env_type")
        keys.origins[("env", index, "env_kwargs")] = (*here, "env_config")
        keys.origins[("env", index, "env_kwargs", "max_actions_per_traj")] = (*here, "max_actions_per_traj")
        used = ("env_type", "env_config", "max_actions_per_traj")
        for path in [*((key,) for key in custom if key not in used), *(("env_config", key) for key in unused)]:
            keys.note((*here, *path), why="our envs decide it themselves")
    return {"env": env, "tag": tag, "env_kwargs": kwargs}


def _shares(keys: KeyMapping, n_groups: Any, tags: int) -> list[int]:
    """The share of each tag; equal ones without `n_groups`."""
    if n_groups is None:
        return [1] * tags
    if not isinstance(n_groups, list) or not all(map(_is_count, n_groups)):
        keys.refuse(_N_GROUPS, n_groups, f"a list of whole numbers from 1, one for each of {tags} tags")
        return [1] * tags
    groups = keys.take(_ENV_GROUPS)
    if problem := shares_problem(n_groups, tags, groups if _is_count(groups) else None):
        keys.problems.append(Problem(_N_GROUPS, problem))
        return [1] * tags
    is_exact = groups == sum(n_groups)
    keys.note(_N_GROUPS, became="env.*.share", why="" if is_exact else f"shares of {shown(_ENV_GROUPS)}")
    return n_groups


def _map_text_options(keys: KeyMapping) -> None:
    for source, name in _OF_EVERY_ENV.items():
        value = keys.take(source)
        if value is None:
            continue
        if name == "format_penalty" and isinstance(value, int | float) and not isinstance(value, bool):
            value = abs(value)  # of either sign, it is subtracted
        env = keys.ours.get("env")
        if not isinstance(env, list):
            keys.put(("env_kwargs", name), value, source)
            continue
        for index, entry in enumerate(env):
            own = entry.get("env_kwargs") if isinstance(entry, dict) else None
            if (
                ("env",) in keys.origins
                and name in (own or {})
                and ("env", index, "env_kwargs", name) not in keys.origins
            ):
                continue  # of its own, which custom_envs says
            keys.put(("env", index, "env_kwargs", name), value, source)


def _map_workers(keys: KeyMapping) -> None:
    for source in (("use_parallel_envs",), ("es_manager", "use_multiprocessing")):
        parallel = keys.take(source)
        if parallel is False:
            keys.put(("backend",), "inline", source)
        elif parallel is True:
            keys.note(source, why="so it is by default")
        elif parallel is not None:
            keys.refuse(source, parallel, "true or false")
    for source in (("max_workers",), ("es_manager", "max_workers")):
        if keys.ours.get("backend") == "inline":
            keys.ignore(source, "there are no workers with backend: inline")
        elif (count := keys.take(source)) is not None:
            keys.put(("workers",), count, source)


def _map_sequential(keys: KeyMapping) -> None:
    for source in (("sequential_env_types",), ("es_manager", "sequential_env_types")):
        types, env = keys.take(source), keys.ours.get("env")
        if types is not None and not isinstance(types, list):
            keys.refuse(source, types, "a list of env types")
            continue
        names = [our_env(name) for name in types or []]
        entries = [*enumerate(env)] if isinstance(env, list) else []
        found_here = [index for index, entry in entries if isinstance(entry, dict) and entry.get("env") in names]
        for index in found_here:
            keys.put(("env", index, "runs"), "light", source)
        if types and not found_here:
            keys.note(source, why="no entry of env is of these types")


def _map_dapo(keys: KeyMapping) -> None:
    enabled = keys.take(_ENABLE)
    if enabled is True:
        keys.put(("keep",), {"name": "reward_varies"}, _ENABLE)
        if (budget := keys.take(_BUDGET)) is not None:
            is_bounded = not isinstance(budget, int) or budget > 0  # verl's 0 is no bound
            keys.put(("max_num_gen_batches",), budget if is_bounded else None, _BUDGET)
    elif enabled not in (None, False):
        keys.refuse(_ENABLE, enabled, "true or false")
    keys.ignore(("algorithm", "filter_groups", "metric"), "rewards are what is compared")


def _map_ranking(keys: KeyMapping) -> None:
    """RAGEN's filter of a whole batch, of its older or its newer form."""
    given = {name: keys.take((*_ROLLOUT, f"rollout_filter_{name}")) for name in _FILTER_KEYS}
    if given["strategy"] is not None or given["value"] is not None:
        keep = {"name": given["strategy"] or "top_p"}
        if keep["name"] == "top_p":
            keep["softmax"] = given["top_p_prob_mode"] == "softmax"
        elif given["top_p_prob_mode"] is not None:
            keys.note((*_ROLLOUT, "rollout_filter_top_p_prob_mode"), why="it is of the strategy top_p")
        same = ("value", "metric", "include_zero", "selection_eps")
        keep |= {name: given[name] for name in same if given[name] is not None}
    elif given["ratio"] not in (None, 1):
        keep = {"name": "top_std", "ratio": given["ratio"]}
    else:
        return
    if given["type"] not in (None, *_LARGEST, *_SMALLEST):
        text = f"found {found(given['type'])}{did_you_mean(str(given['type']), [*_LARGEST, *_SMALLEST])}"
        keys.problems.append(Problem((*_ROLLOUT, "rollout_filter_type"), text))
    keys.put(("keep",), {**keep, "largest": given["type"] not in _SMALLEST}, _ROLLOUT)
    named = {**{key: key for key in keep}, "name": "strategy", "softmax": "top_p_prob_mode", "largest": "type"}
    keys.origins |= {("keep", key): (*_ROLLOUT, f"rollout_filter_{name}") for key, name in named.items()}


def _map_advantage(keys: KeyMapping) -> None:
    name, by_std = keys.take(_ESTIMATOR), keys.take(("algorithm", "norm_adv_by_std_in_grpo"))
    if name == "grpo" and by_std is False:
        keys.put(("advantage",), "dr_grpo", _ESTIMATOR)
    elif isinstance(name, str) and name in _ADVANTAGES:
        keys.put(("advantage",), _ADVANTAGES[name], _ESTIMATOR)
    elif name is not None:
        keys.note(_ESTIMATOR, why=f"{found(name)} is not one of ours: set advantage, if one is wanted")


def _meant(path: Path) -> str:
    close = difflib.get_close_matches(shown(path), map(shown, _MAPPED), n=1, cutoff=0.9)
    return f": did you mean {close[0]!r}?" if close and path not in _MAPPED else ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


RAGEN_KEYS = Dialect("ragen", TOP_LEVEL, translate)
