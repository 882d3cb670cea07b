"""RLinf's keys for evaluations, mapped onto ours: what is taken, what has no effect, and what is refused."""

from collections.abc import Callable, Mapping
from typing import Any

from asyncrollout.config.dialect import Translation
from asyncrollout.config.document import Path
from asyncrollout.dropin.key_mapping import KeyMapping

_EVAL: Path = ("env", "eval")
_OMNI: Path = (*_EVAL, "omni_config")

_UNUSED: dict[Path, str] = {
    ("runner",): "an evaluation has no runner of RLinf's; its log_path is read where other keys refer to it",
    ("actor",): "nothing is trained",
    ("critic",): "nothing is trained",
    ("algorithm",): "nothing is trained",
    ("reward",): "rewards are the env's own",
    ("inference",): "nothing is trained",
    ("weight_syncer",): "nothing is trained",
    ("env", "train"): "nothing is trained",
    ("env", "group_name"): "processes are named by their rank",
    ("env", "channel"): "processes need no channel",
    (*_OMNI, "render"): "envs run headless",
    (*_EVAL, "num_env_subprocess"): "each env that cannot share a process has its own",
    (*_EVAL, "enable_offload"): "envs stay where they are",
    (*_EVAL, "enable_init_offload"): "envs stay where they are",
    (*_EVAL, "skip_intermediate_obs_in_chunk"): "a policy answers every step, and every step is on the video",
    (*_EVAL, "use_rel_reward"): "RLinf's behavior env does not read it either",
    (*_OMNI, "task", "instance_file_format"): "it is for activity_instance_dir, which is not set",
    (*_OMNI, "task", "termination_config"): "max_episode_steps sets it",
}

_NOT_APPLIED: dict[Path, str] = {
    (*_OMNI, "macro"): "envs run headless, without GPU dynamics",
    (*_OMNI, "camera"): "set env.eval.resolution for the cameras: low or high",
    (*_OMNI, "robots"): "OmniGibson's own settings of R1Pro are used",
    (*_OMNI, "scene", "partial_scene_load"): "OmniGibson loads the whole scene",
}
"""Keys of the simulator that RLinf applies and an evaluation here does not."""

_ONLY: dict[Path, tuple[Any, str]] = {
    (*_EVAL, "auto_reset"): (False, "each env plays whole episodes"),
    (*_EVAL, "ignore_terminations"): (False, "an episode ends when the env ends it"),
    (*_EVAL, "group_size"): (1, "each env plays seeds of its own"),
    (*_EVAL, "use_fixed_reset_state_ids"): (False, "each episode has a seed of its own"),
    (*_EVAL, "base_config_name"): ("r1pro_behavior", "it is the only robot"),
    (*_EVAL, "use_eval_utils_cfg"): (False, "OmniGibson's evaluation settings are not read"),
    (*_EVAL, "policy_wrapper"): (None, "wrap the policy itself"),
    (*_OMNI, "task", "activity_instance_dir"): (None, "instances are OmniGibson's own"),
    (*_OMNI, "task", "instance_resample_mode"): ("disabled", "instances are not resampled"),
    (*_OMNI, "task", "online_object_sampling"): (False, "instances are not resampled"),
}

_TAKEN: dict[Path, Path] = {
    (*_EVAL, "rollout_epoch"): (*_EVAL, "episodes"),
    (*_OMNI, "task", "activity_name"): (*_EVAL, "env_kwargs", "activity"),
    (*_OMNI, "task", "activity_instance_id"): (*_EVAL, "env_kwargs", "instance"),
}

_FORMER_EPOCHS: Path = ("algorithm", "eval_rollout_epoch")
"""RLinf's former name of `rollout_epoch`, which it still reads where that is missing."""


def translate(values: dict[Any, Any]) -> Translation:
    """Values in our keys; whatever is neither ours nor listed here stays, and is refused as unknown."""
    keys = KeyMapping(values, _without(values, [*_UNUSED, *_NOT_APPLIED, *_ONLY, *_TAKEN, *_LATER]))
    for path, why in (_UNUSED | _NOT_APPLIED).items():
        keys.ignore(path, why, warns=path in _NOT_APPLIED)
    for path, (only, why) in _ONLY.items():
        if (value := keys.take(path)) is not None and value != only:
            keys.refuse(path, value, f"{only!r}: {why}")
    former = keys.take(_FORMER_EPOCHS)
    if former is not None and keys.take((*_EVAL, "rollout_epoch")) is None:
        keys.put((*_EVAL, "episodes"), former, _FORMER_EPOCHS)
    for theirs, ours in _TAKEN.items():
        if (value := keys.take(theirs)) is not None:
            keys.put(ours, value, theirs)
    for path, read in _LATER.items():
        if (value := keys.take(path, resolve=False)) is not None:  # a model's references need not be resolvable
            read(keys, path, value)
    return Translation(keys.ours, keys.notes, keys.origins, keys.problems)


def _shorter(keys: KeyMapping, path: Path, value: Any) -> None:
    """An epoch without automatic resets is one episode, which ends with it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        keys.refuse(path, value, "a whole number from 1")
        return
    limit: Path = (*_EVAL, "max_episode_steps")
    given = keys.take(limit)
    if isinstance(given, int) and given <= value:
        keys.note(path, why="max_episode_steps is not longer")
        return
    eval_ = keys.ours.setdefault("env", {}).setdefault("eval", {})
    eval_.pop("max_episode_steps", None)
    keys.put(limit, value, path)


def _omni(keys: KeyMapping, path: Path, value: Any) -> None:
    """What is left of OmniGibson's own configuration."""
    if not isinstance(value, Mapping):
        keys.refuse(path, value, "a mapping")
        return
    listed = [
        known[len(_OMNI) :] for known in (*_UNUSED, *_NOT_APPLIED, *_ONLY, *_TAKEN) if known[: len(_OMNI)] == _OMNI
    ]
    rest = _without(dict(value), listed)
    if rest:
        keys.put((*_EVAL, "env_kwargs", "config"), rest, path)


def _model(keys: KeyMapping, path: Path, value: Any) -> None:
    """The model that RLinf would load; an evaluation must not play something else unnoticed."""
    model = value.get("model") if isinstance(value, Mapping) else None
    if isinstance(model, Mapping) and "policy" not in keys.ours:
        keys.put(("policy",), {"kind": "rlinf", "model_path": str(model.get("model_path") or "")}, (*path, "model"))
    keys.note(path, why="a policy of yours plays, with settings of its own")


_LATER: dict[Path, Callable[[KeyMapping, Path, Any], None]] = {
    (*_EVAL, "max_steps_per_rollout_epoch"): _shorter,
    _OMNI: _omni,
    ("rollout",): _model,
}


def _without(values: Any, paths: list[Path]) -> Any:
    """A copy without the values at these paths, and without mappings that have nothing else."""
    if not isinstance(values, dict):
        return values
    kept = {}
    for key, value in values.items():
        below = [path[1:] for path in paths if path[0] == key]
        if () in below:
            continue
        inner = _without(value, below) if below else value
        if inner != {} or value == {}:
            kept[key] = inner
    return kept
