"""VAGEN's service in this process: batches of environments by id, for synchronous callers."""

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from asyncrollout.dropin import portal
from asyncrollout.dropin.blocking import Blocking, Forwarded, blocking
from asyncrollout.dropin.portal import Opened
from asyncrollout.service import batches
from asyncrollout.service.config import BaseServiceConfig
from asyncrollout.service.served_env import ServedEnv

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

    _kind: type[batches.EnvService] = batches.EnvService

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

    _kind = batches.VideoEnvService
