"""Environments from RAGEN's configuration: for training and for validation, of one type or several."""

import logging
from typing import Any

from asyncrollout.dropin.ragen import envs
from asyncrollout.dropin.ragen.container import (
    EnvironmentContainer,
    MultiProcessEnvironmentContainer,
    SynchronousContainer,
)
from asyncrollout.dropin.ragen.managers import REGISTERED_MANAGERS, EnvironmentManagerBase, MixedEnvironmentManager
from asyncrollout.dropin.ragen.seeds import reserved_seeds
from asyncrollout.dropin.ragen.settings import EnvPlan, Mode, Settings, read_plans, read_settings, registered_type
from asyncrollout.errors import UnknownEnvError, UsageError
from asyncrollout.text.projections import GENERIC, Projection, create_projection_function

logger = logging.getLogger(__name__)

REGISTERED_PROJECTIONS: dict[str, Projection] = {}
"""Env types of your own and how replies to them are read; others are read as the environment of that name, if there is
one, or by the last tag."""


def make_environments(config: Any) -> tuple[EnvironmentManagerBase, EnvironmentManagerBase]:
    """The managers of training and of validation; with `use_parallel_envs: false`, without worker processes."""
    settings = read_settings(config)
    validate_environment_config(settings)
    train = _make(settings, "train")
    try:
        return train, _make(settings, "val")
    except BaseException:
        train.close()
        raise


def validate_environment_config(config: Any) -> bool:
    """True, or a `UsageError` (a `ValueError`) that names the key."""
    settings = read_settings(config)
    plans = {mode: read_plans(settings, mode) for mode in ("train", "val")}
    expected, count = settings.data.train_batch_size, len(plans["train"])
    if expected is not None and not settings.algorithm.filter_groups.enable and expected != count:
        logger.warning("data.train_batch_size is %d, but es_manager.train has %d environments", expected, count)
    return True


def create_single_environment_for_testing(
    env_type: str, seed: int = 42, env_kwargs: dict[str, Any] | None = None
) -> EnvironmentManagerBase:
    """A manager of one environment."""
    container = MultiProcessEnvironmentContainer(env_type, 1, 1, seed, env_kwargs, workers=1)
    return _manager(container.env_type, container, container.env_type)


def get_supported_environment_types() -> list[str]:
    return sorted(envs.REGISTERED_ENVS)


def projection_of(env_type: str) -> Projection:
    """How replies to an env type are read."""
    if env_type in REGISTERED_PROJECTIONS:
        return REGISTERED_PROJECTIONS[env_type]
    try:
        return create_projection_function(env_type)
    except (UnknownEnvError, UsageError):
        return create_projection_function(GENERIC)


def _make(settings: Settings, mode: Mode) -> EnvironmentManagerBase:
    plans, part = read_plans(settings, mode), settings.part(mode)
    container = SynchronousContainer(
        EnvironmentContainer(
            plans,
            group_n=part.group_size,
            seed=settings.base_seed(mode),
            is_validation=mode == "val",
            reserved=reserved_seeds(settings, mode),
            workers=settings.es_manager.max_workers,
            parallel=settings.use_parallel_envs,
            step_timeout=settings.es_manager.step_timeout,
            reset_timeout=settings.es_manager.reset_timeout,
        )
    )
    tags = {plan.tag: plan for plan in plans}
    logger.info("%s environments: %d groups of %d, %s", mode, part.env_groups, part.group_size, ", ".join(sorted(tags)))
    manager = _manager_of(container, plans, tags)
    manager.explain_invalid = settings.agent_proxy.explain_invalid
    return manager


def _manager_of(
    container: SynchronousContainer, plans: list[EnvPlan], tags: dict[str, EnvPlan]
) -> EnvironmentManagerBase:
    managers = {tag: _manager(plan.env_type, container, tag) for tag, plan in tags.items()}
    if len(managers) == 1:
        return next(iter(managers.values()))
    return MixedEnvironmentManager(container, [managers[plan.tag] for plan in plans], ", ".join(managers))


def _manager(env_type: str, container: SynchronousContainer, name: str) -> EnvironmentManagerBase:
    manager = REGISTERED_MANAGERS.get(env_type, EnvironmentManagerBase)
    return manager(container, projection_of(registered_type(env_type, "env_type")), name)
