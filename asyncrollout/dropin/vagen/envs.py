"""VAGEN's environments for code that runs them itself: one object, one episode at a time, in this process."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import anyio.to_thread

from asyncrollout.dropin.vagen.configs import (
    FrozenLakeConfig,
    FrozenLakeEnvConfig,
    SokobanConfig,
    SokobanEnvConfig,
    make_config,
)
from asyncrollout.dropin.vagen.games import CurrentGame, GameTurn, LegacyGame
from asyncrollout.errors import MissingExtraError, UsageError
from asyncrollout.images import IMAGE_MARK
from asyncrollout.validation import did_you_mean

Shown = tuple[dict[str, Any], dict[str, Any]]
Stepped = tuple[dict[str, Any], float, bool, dict[str, Any]]


class BaseEnv(ABC):
    """The environments of VAGEN's first version; derive from it for your own, and list them in `REGISTERED_ENV`."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> Shown:
        """`(obs, info)`; `obs` has `obs_str`, and its images in `multi_modal_data["<image>"]`."""

    @abstractmethod
    def step(self, llm_raw_response: str) -> Stepped:
        """`(obs, reward, done, info)` after a reply of the model."""

    @abstractmethod
    def system_prompt(self) -> str:
        """The rules, and the form of replies."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""

    def compute_reward(self) -> float:
        """What an episode earns beside the rewards of its steps."""
        return 0.0


class GridEnv(BaseEnv):
    """A grid world of VAGEN's first version. Images are Pillow's, which must be installed for them."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.game = LegacyGame(config)

    @property
    def total_reward(self) -> float:
        return self.game.total_reward

    def reset(self, seed: int | None = None) -> Shown:
        turn = self.game.reset(seed)
        return _shown(turn, "multi_modal_data"), turn.info

    def step(self, llm_raw_response: str) -> Stepped:
        turn = self.game.step(llm_raw_response)
        return _shown(turn, "multi_modal_data"), turn.reward, turn.done, turn.info

    def system_prompt(self) -> str:
        return self.game.system_prompt()

    def close(self) -> None:
        self.game.close()


class SokobanEnv(GridEnv):
    """`sokoban` of VAGEN's first version."""

    def __init__(self, config: SokobanEnvConfig) -> None:
        super().__init__(config)


class FrozenLakeEnv(GridEnv):
    """`frozenlake` of VAGEN's first version. A map comes from the seed of a reset."""

    def __init__(self, config: FrozenLakeEnvConfig) -> None:
        super().__init__(config)


class GymImageEnv:
    """A grid world of VAGEN as it is, with coroutines; it works in a thread."""

    config_cls: ClassVar[Any] = None

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.config = make_config(self.config_cls, type(self).__name__, dict(env_config))
        self.game = CurrentGame(self.config)

    async def reset(self, seed: int) -> Shown:
        turn = await anyio.to_thread.run_sync(self.game.reset, seed)
        return _shown(turn, "multi_modal_input"), turn.info

    async def step(self, action_str: str) -> Stepped:
        turn = await anyio.to_thread.run_sync(self.game.step, action_str)
        return _shown(turn, "multi_modal_input"), turn.reward, turn.done, turn.info

    async def system_prompt(self) -> dict[str, Any]:
        return {"obs_str": self.game.system_prompt()}

    def get_system_prompt(self) -> str:
        return self.game.system_prompt()

    async def close(self) -> None:
        self.game.close()


class Sokoban(GymImageEnv):
    """`Sokoban` of VAGEN as it is."""

    config_cls = SokobanConfig


class FrozenLake(GymImageEnv):
    """`FrozenLake` of VAGEN as it is."""

    config_cls = FrozenLakeConfig


_CURRENT: dict[str, Any] = {"Sokoban": Sokoban, "FrozenLake": FrozenLake}


def get_env_cls(name: str) -> Any:
    """The class of an environment by its name in VAGEN's `env_registry.yaml`, or as it was registered."""
    if name not in _CURRENT:
        raise UsageError(f"VAGEN's environment {name!r:.100} is not available{did_you_mean(name, _CURRENT)}")
    return _CURRENT[name]


def register_env(name: str, env_cls: Any) -> None:
    """Have `get_env_cls` find a class of your own."""
    _CURRENT[name] = env_cls


def list_envs() -> list[str]:
    return [*_CURRENT]


def _shown(turn: GameTurn, key: str) -> dict[str, Any]:
    if not turn.images:
        return {"obs_str": turn.text}
    try:
        from PIL import Image  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise MissingExtraError("an image needs Pillow, which is not installed: pip install pillow") from error
    return {"obs_str": turn.text, key: {IMAGE_MARK: [Image.fromarray(image) for image in turn.images]}}
