"""Anybody's env, with Gym's old interface or with Gymnasium's, as an env with tasks."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrollout.errors import UsageError


class GymCompatEnv:
    """The task goes to the env's `reset_task(task)`, to its `reset(task=...)`, or into the options of its reset.

    The seed goes to `reset(seed=...)` where the env takes it there, else to its method `seed()`.
    """

    def __init__(self, env: Any) -> None:
        for method in ("reset", "step"):
            if not callable(getattr(env, method, None)):
                raise UsageError(f"{type(env).__name__} has no {method}(): an env needs reset and step")
        self.env = env
        self._takes = reset_keywords(env)
        self._options: Mapping[str, Any] = {}

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
            raise UsageError(f"{type(self.env).__name__} has no horizon: it needs an attribute _max_episode_steps")
        return int(found)

    def get_current_task(self) -> Any:
        current_task = self._find("get_current_task")
        if current_task is None:
            raise UsageError(f"{type(self.env).__name__} has no get_current_task(), which oracle=True needs")
        return current_task()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._options = options or {}
        task = self._options.get("task")
        set_task = self._find("reset_task")
        if set_task is not None:
            if "seed" not in self._takes:
                self._seed(seed)
            elif task is None:
                self._begin(seed)  # the env draws its task from what a reset seeds
            set_task(task)
        elif task is not None and self._takes.isdisjoint(("task", "options")):
            raise UsageError(
                f"{type(self.env).__name__} takes no task: it has neither reset_task() nor reset(task=...)"
            )
        return self._begin(seed)

    def restart(self, seed: int) -> tuple[Any, dict[str, Any]]:
        before = self._task()
        began = self._begin(seed)
        if before is not None and not np.array_equal(before, self._task()):
            raise UsageError(
                f"{type(self.env).__name__} began another task ({self._task()!r:.100} after {before!r:.100}) in the "
                "middle of one: give a task to reset(), or let reset() without one keep the task"
            )
        return began

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
        """A reset of the env, with as much as it takes of the seed, the task and the options."""
        given = {"seed": seed, "options": self._options or None}
        if "task" in self._takes and self._find("reset_task") is None:
            given["task"] = self._options.get("task")
        if "seed" not in self._takes:
            self._seed(seed)
        return _observed(self.env.reset(**{key: value for key, value in given.items() if key in self._takes}))

    def _seed(self, seed: int | None) -> None:
        if seed is not None and callable(getattr(self.env, "seed", None)):
            self.env.seed(seed)

    def _task(self) -> Any:
        """What the env says of its task now, None where it says nothing."""
        current_task = self._find("get_current_task")
        return None if current_task is None else np.array(current_task())

    def _find(self, name: str) -> Any:
        """An attribute of the env or of what it wraps."""
        for owner in (self.env, getattr(self.env, "unwrapped", None)):
            if (found := getattr(owner, name, None)) is not None:
                return found
        return None


def reset_keywords(env: Any) -> frozenset[str]:
    """What an env's reset takes by name; a wrapper with `**kwargs` takes what the env inside it takes."""
    names: set[str] = set()
    while True:
        parameters = inspect.signature(env.reset).parameters.values()
        names |= {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
        if all(one.kind is not one.VAR_KEYWORD for one in parameters):
            return frozenset(names)
        inner = getattr(env, "env", None)
        if not callable(getattr(inner, "reset", None)):
            return frozenset(names | {"seed", "options"})  # as Gymnasium's
        env = inner


def _observed(result: Any) -> tuple[Any, dict[str, Any]]:
    """Gymnasium's reset returns an info, too."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    return result, {}
