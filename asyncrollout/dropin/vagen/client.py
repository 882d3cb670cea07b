"""VAGEN's client of an environment server, here of `asyncrollout serve`, for synchronous callers."""

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import msgspec

from asyncrollout import validation
from asyncrollout.dropin.portal import Opened
from asyncrollout.dropin.vagen.configs import SokobanEnvConfig
from asyncrollout.dropin.vagen.registered import video_options
from asyncrollout.errors import PoolError, ProviderError, RolloutError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.policies.openai.bodies import ENCODINGS, read_raw, unpack
from asyncrollout.service.access import VARIABLE
from asyncrollout.service.observations import from_json, to_json
from asyncrollout.service.remote import checked_address
from asyncrollout.service.served_env import Shown, Stepped

log = get_logger(__name__)

_HEALTH_SECONDS = 10.0
_LARGEST_ANSWER = 1 << 28
_TOO_MANY, _SERVER_TROUBLE = 429, 500


class BatchEnvClient:
    """The calls of an `EnvService` at a server; what is wrong with one env is in its result, all else is raised.

    `timeout` bounds each call, in seconds. `token` defaults to $ASYNCROLLOUT_TOKEN. Any thread may call, so that
    `max_workers` bounds nothing. Pictures in observations are images of Pillow, which must be installed for them.
    """

    def __init__(self, base_url: str, timeout: float = 600, max_workers: int = 10, *, token: str | None = None) -> None:
        validation.check_seconds("timeout", timeout)
        self.base_url = checked_address(base_url)
        self.timeout = timeout
        self.max_workers = max_workers
        self.env_configs: dict[Any, Any] = {}
        token = os.environ.get(VARIABLE) if token is None else token
        self._opened = Opened(_session({} if token is None else {"Authorization": f"Bearer {token}"}))

    def check_server_health(self) -> dict[str, Any]:
        """What the server says of itself; `{"status": "error", "message": ...}` if it cannot be asked."""
        return self._opened.run(self._health)

    def wait_for_server(self, max_retries: int = 10, retry_delay: float = 1.0) -> bool:
        """Ask until the server is there, `retry_delay` seconds apart; whether it is."""
        validation.check_int("max_retries", max_retries, 1)
        return self._opened.run(self._wait_for_server, max_retries, retry_delay)

    def create_environments_batch(self, ids2configs: Mapping[Any, Any]) -> None:
        """Open envs. It is an error if none can be made; else those that are missing say why when they are used."""
        answer = self._post("environments", {"ids2configs": {key: _sent(one) for key, one in ids2configs.items()}})
        errors = answer.get("errors", {})  # VAGEN's own server reports none
        for env_id, config in ids2configs.items():
            if str(env_id) in errors:
                log.warning("env_failed", env_id=env_id, error=errors[str(env_id)])
            else:
                self.env_configs[env_id] = config

    def reset_batch(self, ids2seeds: Mapping[Any, Any]) -> dict[Any, Shown]:
        results = self._post("batch/reset", {"ids2seeds": ids2seeds})["results"]
        return {env_id: _shown(results[str(env_id)]) for env_id in ids2seeds}

    def step_batch(self, ids2actions: Mapping[Any, Any]) -> dict[Any, Stepped]:
        results = self._post("batch/step", {"ids2actions": ids2actions})["results"]
        return {env_id: _stepped(results[str(env_id)]) for env_id in ids2actions}

    def compute_reward_batch(self, env_ids: Iterable[Any]) -> dict[Any, float]:
        rewards = self._of_each("batch/reward", env_ids, "rewards")
        return {env_id: float(reward) for env_id, reward in rewards.items()}

    def get_system_prompts_batch(self, env_ids: Iterable[Any]) -> dict[Any, str]:
        return self._of_each("batch/system_prompt", env_ids, "system_prompts")

    def get_split_size_batch(self, env_ids: Iterable[Any], split: str = "train") -> dict[Any, int]:
        return self._of_each("batch/split_size", env_ids, "split_sizes", split=split)

    def init_embedder_batch(
        self, env_ids: Iterable[Any], service_url: str = "http://localhost:5000"
    ) -> dict[Any, dict[str, Any]]:
        return self._of_each("batch/embedder", env_ids, "statuses", service_url=service_url)

    def close_batch(self, env_ids: Iterable[Any] | None = None) -> None:
        """Close these envs, or all that this client opened."""
        chosen = [*(self.env_configs if env_ids is None else env_ids)]
        self._post("batch/close", {"env_ids": [*map(str, chosen)]})
        for env_id in chosen:
            self.env_configs.pop(env_id, None)

    def reset(self, env_id: Any, seed: Any = None) -> Shown:
        return self.reset_batch({env_id: seed})[env_id]

    def step(self, env_id: Any, action: Any) -> Stepped:
        return self.step_batch({env_id: action})[env_id]

    def compute_reward(self, env_id: Any) -> float:
        return self.compute_reward_batch([env_id])[env_id]

    def get_system_prompt(self, env_id: Any) -> str:
        return self.get_system_prompts_batch([env_id])[env_id]

    def close(self, env_id: Any) -> None:
        self.close_batch([env_id])

    def _of_each(self, path: str, env_ids: Iterable[Any], result: str, **more: Any) -> dict[Any, Any]:
        chosen = [*env_ids]
        found = self._post(path, {"env_ids": [*map(str, chosen)], **more})[result]
        return {env_id: found[str(env_id)] for env_id in chosen}

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._opened.run(self._ask, "POST", path, self.timeout, msgspec.json.encode(to_json(body)))

    async def _ask(self, method: str, path: str, seconds: float, body: bytes | None = None) -> Any:
        headers = {} if body is None else {"Content-Type": "application/json"}
        url = f"{self.base_url}/{path}"
        try:
            with anyio.fail_after(seconds):
                async with self._opened.value.request(method, url, data=body, headers=headers) as response:
                    raw = await read_raw(response, _LARGEST_ANSWER)
                found = msgspec.json.decode(
                    await unpack(raw, response.headers.get("Content-Encoding"), _LARGEST_ANSWER)
                )
        except TimeoutError as error:
            raise PoolError(f"{url} gave no answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError, msgspec.DecodeError, ProviderError) as error:
            raise PoolError(f"{url} cannot be asked: {str(error) or type(error).__name__}") from error
        if response.ok and isinstance(found, dict):
            return found
        reason = (
            found["error"] if isinstance(found, dict) and "error" in found else "no answer of an environment server"
        )
        is_busy = response.status >= _SERVER_TROUBLE or response.status == _TOO_MANY
        raise (PoolError if is_busy else UsageError)(f"{url}: status {response.status}: {reason}")

    async def _health(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = await self._ask("GET", "health", min(self.timeout, _HEALTH_SECONDS))
        except RolloutError as error:
            return {"status": "error", "message": str(error)}
        return found

    async def _wait_for_server(self, max_retries: int, retry_delay: float) -> bool:
        for attempt in range(1, max_retries + 1):
            health = await self._health()
            if health.get("status") == "ok":
                return True
            why = health.get("message", "")
            log.info("waiting_for_server", url=self.base_url, attempt=attempt, of=max_retries, why=why)
            if attempt < max_retries:
                await anyio.sleep(retry_delay)
        return False


@asynccontextmanager
async def _session(headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientSession]:
    unbounded = aiohttp.ClientTimeout(total=None)  # each call has its own bound
    headers = {"Accept-Encoding": ENCODINGS, **headers}
    async with aiohttp.ClientSession(headers=headers, timeout=unbounded, auto_decompress=False) as session:
        yield session


def _sent(config: Any) -> Any:
    """A configuration as a server reads it: with the variables of this process, and clearly VAGEN's."""
    env_config = config.get("env_config") or {} if isinstance(config, Mapping) else None
    if not isinstance(env_config, Mapping):
        return config  # which the server refuses
    match config.get("env_name"):
        case "sokoban":  # which is also the name of another env
            return {**config, "env_config": {"render_mode": SokobanEnvConfig.render_mode, **env_config}}
        case "video":
            return {**config, "env_config": video_options(env_config)}
    return config


def _shown(result: Any) -> Shown:
    observation, info = from_json(result)
    return observation, info


def _stepped(result: Any) -> Stepped:
    observation, reward, done, info = from_json(result)
    return observation, float(reward), done, info  # infinity and NaN come as texts
