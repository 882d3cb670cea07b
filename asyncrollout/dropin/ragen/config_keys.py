"""RAGEN's keys, mapped onto ours."""

import difflib
from pathlib import Path as FilePath
from typing import Any

from asyncrollout.config.checking import Problem, found
from asyncrollout.config.dialect import Dialect, Translation
from asyncrollout.config.document import Document, Path
from asyncrollout.config.suggestions import shown
from asyncrollout.dropin.hydra_defaults import compose_document
from asyncrollout.dropin.key_mapping import KeyMapping
from asyncrollout.dropin.ragen.config_envs import (
    CUSTOM,
    ENV_GROUPS,
    N_GROUPS,
    OF_EVERY_ENV,
    TAGS,
    map_envs,
    map_sequential,
    map_text_options,
)
from asyncrollout.dropin.ragen.trainer_keys import IRRELEVANT
from asyncrollout.validation import did_you_mean

_ENABLE: Path = ("algorithm", "filter_groups", "enable")
_BUDGET: Path = ("algorithm", "filter_groups", "max_num_gen_batches")
_ESTIMATOR: Path = ("algorithm", "adv_estimator")
_ROLLOUT: Path = ("actor_rollout_ref", "rollout")
_NORMALIZATION: Path = ("agent_proxy", "reward_normalization")

_RENAMED: dict[Path, Path] = {
    ("seed", "train"): ("seed",),
    ENV_GROUPS: ("groups",),
    ("es_manager", "train", "group_size"): ("group_size",),
    ("agent_proxy", "max_turn"): ("limits", "turns"),
    (*_NORMALIZATION, "grouping"): ("reward_normalization", "grouping"),
    (*_NORMALIZATION, "method"): ("reward_normalization", "method"),
}
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "response_length": "max_tokens"}
_WINDOW_MODE: Path = ("agent_proxy", "context_window_mode")
_WINDOW: Path = ("agent_proxy", "max_context_window")
_MAPPED = (
    *(*_RENAMED, *OF_EVERY_ENV, TAGS, N_GROUPS, _ENABLE, _BUDGET, _WINDOW_MODE, _WINDOW),
    *((*_ROLLOUT, name) for name in (*_SAMPLING, "top_k", "do_sample")),
    *IRRELEVANT,
)
_MODELS: tuple[Path, ...] = (("model_path",), ("actor_rollout_ref", "model", "path"))
_EXPERTS_PLAY = (
    "no model is loaded here, so the envs' own experts play (policy: solver): set policy to play another one"
)
_ADVANTAGES = {"grpo": "grpo", "rloo": "rloo", "reinforce_plus_plus": "reinforce_pp", "gigpo": "gigpo"}
_FILTER_KEYS = ("strategy", "value", "metric", "include_zero", "selection_eps", "top_p_prob_mode", "ratio", "type")
_VERLS = ("ppo_trainer",)
_LARGEST, _SMALLEST = ("largest", "std"), ("smallest", "std_rev")

TOP_LEVEL = sorted(
    {
        *("actor_rollout_ref", "agent_proxy", "algorithm", "custom_envs", "defaults", "es_manager", "max_workers"),
        *("model_config", "model_info", "sequential_env_types", "use_parallel_envs"),
        *(str(path[0]) for path in IRRELEVANT if path[0] != "seed"),
    }
)
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
    map_envs(keys)
    map_text_options(keys)
    _map_sampling(keys)
    _map_context_window(keys)
    _map_workers(keys)
    map_sequential(keys)
    _map_dapo(keys)
    _map_ranking(keys)
    _map_advantage(keys)
    _map_model(keys)
    for name in keys.take(("defaults",)) or ():
        keys.note(("defaults",), why=f"{name}.yaml, verl's own, is not there: RAGEN's files have all that matters here")
    models = [path for path in _MODELS if "policy" not in keys.ours and keys.take(path, resolve=False) is not None]
    for path in models[:1]:
        keys.note(path, why=_EXPERTS_PLAY, warns=True)
    for path, why in IRRELEVANT.items():
        if path not in models:
            keys.ignore(path, why)
    for path in keys.unknown():
        keys.problems.append(Problem(path, f"{shown(path)}: not a known key{_meant(path)}", names_key=True))
    tags = keys.take(TAGS)
    checked = [(*CUSTOM, tag, "env_config") for tag in (tags if isinstance(tags, list) else ())]
    for path in keys.secrets(checked):
        keys.problems.append(Problem(path, "a key is never written into a file: set an environment variable"))
    return Translation(keys.ours, keys.notes, keys.origins, keys.problems)


def _map_sampling(keys: KeyMapping) -> None:
    """How RAGEN's training samples; validation has its own `val_kwargs`."""
    if keys.take((*_ROLLOUT, "do_sample")) is False:
        keys.put(("agent", "sampling", "temperature"), 0, (*_ROLLOUT, "do_sample"))
        keys.ignore((*_ROLLOUT, "temperature"), "do_sample is false")
    for name, ours in _SAMPLING.items():
        if (value := keys.take((*_ROLLOUT, name))) is not None and ("agent", "sampling", ours) not in keys.origins:
            keys.put(("agent", "sampling", ours), value, (*_ROLLOUT, name))
    most = keys.take((*_ROLLOUT, "top_k"))
    if isinstance(most, int) and most < 1:
        keys.note((*_ROLLOUT, "top_k"), why="no limit")
    elif most is not None:
        keys.put(("agent", "sampling", "extra", "top_k"), most, (*_ROLLOUT, "top_k"))


def _map_context_window(keys: KeyMapping) -> None:
    mode, window = keys.take(_WINDOW_MODE), keys.take(_WINDOW)
    is_bounded = isinstance(window, int) and window > 0
    if window is not None and (isinstance(window, bool) or not isinstance(window, int)):
        keys.refuse(_WINDOW, window, "a whole number, -1 for no limit")
    elif mode not in (None, "full", "limited_multi_turn"):
        keys.refuse(_WINDOW_MODE, mode, "full or limited_multi_turn: a run has conversations of several messages")
    elif mode == "full" and is_bounded:
        keys.note(_WINDOW, why="context_window_mode is full")
    elif window is not None and is_bounded:
        keys.put(("agent", "history"), window - 1, _WINDOW)
    elif mode == "limited_multi_turn" and window is None:
        keys.put(("agent", "history"), 0, _WINDOW_MODE)


def _map_model(keys: KeyMapping) -> None:
    """RAGEN's models by name, for evaluations."""
    for part in ("model_config", "model_info"):
        if keys.take((part,)) is not None and "policy" not in keys.ours:
            example = "policy: {kind: openai, base_url: https://api.openai.com/v1, model: gpt-4o}"
            keys.problems.append(Problem((part,), f"name the model as a policy instead, such as {example}"))
        else:
            keys.ignore((part,), "policy names the model")


def _map_workers(keys: KeyMapping) -> None:
    switches: tuple[Path, ...] = (
        *(("use_parallel_envs",), ("es_manager", "use_multiprocessing")),
        ("es_manager", "use_parallel_execution"),
    )
    for source in switches:
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
        elif (count := keys.take(source)) == 0 and count is not False:
            keys.put(("backend",), "inline", source)
        elif count is not None:
            keys.put(("workers",), count, source)


def _map_dapo(keys: KeyMapping) -> None:
    enabled, budget = keys.take(_ENABLE), keys.take(_BUDGET)
    if enabled is True:
        keys.put(("keep",), {"name": "reward_varies"}, _ENABLE)
        if budget is not None:
            is_bounded = not isinstance(budget, int) or budget > 0  # verl's 0 is no bound
            keys.put(("max_num_gen_batches",), budget if is_bounded else None, _BUDGET)
    elif enabled not in (None, False):
        keys.refuse(_ENABLE, enabled, "true or false")
    elif budget is not None:
        keys.note(_BUDGET, why="dynamic sampling is off")


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


def _compose(document: Document, where: str) -> Document:
    """With the files that `defaults` names; verl's own may be missing, and is then all that stays of `defaults`."""
    missing: list[str] = []
    composed = compose_document(document, FilePath(where), optional=_VERLS, missing=missing)
    return Document({**composed.value, "defaults": missing}, composed.places) if missing else composed


RAGEN_KEYS = Dialect("ragen", TOP_LEVEL, translate, _compose)
