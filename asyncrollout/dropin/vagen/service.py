"""VAGEN's service in this process: batches of environments by id, for synchronous callers."""

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from asyncrollout.dropin import portal
from asyncrollout.dropin.portal import Opened
from asyncrollout.service import batches
from asyncrollout.service.config import BaseServiceConfig
from asyncrollout.service.served_env import ServedEnv, Shown, Stepped

P = ParamSpec("P")
T = TypeVar("T")


class EnvService:
    """`asyncrollout.EnvService`, whose calls wait for their results; any thread may call.

    Its `max_workers` processes start with the first envs. `close_batch()` ends them, and so does the program's end.
    """

    _kind: type[batches.EnvService] = batches.EnvService

    def __init__(
        self, config: BaseServiceConfig | Mapping[str, Any] | None = None, *, max_workers: int | None = None
    ) -> None:
        self._service = self._kind(config, max_workers=max_workers)
        self._opened: Opened[batches.EnvService] | None = None
        self._opening = threading.Lock()

    @property
    def max_workers(self) -> int:
        return self._service.max_workers

    @property
    def environments(self) -> dict[Any, ServedEnv]:
        """What is open, by id."""
        return self._service.environments

    @property
    def env_configs(self) -> dict[Any, dict[str, Any]]:
        """What each env was made with, by id."""
        return self._service.env_configs

    @property
    def failures(self) -> dict[Any, str]:
        """Why an env is not there, by id."""
        return self._service.failures

    def create_environments_batch(self, ids2configs: Mapping[Any, Mapping[str, Any]]) -> None:
        """Open envs, each from `{"env_name": ..., "env_config": {...}}`; one that cannot be made is in `failures`."""
        with self._opening:
            if self._opened is None and ids2configs:
                self._opened = Opened(self._service)
        self._run(self._service.create_environments_batch, ids2configs)

    def reset_batch(self, ids2seeds: Mapping[Any, Any]) -> dict[Any, Shown]:
        """`(observation, info)` of each id, from a seed or `{"seed": ..., "extra_info": ...}`."""
        return self._run(self._service.reset_batch, ids2seeds)

    def step_batch(self, ids2actions: Mapping[Any, Any]) -> dict[Any, Stepped]:
        """`(observation, reward, done, info)` of each id, by a reply or `{"llm_raw_response": ..., "verbose": ...}`."""
        return self._run(self._service.step_batch, ids2actions)

    def compute_reward_batch(self, env_ids: Iterable[Any]) -> dict[Any, float]:
        """The sum of each env's rewards since its reset."""
        return self._run(self._service.compute_reward_batch, env_ids)

    def get_system_prompts_batch(self, env_ids: Iterable[Any]) -> dict[Any, str]:
        """The rules of each env."""
        return self._run(self._service.get_system_prompts_batch, env_ids)

    def get_split_size_batch(self, env_ids: Iterable[Any], split: str = "train") -> dict[Any, int]:
        """How many tasks a split of each env's data has."""
        return self._run(self._service.get_split_size_batch, env_ids, split)

    def init_embedder_batch(
        self, env_ids: Iterable[Any], service_url: str = "http://localhost:5000"
    ) -> dict[Any, dict[str, Any]]:
        """Connect each env to the service that compares pictures; `{"ok": ...}`, with an `error` if it is not."""
        return self._run(self._service.init_embedder_batch, env_ids, service_url)

    def close_batch(self, env_ids: Iterable[Any] | None = None) -> None:
        """Close these envs; without ids all of them, and the processes too, which the next envs start again."""
        if env_ids is not None:
            self._run(self._service.close_batch, env_ids)
            return
        with self._opening:
            if (opened := self._opened) is not None:
                self._opened, self._service = None, self._kind(max_workers=self.max_workers)
                opened.close()  # meanwhile other threads find no env, which is no error of theirs

    def _run(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if (opened := self._opened) is None:  # then no env is there to be found
            return portal.run(work, *args, **kwargs)
        return opened.run(work, *args, **kwargs)


class VideoEnvService(EnvService):
    """An `EnvService` for the `video` env."""

    _kind = batches.VideoEnvService
