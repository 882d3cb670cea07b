"""VAGEN's environments in a pool: each in a worker process, its replies and observations passed on as they are."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.vagen.configs import make_config
from asyncrollout.dropin.vagen.envs import GridEnv, GymImageEnv
from asyncrollout.dropin.vagen.games import GridGame
from asyncrollout.errors import EnvError, UsageError
from asyncrollout.images import IMAGE_MARK, is_pil
from asyncrollout.service.served_env import FINAL_REWARD
from asyncrollout.types import Observation

Outcome = tuple[Observation, float, bool, bool, dict[str, Any]]


class HostedGame:
    """One of the shipped grid worlds with VAGEN's rules; `env_config` are VAGEN's options."""

    plays_by_chance = True  # on slippery ice
    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}
    render_mode = "rgb_array"

    def __init__(self, *, env_name: str, env_cls: Any, config_cls: Any, **env_config: Any) -> None:
        game = env_cls(env_config) if issubclass(env_cls, GymImageEnv) else None
        self._game: GridGame = game.game if game else env_cls(make_config(config_cls, env_name, env_config)).game

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        options = options or {}
        if options.get("task") is not None:
            raise UsageError(f"a reset takes a seed alone, not a task: {options['task']!r:.100}")
        turn = self._game.reset(seed, options.get("member", 0))
        return Observation(turn.text, turn.images), {FINAL_REWARD: 0.0}

    def step(self, action: str) -> Outcome:
        turn = self._game.step(action)
        return Observation(turn.text, turn.images), turn.reward, turn.done, False, {**turn.info, FINAL_REWARD: 0.0}

    def system_prompt(self) -> str:
        return self._game.system_prompt()

    def render(self) -> NDArray[np.uint8]:
        return self._game.render()


class HostedBaseEnv:
    """An environment of yours, as VAGEN's first version has them: `env_cls(config_cls(**env_config))`."""

    def __init__(self, *, env_name: str, env_cls: Any, config_cls: Any, **env_config: Any) -> None:
        self._name = env_name
        self._env = env_cls(make_config(config_cls, env_name, env_config))
        if inspect.iscoroutinefunction(self._env.step):
            raise UsageError(
                f"{env_name}: {env_cls.__name__}.step is a coroutine function: an environment in REGISTERED_ENV has "
                "plain methods; register it with asyncrollout.register_env instead"
            )

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        task = (options or {}).get("task")
        if task is not None and "extra_info" not in inspect.signature(self._env.reset).parameters:
            raise UsageError(f"{self._name}: its reset takes no extra_info: {task!r:.100}")
        more = {} if task is None else {"extra_info": task}
        observation, info = self._env.reset(seed=seed, **more)
        return self._seen(observation), {**info, FINAL_REWARD: float(self._env.compute_reward())}

    def step(self, action: str) -> Outcome:
        observation, reward, done, info = self._env.step(action)
        info = {**info, FINAL_REWARD: float(self._env.compute_reward())}
        return self._seen(observation), float(reward), bool(done), False, info

    def system_prompt(self) -> str:
        return str(self._env.system_prompt())

    def close(self) -> None:
        self._env.close()

    def _seen(self, observation: Any) -> Observation:
        text = observation.get("obs_str") if isinstance(observation, Mapping) else None
        if not isinstance(text, str):
            raise EnvError(f"{self._name}: an observation must be a dict with 'obs_str', not {observation!r:.100}")
        given = observation.get("multi_modal_data") or {}
        others = [key for key in given if key != IMAGE_MARK]
        if others:
            raise EnvError(f"{self._name}: multi_modal_data has {others[0]!r}: only {IMAGE_MARK!r} is available")
        return Observation(text, tuple(map(_array, given.get(IMAGE_MARK) or ())))


def _array(image: Any) -> Any:
    return np.asarray(image.convert("RGB")) if is_pil(image) else image


def host_class(env_cls: Any) -> str:
    """The import path of what hosts such an environment."""
    kind = HostedGame if isinstance(env_cls, type) and issubclass(env_cls, GridEnv | GymImageEnv) else HostedBaseEnv
    return f"{__name__}:{kind.__name__}"
