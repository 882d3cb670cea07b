"""Batches of environments by id, with VAGEN's calls; an error is reported under the id of its env alone."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from asyncrollout import validation
from asyncrollout.concurrency import run_to_end, task_group
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.handle import EnvHandle, calls_of
from asyncrollout.pool.pool import EnvPool
from asyncrollout.service.config import BaseServiceConfig
from asyncrollout.service.served_env import ServedEnv, Shown, Stepped

log = get_logger(__name__)

T = TypeVar("T")

_REASONS_KEPT = 1024


class EnvService:
    """Envs of any kind, opened, reset, stepped and closed in batches; an async context manager.

    At most `max_workers` of them work at a time, each in one of as many processes. Nothing raises for a single env: its
    entry in the result has the error, and `failures` says why an env is missing. Results are JSON; `from_json` of
    `asyncrollout.service.observations` turns them into images and arrays again. With a `pool`, envs live in that one.
    """

    env_name: str | None = None
    """The only kind of env, if there is only one."""
    explains_invalid = True
    """Whether text envs say why a reply was invalid, unless their `env_config` has `explain_invalid`."""

    def __init__(
        self,
        config: BaseServiceConfig | Mapping[str, Any] | None = None,
        *,
        max_workers: int | None = None,
        pool: EnvPool | None = None,
    ) -> None:
        if config is not None and not hasattr(config, "get"):
            raise UsageError(
                f"config must be a BaseServiceConfig or a dict, such as {{'max_workers': 4}}, not {config!r:.100}"
            )
        if max_workers is None:
            max_workers = (config or BaseServiceConfig()).get("max_workers", BaseServiceConfig.max_workers)
        validation.check_int("max_workers", max_workers, 1)
        self.max_workers: int = max_workers
        self.environments: dict[Any, ServedEnv] = {}
        self.env_configs: dict[Any, dict[str, Any]] = {}
        self.failures: dict[Any, str] = {}
        self._slots = anyio.CapacityLimiter(max_workers)
        self._given_pool = pool
        self._pool = pool or EnvPool(max_workers)

    async def __aenter__(self) -> Self:
        if self._given_pool is None:
            await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._given_pool is None:  # its envs are closed with it
            await self._pool.__aexit__(kind, error, trace)
        else:
            await run_to_end(self.close_batch)  # closing an env never takes long
        self.environments.clear()
        self.env_configs.clear()

    async def create_environments_batch(self, ids2configs: Mapping[Any, Mapping[str, Any]]) -> None:
        """Open envs, each from `{"env_name": ..., "env_config": {...}}`; one of the same id is closed first.

        `env_config` is what `EnvPool.open` takes, and for text envs `explain_invalid`: false leaves out why a reply was
        invalid, with which the next observation begins. If an env cannot be built, `failures` has its id, with the
        reason.
        """
        await self._at_once(ids2configs, self._create, self.note_failure)

    async def _create(self, env_id: Any, config: Any) -> None:
        if env_id in self.environments:  # even if this fails, the old one must not answer for the new one
            await self.close_batch([env_id])
        if not isinstance(config, Mapping):
            raise UsageError(f"a configuration must be a dict with 'env_name' and 'env_config', not {config!r:.100}")
        name, kwargs = config.get("env_name", self.env_name), config.get("env_config") or {}
        if name is None:
            raise UsageError("its configuration has no 'env_name'")
        if self.env_name is not None and name != self.env_name:
            raise UsageError(f"Expected environment type {self.env_name!r}, got {name!r}")
        if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
            raise UsageError(f"env_config={kwargs!r:.100} is not a dict of the env's options")
        found, options = self.resolve(name, kwargs)
        explains, options = self._read_explains(found, options)
        env = ServedEnv(env_id, await self._open(found, options), kwargs, explains_invalid=explains)
        replaced, self.environments[env_id] = self.environments.get(env_id), env
        self.env_configs[env_id] = dict(kwargs)
        self.failures.pop(env_id, None)
        if replaced is not None:
            await replaced.handle.close()

    def resolve(self, name: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """What the pool opens for a name, and with which options; a service with names of its own overrides it."""
        return name, kwargs

    def _read_explains(self, name: Any, options: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
        """`explain_invalid`, which is for this service if the env is one of text; another may have it itself."""
        own = dict(options)
        if self._pool.find(name).text is None and not own.get("text"):
            return False, own
        explains = own.pop("explain_invalid", None)
        if explains is not None and not isinstance(explains, bool):
            raise UsageError(f"env_config: explain_invalid={explains!r:.100} is neither true nor false")
        return self.explains_invalid if explains is None else explains, own

    async def _open(self, name: Any, kwargs: Mapping[str, Any]) -> EnvHandle:
        """Open an env; one without an option `seed` gets the seed at each reset instead."""
        try:
            return await self._pool.open(name, **kwargs)
        except RolloutError as error:
            if "seed" not in kwargs or "'seed'" not in str(error):
                raise
        return await self._pool.open(name, **{key: value for key, value in kwargs.items() if key != "seed"})

    async def reset_batch(self, ids2seeds: Mapping[Any, Any]) -> dict[Any, Shown]:
        """Reset each env from a seed, or from `{"seed": ..., "extra_info": ...}`; `extra_info` is the env's task."""
        return await self._each(ids2seeds, ServedEnv.reset, lambda error: ({}, {"error": error}))

    async def step_batch(self, ids2actions: Mapping[Any, Any]) -> dict[Any, Stepped]:
        """Step each env by a reply, or by `{"llm_raw_response": ..., "verbose": ...}`."""
        return await self._each(ids2actions, ServedEnv.step, lambda error: ({}, 0.0, True, {"error": error}))

    async def compute_reward_batch(self, env_ids: Iterable[Any]) -> dict[Any, float]:
        """The sum of each env's rewards since its reset; 0 for a missing env."""
        envs = {env_id: self.environments.get(env_id) for env_id in _ids(env_ids)}
        return {env_id: 0.0 if env is None else env.reward for env_id, env in envs.items()}

    async def get_system_prompts_batch(self, env_ids: Iterable[Any]) -> dict[Any, str]:
        """The rules of each env; an empty text if it has none, or is missing."""
        return await self._each(dict.fromkeys(_ids(env_ids)), ServedEnv.system_prompt, lambda _: "")

    async def get_split_size_batch(self, env_ids: Iterable[Any], split: str = "train") -> dict[Any, int]:
        """How many tasks a split of each env's data has; 0 if it has no such split."""
        return await self._each(dict.fromkeys(_ids(env_ids), split), ServedEnv.split_size, lambda _: 0)

    async def init_embedder_batch(
        self, env_ids: Iterable[Any], service_url: str = "http://localhost:5000"
    ) -> dict[Any, dict[str, Any]]:
        """Connect each env to the service that compares images; `{"ok": ...}`, with an `error` if that fails."""
        asked = dict.fromkeys(_ids(env_ids), service_url)
        return await self._each(asked, ServedEnv.init_embedder, lambda error: {"ok": False, "error": error})

    async def close_batch(self, env_ids: Iterable[Any] | None = None) -> None:
        """Close these envs, or all; those that are not there are let be."""
        chosen = [*self.environments] if env_ids is None else [*_ids(env_ids)]
        async with task_group() as tasks:
            for env_id in chosen:
                env = self.environments.pop(env_id, None)
                self.env_configs.pop(env_id, None)
                if env is None:
                    log.info("env_not_found", env_id=env_id)
                else:
                    tasks.start_soon(env.handle.close)

    async def close_idle(self, since: float) -> list[Any]:
        """Close the envs that have done nothing since this time of the monotonic clock; their ids."""
        idle = [one.id for one in self.environments.values() if one.idle_since is not None and one.idle_since < since]
        for env_id in idle:
            self.note_failure(env_id, "it was closed because nobody used it for long")
        await self.close_batch(idle)
        return idle

    def note_failure(self, env_id: Any, reason: str) -> None:
        """Remember why an env is missing; the oldest reasons are forgotten."""
        log.warning("env_failed", env_id=env_id, error=reason)
        self.failures.pop(env_id, None)
        self.failures[env_id] = reason
        while len(self.failures) > _REASONS_KEPT:
            del self.failures[next(iter(self.failures))]

    def find(self, env_id: Any) -> ServedEnv:
        env = self.environments.get(env_id)
        if env is None:
            reason = self.failures.get(env_id)
            raise UsageError(f"Environment {env_id} not found" + (f": {reason}" if reason else ""))
        return env

    async def _each(
        self,
        ids2values: Mapping[Any, Any],
        work: Callable[[ServedEnv, Any], Awaitable[T]],
        failed: Callable[[str], T],
    ) -> dict[Any, T]:
        results: dict[Any, Any] = dict.fromkeys(ids2values)  # in the order of the request

        async def run(env_id: Any, value: Any) -> None:
            env = self.find(env_id)
            async with AsyncExitStack() as held:
                if calls_of(env.handle).binding.opening.spec.runs != "cpu":  # a worker runs one of those at a time
                    await held.enter_async_context(self._slots)
                held.enter_context(env.at_work())
                results[env_id] = await work(env, value)

        def note(env_id: Any, error: str) -> None:
            log.warning("env_failed", env_id=env_id, error=error)
            results[env_id] = failed(error)

        await self._at_once(ids2values, run, note)
        return results

    async def _at_once(
        self,
        ids2values: Mapping[Any, Any],
        work: Callable[[Any, Any], Awaitable[None]],
        failed: Callable[[Any, str], None],
    ) -> None:
        if not isinstance(ids2values, Mapping):
            raise UsageError(f"a batch must be a dict of ids and values, not {ids2values!r:.100}")

        async def run(env_id: Any, value: Any) -> None:
            try:
                await work(env_id, value)
            except RolloutError as error:
                failed(env_id, str(error))

        async with task_group() as tasks:
            for env_id, value in ids2values.items():
                tasks.start_soon(run, env_id, value)


def _ids(given: Iterable[Any]) -> Iterable[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):  # a text would be an id for each letter
        raise UsageError(f"ids must be a list, such as [{given!r:.100}], not {given!r:.100}")
    return given


class VideoEnvService(EnvService):
    """An `EnvService` for the `video` env."""

    env_name = "video"
