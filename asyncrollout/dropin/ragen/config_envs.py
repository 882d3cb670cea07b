"""RAGEN's tags and their settings, mapped onto entries of `env`."""

from typing import Any

from asyncrollout.config.checking import Problem
from asyncrollout.config.document import Path
from asyncrollout.config.suggestions import shown
from asyncrollout.dropin.configs import converted
from asyncrollout.dropin.key_mapping import KeyMapping
from asyncrollout.dropin.ragen.env_keys import (
    KNOWN_TAGS,
    REFUSED_TYPES,
    our_env,
    our_kwargs,
    played_config,
    shares_problem,
)
from asyncrollout.dropin.ragen.prompts import DEFAULT, write_rules
from asyncrollout.dropin.ragen.settings import AgentProxy, CustomEnv
from asyncrollout.dropin.ragen.trainer_keys import OF_TAGS
from asyncrollout.errors import UsageError
from asyncrollout.validation import did_you_mean

CUSTOM: Path = ("custom_envs",)
TAGS: Path = ("es_manager", "train", "env_configs", "tags")
N_GROUPS: Path = ("es_manager", "train", "env_configs", "n_groups")
ENV_GROUPS: Path = ("es_manager", "train", "env_groups")

OF_EVERY_ENV: dict[Path, str] = {
    ("es_manager", "format_penalty"): "format_penalty",
    ("agent_proxy", "format_penalty"): "format_penalty",
    ("agent_proxy", "max_actions_per_turn"): "max_actions_per_turn",
    ("agent_proxy", "action_sep"): "separator",
    ("agent_proxy", "enable_think"): "think",
}


def map_envs(keys: KeyMapping) -> None:
    """Tags, of which `custom_envs` says what they are."""
    tags, n_groups = keys.take(TAGS), keys.take(N_GROUPS)
    if tags is None:
        keys.ignore(CUSTOM, f"{shown(TAGS)} names none of them")
        return
    defined = keys.take(CUSTOM) or {}
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) for tag in tags):
        keys.refuse(TAGS, tags, "a list of tags")
    elif not isinstance(defined, dict):
        keys.refuse(CUSTOM, defined, "a mapping of tags to envs")
    else:
        shares = _shares(keys, n_groups, len(tags))
        entries = [_entry(keys, index, tag, defined) for index, tag in enumerate(tags)]
        keys.put(("env",), [{**entry, "share": share} for entry, share in zip(entries, shares, strict=True)], TAGS)
        agent = keys.ours.get("agent") or {}
        if isinstance(agent, dict) and "template" not in agent:
            keys.put(("agent", "template"), "ragen", TAGS)
        for tag in defined:
            if tag not in tags:
                keys.note((*CUSTOM, str(tag)), why=f"not in {shown(TAGS)}")


def _entry(keys: KeyMapping, index: int, tag: str, defined: dict[Any, Any]) -> dict[str, Any]:
    known = {**KNOWN_TAGS, **defined}
    if tag not in known:
        text = f"found {tag!r}, which custom_envs does not define{did_you_mean(tag, map(str, known))}"
        keys.problems.append(Problem((*TAGS, index), text))
        return {"env": tag}
    here, custom = (*CUSTOM, tag), known[tag]
    config = (custom.get("env_config") or {}) if isinstance(custom, dict) else None
    if not isinstance(config, dict):
        keys.refuse(here, custom, "a mapping with env_type and with env_config, a mapping")
        return {"env": tag}
    if not isinstance(env_type := custom.get("env_type", tag), str):
        keys.refuse((*here, "env_type"), env_type, "a text")
        return {"env": tag}
    env = our_env(env_type)
    place = here if tag in defined else (*TAGS, index)
    if env in REFUSED_TYPES:
        keys.problems.append(Problem(place, f"env type {env!r} is not shipped: {REFUSED_TYPES[env]}"))
        return {"env": tag}
    try:
        kwargs, unused = our_kwargs(env, played_config(custom))
    except UsageError as error:
        keys.problems.append(Problem(place, str(error)))
        return {"env": tag}
    if custom.get("max_actions_per_traj") is not None:
        kwargs["max_actions_per_traj"] = custom["max_actions_per_traj"]
    if tag in defined:
        keys.origins[("env", index, "env")] = (*here, "env_type")
        keys.origins[("env", index, "env_kwargs")] = (*here, "env_config")
        keys.origins[("env", index, "env_kwargs", "max_actions_per_traj")] = (*here, "max_actions_per_traj")
        _map_instruction(keys, here, custom, kwargs, index)
        for key in unused:
            keys.note((*here, "env_config", key), why="our envs decide it themselves")
        for key in custom:
            if key in OF_TAGS:
                keys.note((*here, key), why=OF_TAGS[key])
            elif key not in CustomEnv.__struct_fields__:
                near = did_you_mean(str(key), CustomEnv.__struct_fields__)
                keys.problems.append(Problem((*here, str(key)), f"not a known key{near}"))
    return {"env": env, "tag": tag, "env_kwargs": kwargs}


def _map_instruction(keys: KeyMapping, here: Path, custom: dict[Any, Any], kwargs: dict[Any, Any], index: int) -> None:
    """The rules that RAGEN's prompts begin with, and how long a reply may be."""
    text, length = custom.get("env_instruction"), custom.get("max_tokens")
    if not isinstance(text, str) or not text:
        for name, value in (("env_instruction", text), ("max_tokens", length)):
            if value is not None:
                keys.note((*here, name), why="without an env_instruction, envs have their own rules")
        return
    try:
        known = {key: value for key, value in custom.items() if key in CustomEnv.__struct_fields__}
        separator = keys.take(("agent_proxy", "action_sep")) or AgentProxy().action_sep
        rules = write_rules(str(here[-1]), converted(known, CustomEnv, shown(here)), str(separator))
    except UsageError as error:
        keys.problems.append(Problem(here, str(error).removeprefix("config: ")))
        return
    most = "" if length is None else DEFAULT.length.format(max_tokens=length)
    kwargs["instruction"] = (rules.rstrip() + most).strip()
    keys.origins[("env", index, "env_kwargs", "instruction")] = (*here, "env_instruction")


def _shares(keys: KeyMapping, n_groups: Any, tags: int) -> list[int]:
    """The share of each tag; equal ones without `n_groups`."""
    if n_groups is None:
        return [1] * tags
    if not isinstance(n_groups, list) or not all(map(is_count, n_groups)):
        keys.refuse(N_GROUPS, n_groups, f"a list of whole numbers from 1, one for each of {tags} tags")
        return [1] * tags
    groups = keys.take(ENV_GROUPS)
    if problem := shares_problem(n_groups, tags, groups if is_count(groups) else None):
        keys.problems.append(Problem(N_GROUPS, problem))
        return [1] * tags
    is_exact = groups == sum(n_groups)
    keys.note(N_GROUPS, became="env.*.share", why="" if is_exact else f"shares of {shown(ENV_GROUPS)}")
    return n_groups


def map_text_options(keys: KeyMapping) -> None:
    for source, name in OF_EVERY_ENV.items():
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


def map_sequential(keys: KeyMapping) -> None:
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


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
