"""RAGEN's interfaces: in a trainer, change the import line.

Names load when they are first used: a worker needs one small module of these.
"""

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = {
    "asyncrollout.dropin.ragen.collector": ["TrajectoryCollector"],
    "asyncrollout.dropin.ragen.container": ["EnvironmentContainer", "MultiProcessEnvironmentContainer"],
    "asyncrollout.dropin.ragen.context": ["ContextManager"],
    "asyncrollout.dropin.ragen.data": ["DataProto"],
    "asyncrollout.dropin.ragen.envs": ["REGISTERED_ENVS", "REGISTERED_ENV_CONFIGS", "EnvConfig", "RagenEnv"],
    "asyncrollout.dropin.ragen.factory": [
        "create_single_environment_for_testing",
        "get_supported_environment_types",
        "make_environments",
        "validate_environment_config",
    ],
    "asyncrollout.dropin.ragen.managers": [
        "BanditEnvironmentManager",
        "CountdownEnvironmentManager",
        "EnvironmentManagerBase",
        "FrozenLakeEnvironmentManager",
        "MetaMathQAEnvironmentManager",
        "REGISTERED_MANAGERS",
        "SokobanEnvironmentManager",
        "WebShopEnvironmentManager",
    ],
    "asyncrollout.dropin.ragen.proxy": ["LLMAgentProxy"],
    "asyncrollout.dropin.ragen.states": ["AsyncEnvStateManager", "EnvStateManager", "EnvStatus"],
    "asyncrollout.projections": ["create_projection_function"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_HOME]  # noqa: PLE0604

if TYPE_CHECKING:
    from asyncrollout.dropin.ragen.collector import TrajectoryCollector as TrajectoryCollector
    from asyncrollout.dropin.ragen.container import EnvironmentContainer as EnvironmentContainer
    from asyncrollout.dropin.ragen.container import MultiProcessEnvironmentContainer as MultiProcessEnvironmentContainer
    from asyncrollout.dropin.ragen.context import ContextManager as ContextManager
    from asyncrollout.dropin.ragen.data import DataProto as DataProto
    from asyncrollout.dropin.ragen.envs import REGISTERED_ENV_CONFIGS as REGISTERED_ENV_CONFIGS
    from asyncrollout.dropin.ragen.envs import REGISTERED_ENVS as REGISTERED_ENVS
    from asyncrollout.dropin.ragen.envs import EnvConfig as EnvConfig
    from asyncrollout.dropin.ragen.envs import RagenEnv as RagenEnv
    from asyncrollout.dropin.ragen.factory import (
        create_single_environment_for_testing as create_single_environment_for_testing,
    )
    from asyncrollout.dropin.ragen.factory import get_supported_environment_types as get_supported_environment_types
    from asyncrollout.dropin.ragen.factory import make_environments as make_environments
    from asyncrollout.dropin.ragen.factory import validate_environment_config as validate_environment_config
    from asyncrollout.dropin.ragen.managers import REGISTERED_MANAGERS as REGISTERED_MANAGERS
    from asyncrollout.dropin.ragen.managers import BanditEnvironmentManager as BanditEnvironmentManager
    from asyncrollout.dropin.ragen.managers import CountdownEnvironmentManager as CountdownEnvironmentManager
    from asyncrollout.dropin.ragen.managers import EnvironmentManagerBase as EnvironmentManagerBase
    from asyncrollout.dropin.ragen.managers import FrozenLakeEnvironmentManager as FrozenLakeEnvironmentManager
    from asyncrollout.dropin.ragen.managers import MetaMathQAEnvironmentManager as MetaMathQAEnvironmentManager
    from asyncrollout.dropin.ragen.managers import SokobanEnvironmentManager as SokobanEnvironmentManager
    from asyncrollout.dropin.ragen.managers import WebShopEnvironmentManager as WebShopEnvironmentManager
    from asyncrollout.dropin.ragen.proxy import LLMAgentProxy as LLMAgentProxy
    from asyncrollout.dropin.ragen.states import AsyncEnvStateManager as AsyncEnvStateManager
    from asyncrollout.dropin.ragen.states import EnvStateManager as EnvStateManager
    from asyncrollout.dropin.ragen.states import EnvStatus as EnvStatus
    from asyncrollout.projections import create_projection_function as create_projection_function


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'asyncrollout.dropin.ragen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
