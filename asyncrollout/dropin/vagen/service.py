"""VAGEN's service in this process: batches of environments by id, for synchronous callers."""

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from asyncrollout.dropin import portal
from asyncrollout.dropin.blocking import Blocking, Forwarded, blocking
from asyncrollout.dropin.portal import Opened
from asyncrollout.errors import UsageError
from asyncrollout.service import batches
from asyncrollout.service.config import BaseServiceConfig
from asyncrollout.service.served_env import ServedEnv


class _RegisteredEnvs(batches.EnvService):
    """Knows VAGEN's environments, and those of users in `REGISTERED_ENV`, besides all that are registered here."""

    explains_invalid = False  # observations are VAGEN's, unless `explain_invalid` is asked for

    def resolve(self, name: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        from asyncrollout.dropin.vagen.registered import find_theirs  # noqa: PLC0415 (it lists these services)

        return find_theirs(name, kwargs) if isinstance(name, str) else (name, kwargs)


class _VideoEnvs(_RegisteredEnvs):
    env_name = "video"


class _SokobanEnvs(_RegisteredEnvs):
    env_name = "sokoban"


class _FrozenLakeEnvs(_RegisteredEnvs):
    env_name = "frozenlake"


P = ParamSpec("P")
T = TypeVar("T")


class EnvService(Blocking[batches.EnvService]):
    """`asyncrollout.EnvService`, whose calls wait for their results; any thread may call.

    Its `max_workers` processes start with the first envs. `close_batch()` ends them, and so does the program's end.
    """

    max_workers = Forwarded[int]()
    environments = Forwarded[dict[Any, ServedEnv]]()
    env_configs = Forwarded[dict[Any, dict[str, Any]]]()
    failures = Forwarded[dict[Any, str]]()
    reset_batch = blocking(batches.EnvService.reset_batch)
    step_batch = blocking(batches.EnvService.step_batch)
    compute_reward_batch = blocking(batches.EnvService.compute_reward_batch)
    get_system_prompts_batch = blocking(batches.EnvService.get_system_prompts_batch)
    get_split_size_batch = blocking(batches.EnvService.get_split_size_batch)
    init_embedder_batch = blocking(batches.EnvService.init_embedder_batch)

    _kind: type[batches.EnvService] = _RegisteredEnvs

    def __init__(
        self, config: BaseServiceConfig | Mapping[str, Any] | None = None, *, max_workers: int | None = None
    ) -> None:
        self._target = self._kind(config, max_workers=max_workers)
        self._opened: Opened[batches.EnvService] | None = None
        self._opening = threading.Lock()

    def create_environments_batch(self, ids2configs: Mapping[Any, Mapping[str, Any]]) -> None:
        """Open envs, each from `{"env_name": ..., "env_config": {...}}`; one that cannot be made is in `failures`."""
        with self._opening:
            if self._opened is None and ids2configs:
                self._opened = Opened(self._target)
        self._run(self._target.create_environments_batch, ids2configs)

    def close_batch(self, env_ids: Iterable[Any] | None = None) -> None:
        """Close these envs; without ids, close all of them and end the processes, which the next envs restart."""
        if env_ids is not None:
            self._run(self._target.close_batch, env_ids)
            return
        with self._opening:
            if (opened := self._opened) is not None:
                self._opened, self._target = None, self._kind(max_workers=self.max_workers)
                opened.close()  # meanwhile other threads find no env, which is not an error of theirs

    def _run(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if (opened := self._opened) is None:  # nothing was created yet
            return portal.run(work, *args, **kwargs)
        return opened.run(work, *args, **kwargs)


class VideoEnvService(EnvService):
    """An `EnvService` for the `video` env."""

    _kind = _VideoEnvs


class SokobanService(EnvService):
    """An `EnvService` for VAGEN's `sokoban`."""

    _kind = _SokobanEnvs


class FrozenLakeService(EnvService):
    """An `EnvService` for VAGEN's `frozenlake`."""

    _kind = _FrozenLakeEnvs


@dataclass(frozen=True)
class SokobanServiceConfig(BaseServiceConfig):
    """The options of VAGEN's services for grid worlds. Rewards for descriptions of states are not available."""

    use_state_reward: bool = False
    top_strings_m: int = 1000
    top_strings_k: int = 5

    def __post_init__(self) -> None:
        if self.use_state_reward:
            raise UsageError("use_state_reward=True is not available: it needs VAGEN's LLM judge; set it to False")


@dataclass(frozen=True)
class FrozenLakeServiceConfig(SokobanServiceConfig):
    """`device` is where the judge's models would be."""

    device: Mapping[str, Any] = field(default_factory=lambda: {"clip": 0})


@dataclass(frozen=True)
class VideoEnvServiceConfig(BaseServiceConfig):
    """`device` and `preload_reward_model` are for models that Video-MTR does not load either."""

    preload_reward_model: Mapping[str, Any] = field(default_factory=lambda: {"clip": False})
    device: Mapping[str, Any] = field(default_factory=lambda: {"clip": 0})
