"""verl-agent's environments from its configuration: groups for training, single ones for validation."""

from typing import Any

from asyncrollout.dropin.ragen.container import EnvironmentContainer, SynchronousContainer
from asyncrollout.dropin.ragen.settings import EnvPlan, Mode
from asyncrollout.dropin.verl_agent.envs import VerlAgentSokoban, VerlAgentWebshop
from asyncrollout.dropin.verl_agent.managers import (
    EnvironmentManagerBase,
    SokobanEnvironmentManager,
    WebshopEnvironmentManager,
)
from asyncrollout.dropin.verl_agent.projections import sokoban_projection, webshop_projection
from asyncrollout.dropin.verl_agent.settings import VerlAgentEnv, read_settings
from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec
from asyncrollout.text.projections import Projection

_KINDS: dict[str, tuple[type, type[EnvironmentManagerBase], Projection]] = {
    "sokoban": (VerlAgentSokoban, SokobanEnvironmentManager, sokoban_projection),
    "webshop": (VerlAgentWebshop, WebshopEnvironmentManager, webshop_projection),
}


def make_envs(config: Any) -> tuple[EnvironmentManagerBase, EnvironmentManagerBase]:
    """The managers of training and of validation.

    There are `data.train_batch_size` groups of `env.rollout.n` environments for training, and `data.val_batch_size`
    environments for validation, which play the same episodes every time.
    """
    settings = read_settings(config)
    if settings.data.val_batch_size is None:
        raise UsageError("config: data.val_batch_size is missing: how many environments are for validation?")
    train = _make(config, settings.env, "train", settings.data.train_batch_size, settings.env.group_n)
    try:
        return train, _make(config, settings.env, "val", settings.data.val_batch_size, 1)
    except BaseException:
        train.close()
        raise


class VerlAgentPlan(EnvPlan, frozen=True):
    """One of verl-agent's environments to be opened, `env_type` of them."""

    def spec(self, host: str) -> EnvSpec:
        kwargs = {"make_env": _KINDS[self.env_type][0], "make_config": dict, "config": self.config, "mode": self.mode}
        return EnvSpec(name=self.tag, factory=f"asyncrollout.dropin.ragen.hosting:{host}", kwargs=kwargs, runs="cpu")


def _make(config: Any, settings: VerlAgentEnv, mode: Mode, groups: int, group_n: int) -> EnvironmentManagerBase:
    kind = settings.kind
    kwargs = _kwargs(settings, mode)
    plans = [
        VerlAgentPlan(settings.env_name, kind, group, kwargs, mode) for group in range(groups) for _ in range(group_n)
    ]
    container = EnvironmentContainer(plans, group_n=group_n, seed=settings.seed, is_validation=mode == "val")
    _, manager, projection = _KINDS[kind]
    return manager(SynchronousContainer(container), projection, config)


def _kwargs(settings: VerlAgentEnv, mode: Mode) -> dict[str, Any]:
    """Of our env. Splits never share an episode; WebShop's first 500 goals, its test split, are for validation."""
    common = {"max_steps": settings.max_steps}
    if settings.kind == "webshop":
        return {**common, **settings.webshop.kwargs(), "split": "test" if mode == "val" else "train"}
    room = settings.sokoban
    return {
        **common,
        "dim_room": list(room.dim_room),
        "num_boxes": room.num_boxes,
        "search_depth": room.search_depth,
        "mode": room.mode,
        "split": mode,
    }
