"""`REGISTERED_ENV`: VAGEN's environments by name, and yours beside them."""

from collections.abc import Collection, Mapping
from typing import Any

from asyncrollout.dropin.vagen.configs import (
    FrozenLakeEnvConfig,
    SokobanEnvConfig,
    VideoEnvConfig,
    expanded_path,
    make_config,
)
from asyncrollout.dropin.vagen.envs import FrozenLake, FrozenLakeEnv, Sokoban, SokobanEnv
from asyncrollout.dropin.vagen.hosting import host_class
from asyncrollout.dropin.vagen.service import (
    FrozenLakeService,
    FrozenLakeServiceConfig,
    SokobanService,
    SokobanServiceConfig,
    VideoEnvService,
    VideoEnvServiceConfig,
)
from asyncrollout.dropin.vagen.video import VideoEnv
from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvRef, EnvSpec, find_env
from asyncrollout.validation import did_you_mean

REGISTERED_ENV: dict[str, dict[str, Any]] = {
    "sokoban": {
        "env_cls": SokobanEnv,
        "config_cls": SokobanEnvConfig,
        "service_cls": SokobanService,
        "service_config_cls": SokobanServiceConfig,
    },
    "frozenlake": {
        "env_cls": FrozenLakeEnv,
        "config_cls": FrozenLakeEnvConfig,
        "service_cls": FrozenLakeService,
        "service_config_cls": FrozenLakeServiceConfig,
    },
    "video": {
        "env_cls": VideoEnv,
        "config_cls": VideoEnvConfig,
        "service_cls": VideoEnvService,
        "service_config_cls": VideoEnvServiceConfig,
    },
}
"""As VAGEN's: each name with `env_cls`, `config_cls`, `service_cls` and `service_config_cls`.

Add an entry for an environment of your own; `EnvService` needs its `env_cls` and `config_cls`, and runs it in its
worker processes: a `service_cls` of yours is not called.
"""

ELSEWHERE = (
    "navigation",
    "svg",
    "primitive_skill",
    "alfworld",
    "blackjack",
    "SpatialGym",
    "PrimitiveSkill",
    "RemoteEnv",
)
"""VAGEN's other environments."""

_CURRENT = {"Sokoban": Sokoban, "FrozenLake": FrozenLake}
_OF_VIDEOS = ("render_mode", "data_dir", "image_placeholder", "special_token_list", "action_sep")
_NAMES_THEIRS = frozenset(
    {"render_mode", "prompt_format", "action_sep", "max_actions_per_step", "image_placeholder", "special_token_list"}
)


def find_theirs(
    name: str, env_config: Mapping[str, Any], *, variables: Collection[str] | None = None
) -> tuple[EnvRef, dict[str, Any]]:
    """What a pool opens for an environment of VAGEN's, or of yours in `REGISTERED_ENV`, and with which options.

    Only these `variables` are expanded in paths, if they are given.
    """
    if name == "video":
        return name, video_options(env_config, variables)
    if name in _CURRENT:
        make_config(_CURRENT[name].config_cls, name, dict(env_config))
        return _spec(name, _CURRENT[name], None), dict(env_config)
    if name not in REGISTERED_ENV:
        if name in ELSEWHERE:
            raise UsageError(
                f"VAGEN's environment {name!r} is not available here; of its own: {', '.join(REGISTERED_ENV)}"
            )
        return name, dict(env_config)
    entry = REGISTERED_ENV[name]
    for key in ("env_cls", "config_cls"):
        if not callable(entry.get(key)):
            raise UsageError(f"REGISTERED_ENV[{name!r}] has no {key!r}{did_you_mean(key, entry)}")
    make_config(entry["config_cls"], name, dict(env_config))  # an error now, and not from a worker
    return _spec(name, entry["env_cls"], entry["config_cls"]), dict(env_config)


def is_theirs(name: str, env_config: Mapping[str, Any]) -> bool:
    """Whether a config means VAGEN's environment; `sokoban`, of which there is another one, with VAGEN's keys only."""
    if name == "sokoban":
        return not _NAMES_THEIRS.isdisjoint(env_config)
    return name in ("frozenlake", "video", *_CURRENT)


def video_options(env_config: Mapping[str, Any], variables: Collection[str] | None = None) -> dict[str, Any]:
    """Video-MTR's options as those of the `video` env, which has more of its own."""
    make_config(VideoEnvConfig, "video", {key: env_config[key] for key in _OF_VIDEOS if key in env_config})
    options = {key: value for key, value in env_config.items() if key not in _OF_VIDEOS}
    if isinstance(path := options.get("video_data_config_path"), str):
        options["video_data_config_path"] = expanded_path(path, variables)
    return options


def _spec(name: str, env_cls: Any, config_cls: Any) -> EnvSpec:
    kwargs = {"env_name": name, "env_cls": env_cls, "config_cls": config_cls}
    return EnvSpec(name, host_class(env_cls), kwargs=kwargs, runs=find_env("sokoban").runs)
