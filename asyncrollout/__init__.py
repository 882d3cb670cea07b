"""asyncrollout: thousands of agent episodes as coroutines, for reinforcement learning and evaluation.

Names load when they are first used, so that a worker process does not pay for what it does not need.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

_MODULES = {
    "asyncrollout.agents.chat": ["ChatAgent"],
    "asyncrollout.agents.numeric": ["MarkovAgent", "MemoryAgent", "MemoryMarkovAgent", "RandomAgent", "Recalled"],
    "asyncrollout.arrays.batch": ["Batch"],
    "asyncrollout.errors": [
        "ClosedError",
        "ContextError",
        "EnvBuildError",
        "EnvCheckError",
        "EnvCrashed",
        "EnvDiverged",
        "EnvError",
        "EnvResourceError",
        "EnvTimeout",
        "ExhaustedError",
        "JournalError",
        "LimitError",
        "MissingExtraError",
        "PoolError",
        "ProviderError",
        "RolloutError",
        "ScoreError",
        "StalledError",
        "UnknownEnvError",
        "UsageError",
    ],
    "asyncrollout.policies.batched": ["BatchedPolicy"],
    "asyncrollout.policies.compose": ["cached", "fallback", "frozen", "limited"],
    "asyncrollout.policies.embedded": ["RandomPolicy", "RecordedPolicy", "ScriptedPolicy", "SolverPolicy"],
    "asyncrollout.policies.local": ["local_llm"],
    "asyncrollout.policies.openai": ["OpenAIPolicy"],
    "asyncrollout.pool.handle": ["EnvHandle"],
    "asyncrollout.pool.pool": ["EnvPool"],
    "asyncrollout.projections": ["create_projection_function"],
    "asyncrollout.protocols": ["Agent", "Env", "Player", "Policy", "Snapshots", "TextInterface"],
    "asyncrollout.registry": ["EnvSpec", "env_names", "find_env", "register_env"],
    "asyncrollout.rollout.episode": ["run_rollout"],
    "asyncrollout.rollout.group": ["Failures", "run_group"],
    "asyncrollout.rollouts.evaluation": ["Evaluation"],
    "asyncrollout.rollouts.facade": ["Rollouts"],
    "asyncrollout.rollouts.stats": ["RolloutsStats"],
    "asyncrollout.sampler.draws": ["Share", "Task"],
    "asyncrollout.sampler.ledger": ["Ledger"],
    "asyncrollout.service.batches": ["EnvService", "VideoEnvService"],
    "asyncrollout.service.config": ["BaseServiceConfig"],
    "asyncrollout.service.remote": ["RemoteEnvPool"],
    "asyncrollout.trajectories": ["Group", "Limits", "Move", "StopReason", "Trajectory", "Turn", "Verdict", "Video"],
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
_SUBMODULES = ("advantages", "filters", "rewards", "testing", "video")

__all__ = [*_HOME, *_SUBMODULES, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from asyncrollout import advantages as advantages
    from asyncrollout import filters as filters
    from asyncrollout import rewards as rewards
    from asyncrollout import testing as testing
    from asyncrollout import video as video
    from asyncrollout.agents.chat import ChatAgent as ChatAgent
    from asyncrollout.agents.numeric import MarkovAgent as MarkovAgent
    from asyncrollout.agents.numeric import MemoryAgent as MemoryAgent
    from asyncrollout.agents.numeric import MemoryMarkovAgent as MemoryMarkovAgent
    from asyncrollout.agents.numeric import RandomAgent as RandomAgent
    from asyncrollout.agents.numeric import Recalled as Recalled
    from asyncrollout.arrays.batch import Batch as Batch
    from asyncrollout.errors import ClosedError as ClosedError
    from asyncrollout.errors import ContextError as ContextError
    from asyncrollout.errors import EnvBuildError as EnvBuildError
    from asyncrollout.errors import EnvCheckError as EnvCheckError
    from asyncrollout.errors import EnvCrashed as EnvCrashed
    from asyncrollout.errors import EnvDiverged as EnvDiverged
    from asyncrollout.errors import EnvError as EnvError
    from asyncrollout.errors import EnvResourceError as EnvResourceError
    from asyncrollout.errors import EnvTimeout as EnvTimeout
    from asyncrollout.errors import ExhaustedError as ExhaustedError
    from asyncrollout.errors import JournalError as JournalError
    from asyncrollout.errors import LimitError as LimitError
    from asyncrollout.errors import MissingExtraError as MissingExtraError
    from asyncrollout.errors import PoolError as PoolError
    from asyncrollout.errors import ProviderError as ProviderError
    from asyncrollout.errors import RolloutError as RolloutError
    from asyncrollout.errors import ScoreError as ScoreError
    from asyncrollout.errors import StalledError as StalledError
    from asyncrollout.errors import UnknownEnvError as UnknownEnvError
    from asyncrollout.errors import UsageError as UsageError
    from asyncrollout.policies.batched import BatchedPolicy as BatchedPolicy
    from asyncrollout.policies.compose import cached as cached
    from asyncrollout.policies.compose import fallback as fallback
    from asyncrollout.policies.compose import frozen as frozen
    from asyncrollout.policies.compose import limited as limited
    from asyncrollout.policies.embedded import RandomPolicy as RandomPolicy
    from asyncrollout.policies.embedded import RecordedPolicy as RecordedPolicy
    from asyncrollout.policies.embedded import ScriptedPolicy as ScriptedPolicy
    from asyncrollout.policies.embedded import SolverPolicy as SolverPolicy
    from asyncrollout.policies.local import local_llm as local_llm
    from asyncrollout.policies.openai import OpenAIPolicy as OpenAIPolicy
    from asyncrollout.pool.handle import EnvHandle as EnvHandle
    from asyncrollout.pool.pool import EnvPool as EnvPool
    from asyncrollout.projections import create_projection_function as create_projection_function
    from asyncrollout.protocols import Agent as Agent
    from asyncrollout.protocols import Env as Env
    from asyncrollout.protocols import Player as Player
    from asyncrollout.protocols import Policy as Policy
    from asyncrollout.protocols import Snapshots as Snapshots
    from asyncrollout.protocols import TextInterface as TextInterface
    from asyncrollout.registry import EnvSpec as EnvSpec
    from asyncrollout.registry import env_names as env_names
    from asyncrollout.registry import find_env as find_env
    from asyncrollout.registry import register_env as register_env
    from asyncrollout.rollout.episode import run_rollout as run_rollout
    from asyncrollout.rollout.group import Failures as Failures
    from asyncrollout.rollout.group import run_group as run_group
    from asyncrollout.rollouts.evaluation import Evaluation as Evaluation
    from asyncrollout.rollouts.facade import Rollouts as Rollouts
    from asyncrollout.rollouts.stats import RolloutsStats as RolloutsStats
    from asyncrollout.sampler.draws import Share as Share
    from asyncrollout.sampler.draws import Task as Task
    from asyncrollout.sampler.ledger import Ledger as Ledger
    from asyncrollout.service.batches import EnvService as EnvService
    from asyncrollout.service.batches import VideoEnvService as VideoEnvService
    from asyncrollout.service.config import BaseServiceConfig as BaseServiceConfig
    from asyncrollout.service.remote import RemoteEnvPool as RemoteEnvPool
    from asyncrollout.trajectories import Group as Group
    from asyncrollout.trajectories import Limits as Limits
    from asyncrollout.trajectories import Move as Move
    from asyncrollout.trajectories import StopReason as StopReason
    from asyncrollout.trajectories import Trajectory as Trajectory
    from asyncrollout.trajectories import Turn as Turn
    from asyncrollout.trajectories import Verdict as Verdict
    from asyncrollout.trajectories import Video as Video
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
