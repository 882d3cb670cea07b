"""verl-agent's configuration, from any kind of object; errors name the key and what to do."""

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from asyncrollout.dropin.configs import plain
from asyncrollout.errors import UsageError

logger = logging.getLogger(__name__)

Count = Annotated[int, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=0)]

_OTHERS = frozenset({"alfworld", "appworld", "gym_cards", "search"})  # sections of other environments
_REFUSED = {
    "search": "its questions need verl-agent's retrieval server",
    "gym_cards": "the card games are drawn by the gym_cards package",
    "alfworld": "ALFWorld needs its own engine and game files",
    "appworld": "AppWorld needs its own servers and data",
}
"""Environments of verl-agent that are not here, in the order in which it looks for their names, and why not."""

EnvName = Literal["sokoban", "webshop"]


class GroupSize(msgspec.Struct, frozen=True):
    n: int = 1


class SokobanSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dim_room: tuple[int, int] = (6, 6)
    num_boxes: Count = 1
    search_depth: Count = 30
    mode: Literal["tiny_rgb_array", "rgb_array"] = "tiny_rgb_array"


class WebshopSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`data_path` is ours: the directory of WebShop's own files."""

    use_small: bool = True
    human_goals: bool = False
    data_path: str | None = None

    def kwargs(self) -> dict[str, Any]:
        """Of our env. Without files, it sells generated products."""
        if self.data_path is None:
            return {}
        name = "items_shuffle_1000.json" if self.use_small else "items_shuffle.json"
        return {"data_path": str(Path(self.data_path).expanduser() / name), "human_goals": self.human_goals}


class VerlAgentEnv(msgspec.Struct, frozen=True):
    """`explain_invalid` is ours: a prompt begins with why the last reply was invalid."""

    env_name: str
    seed: Seed = 0
    max_steps: Count = 50
    history_length: int = 2
    explain_invalid: bool = False
    rollout: GroupSize = GroupSize()
    sokoban: SokobanSettings = SokobanSettings()
    webshop: WebshopSettings = WebshopSettings()
    resources_per_worker: dict[str, float] = {}

    @property
    def group_n(self) -> int:
        return max(self.rollout.n, 1)

    @property
    def kind(self) -> EnvName:
        """Which environment a name means: verl-agent looks for a word in it."""
        name = self.env_name.lower()
        for word, reason in _REFUSED.items():
            if word in name:
                raise UsageError(f"config: env.env_name: {self.env_name!r} is not available: {reason}")
        known: tuple[EnvName, ...] = ("sokoban", "webshop")
        for kind in known:
            if kind in name:
                return kind
        raise UsageError(f"config: env.env_name: {self.env_name!r} is not available; available: {', '.join(known)}")


class DataSettings(msgspec.Struct, frozen=True):
    train_batch_size: Count
    val_batch_size: Count | None = None


class VerlAgentSettings(msgspec.Struct, frozen=True):
    env: VerlAgentEnv
    data: DataSettings


def read_settings(config: Any) -> VerlAgentSettings:
    """The sections `env` and `data`; others are the trainer's. Ray's `resources_per_worker` has no use without Ray."""
    unread = _section(config, "env").keys() - {*VerlAgentEnv.__struct_fields__} - _OTHERS
    if unread:
        logger.warning("config: not read: %s", ", ".join(f"env.{key}" for key in sorted(unread)))
    settings: VerlAgentSettings = _converted(
        {name: _section(config, name) for name in ("env", "data")}, VerlAgentSettings
    )
    if settings.env.kind == "webshop" and settings.env.webshop.data_path is None:
        logger.warning(
            "env.webshop.data_path is not given: generated products are sold instead of WebShop's, whatever use_small "
            "and human_goals say"
        )
    return settings


def read_env_settings(config: Any) -> VerlAgentEnv:
    found: _EnvSection = _converted({"env": _section(config, "env")}, _EnvSection)
    return found.env


class _EnvSection(msgspec.Struct, frozen=True):
    env: VerlAgentEnv


def _section(config: Any, name: str) -> Any:
    get = getattr(config, "get", None)
    section = get(name) if callable(get) else getattr(config, name, None)
    if section is None:
        raise UsageError(f"config: {name} is missing")
    return plain(section)


def _converted(found: dict[str, Any], kind: Any) -> Any:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"config: {error}".replace("$.", "").replace("`", "'")) from error
