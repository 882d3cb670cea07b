"""asyncrollout: thousands of agent episodes as coroutines, for reinforcement learning and evaluation.

Names load when they are first used, so that a worker process does not pay for what it does not need.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

_MODULES = {
    "asyncrollout.errors": [
        "ClosedError",
        "EnvBuildError",
        "EnvCheckError",
        "EnvCrashed",
        "EnvDiverged",
        "EnvError",
        "EnvResourceError",
        "EnvTimeout",
        "MissingExtraError",
        "PoolError",
        "ProviderError",
        "RolloutError",
        "UnknownEnvError",
        "UsageError",
    ],
    "asyncrollout.policies.batched": ["BatchedPolicy"],
    "asyncrollout.policies.compose": ["cached", "fallback", "limited"],
    "asyncrollout.policies.embedded": ["RandomPolicy", "RecordedPolicy", "ScriptedPolicy", "SolverPolicy"],
    "asyncrollout.policies.openai": ["OpenAIPolicy"],
    "asyncrollout.pool.handle": ["EnvHandle"],
    "asyncrollout.pool.pool": ["EnvPool"],
    "asyncrollout.projections": ["create_projection_function"],
    "asyncrollout.protocols": ["Env", "Policy", "Snapshots", "TextInterface"],
    "asyncrollout.registry": ["EnvSpec", "env_names", "find_env", "register_env"],
    "asyncrollout.types": [
        "Durations",
        "Generation",
        "Observation",
        "Outcome",
        "Parsed",
        "PoolStats",
        "Request",
        "Sampling",
        "TextOptions",
        "Timings",
        "Usage",
        "WorkerStats",
    ],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("testing",)

__all__ = [*_HOME, *_SUBMODULES, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from asyncrollout import testing as testing
    from asyncrollout.errors import ClosedError as ClosedError
    from asyncrollout.errors import EnvBuildError as EnvBuildError
    from asyncrollout.errors import EnvCheckError as EnvCheckError
    from asyncrollout.errors import EnvCrashed as EnvCrashed
    from asyncrollout.errors import EnvDiverged as EnvDiverged
    from asyncrollout.errors import EnvError as EnvError
    from asyncrollout.errors import EnvResourceError as EnvResourceError
    from asyncrollout.errors import EnvTimeout as EnvTimeout
    from asyncrollout.errors import MissingExtraError as MissingExtraError
    from asyncrollout.errors import PoolError as PoolError
    from asyncrollout.errors import ProviderError as ProviderError
    from asyncrollout.errors import RolloutError as RolloutError
    from asyncrollout.errors import UnknownEnvError as UnknownEnvError
    from asyncrollout.errors import UsageError as UsageError
    from asyncrollout.policies.batched import BatchedPolicy as BatchedPolicy
    from asyncrollout.policies.compose import cached as cached
    from asyncrollout.policies.compose import fallback as fallback
    from asyncrollout.policies.compose import limited as limited
    from asyncrollout.policies.embedded import RandomPolicy as RandomPolicy
    from asyncrollout.policies.embedded import RecordedPolicy as RecordedPolicy
    from asyncrollout.policies.embedded import ScriptedPolicy as ScriptedPolicy
    from asyncrollout.policies.embedded import SolverPolicy as SolverPolicy
    from asyncrollout.policies.openai import OpenAIPolicy as OpenAIPolicy
    from asyncrollout.pool.handle import EnvHandle as EnvHandle
    from asyncrollout.pool.pool import EnvPool as EnvPool
    from asyncrollout.projections import create_projection_function as create_projection_function
    from asyncrollout.protocols import Env as Env
    from asyncrollout.protocols import Policy as Policy
    from asyncrollout.protocols import Snapshots as Snapshots
    from asyncrollout.protocols import TextInterface as TextInterface
    from asyncrollout.registry import EnvSpec as EnvSpec
    from asyncrollout.registry import env_names as env_names
    from asyncrollout.registry import find_env as find_env
    from asyncrollout.registry import register_env as register_env
    from asyncrollout.types import Durations as Durations
    from asyncrollout.types import Generation as Generation
    from asyncrollout.types import Observation as Observation
    from asyncrollout.types import Outcome as Outcome
    from asyncrollout.types import Parsed as Parsed
    from asyncrollout.types import PoolStats as PoolStats
    from asyncrollout.types import Request as Request
    from asyncrollout.types import Sampling as Sampling
    from asyncrollout.types import TextOptions as TextOptions
    from asyncrollout.types import Timings as Timings
    from asyncrollout.types import Usage as Usage
    from asyncrollout.types import WorkerStats as WorkerStats


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"asyncrollout.{name}")
    raise AttributeError(f"module 'asyncrollout' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
