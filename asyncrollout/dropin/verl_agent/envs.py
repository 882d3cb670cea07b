"""Our Sokoban and WebShop with the actions, rewards and infos of verl-agent's, where they live: in a worker."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.verl_agent.projections import ACTIONS, STILL
from asyncrollout.pool.worker.env_factory import make_env
from asyncrollout.registry import find_env

SYMBOLS = "#_O√XPS"
"""Of cells: wall, floor, target, box on a target, box, player, player on a target."""

SEARCH = "search[<your query>]"

_PENALTY_OF_STILL = -0.1
_WON = 10.0


class VerlAgentSokoban:
    """Actions 1 to 4 move; 0 stands still, which costs as much and takes no step.

    With `mode="rgb_array"` observations are pictures of 16 pixels for each cell, else text.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        kwargs = dict(given)
        self._mode = kwargs.pop("mode")
        self._env: Any = make_env(find_env("sokoban").with_kwargs(**kwargs))
        self._env.limit_actions(self._env.max_steps)  # rooms that can be solved in an episode
        self.config = SimpleNamespace(action_lookup=ACTIONS)

    def reset(self, seed: int | None = None) -> tuple[None, dict[str, Any]]:
        self._env.reset(seed=seed)
        return None, {"won": False}

    def step(self, action: int) -> tuple[None, float, bool, dict[str, Any]]:
        if action == STILL:
            return None, _PENALTY_OF_STILL, False, {"action_is_effective": False, "won": False}
        _, reward, terminated, truncated, info = self._env.step(action)
        facts = {"action_is_effective": info["action_is_effective"], "won": info["success"]}
        return None, reward, terminated or truncated, facts

    def render(self, mode: str = "") -> Any:
        if (mode or self._mode) == "rgb_array":
            return _reduced(self._env.render())
        return "\n".join("".join(f" {SYMBOLS[code]} \t" for code in row) for row in self._env.cells.tolist())


class VerlAgentWebshop:
    """Observations are pages without the instruction, which is the `task` in the first info.

    Buying exactly what was asked for earns 10, anything else 0; `task_score` has WebShop's own score.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self._env: Any = make_env(find_env("webshop").with_kwargs(**given))

    def reset(self, seed: int | None = None) -> tuple[None, dict[str, Any]]:
        self._env.reset(seed=seed)
        return None, {"won": False, "task": self._env.goal.instruction, "available_actions": self._available()}

    def step(self, action: str) -> tuple[None, float, bool, dict[str, Any]]:
        _, _, terminated, truncated, info = self._env.step(action)
        won = bool(terminated and info["success"])
        facts = {"won": won, "task_score": float(info.get("score", 0.0)), "available_actions": self._available()}
        return None, _WON if won else 0.0, terminated or truncated, facts

    def render(self, mode: str = "") -> str:  # noqa: ARG002 (a shop has no pictures)
        return str(self._env.page.text())

    def get_all_actions(self) -> list[str]:
        return [SEARCH if action.startswith("search[") else action for action in self._env.available_actions()]

    def close(self) -> None:
        self._env.close()

    def _available(self) -> dict[str, Any]:
        """As WebShop itself says it."""
        actions = self._env.available_actions()
        buttons = [action.removeprefix("click[").removesuffix("]") for action in actions if action.startswith("click[")]
        return {"has_search_bar": len(buttons) < len(actions), "clickables": buttons}


def _reduced(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """From 24 pixels for each cell to 16: each new pixel is the mean of the area that it covers."""
    height, width, colours = picture.shape
    doubled = picture.repeat(2, axis=0).repeat(2, axis=1)
    areas = doubled.reshape(height * 2 // 3, 3, width * 2 // 3, 3, colours)
    reduced: NDArray[np.uint8] = areas.mean(axis=(1, 3)).round().astype(np.uint8)
    return reduced
