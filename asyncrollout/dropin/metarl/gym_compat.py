"""Anybody's env, with Gym's old interface or with Gymnasium's, as an env with tasks."""

import inspect
from collections.abc import Mapping
from typing import Any

from asyncrollout.errors import UsageError


class GymCompatEnv:
    """The task goes to the env's `reset_task(task)`, to its `reset(task=...)`, or into the options of its reset."""

    def __init__(self, env: Any) -> None:
        for method in ("reset", "step"):
            if not callable(getattr(env, method, None)):
                raise UsageError(f"{type(env).__name__} has no {method}(): an env needs reset and step")
        self.env = env
        self._takes = inspect.signature(env.reset).parameters
        self._options: Mapping[str, Any] | None = None

    @property
    def action_space(self) -> Any:
        return self.env.action_space

    @property
    def observation_space(self) -> Any:
        return self.env.observation_space

    @property
    def n_tasks(self) -> int | None:
        found: int | None = self._find("n_tasks")
        return found

    @property
    def horizon(self) -> int:
        found = self._find("_max_episode_steps") or getattr(self._find("spec"), "max_episode_steps", None)
        if not found:
            raise UsageError(f"{type(self.env).__name__} tells no horizon: it needs an attribute _max_episode_steps")
        return int(found)

    def get_current_task(self) -> Any:
        tell = self._find("get_current_task")
        if tell is None:
            raise UsageError(f"{type(self.env).__name__} has no get_current_task(), which oracle=True needs")
        return tell()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._options = options
        task = (options or {}).get("task")
        set_task = self._find("reset_task")
        if set_task is not None:
            self._seed(seed)
            set_task(task)
        elif "task" in self._takes:
            self._seed(seed)
            return _observed(self.env.reset(task=task))
        elif task is not None and "options" not in self._takes:
            raise UsageError(
                f"{type(self.env).__name__} takes no task: it has neither reset_task() nor reset(task=...)"
            )
        return self._begin(seed)

    def restart(self, seed: int) -> tuple[Any, dict[str, Any]]:
        return self._begin(seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        if len(result) == 5:
            state, reward, terminated, truncated, info = result
        else:
            state, reward, ended, info = result
            truncated = bool(ended and info.get("TimeLimit.truncated", False))
            terminated = ended and not truncated
        reached = self._find("is_goal_state")
        if callable(reached):
            info = {**info, "is_goal_state": bool(reached())}
        return state, float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if callable(close):
            close()

    def _begin(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        if "options" in self._takes:
            return _observed(self.env.reset(seed=seed, options=self._options))
        self._seed(seed)
        return _observed(self.env.reset())

    def _seed(self, seed: int | None) -> None:
        if seed is not None and "options" not in self._takes and callable(getattr(self.env, "seed", None)):
            self.env.seed(seed)

    def _find(self, name: str) -> Any:
        """An attribute of the env or of what it wraps."""
        for owner in (self.env, getattr(self.env, "unwrapped", None)):
            if (found := getattr(owner, name, None)) is not None:
                return found
        return None


def _observed(result: Any) -> tuple[Any, dict[str, Any]]:
    """Gymnasium's reset tells an info, too."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    return result, {}
