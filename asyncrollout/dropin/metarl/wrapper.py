"""Several episodes of a task as one, with the calls of Gym's old interface."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from asyncrollout.bamdp import Bamdp, Floats, TaskEnv
from asyncrollout.dropin.metarl.gym_compat import GymCompatEnv

Transition = tuple[Any, float, bool, dict[str, Any]]
"""Observation, reward, end, info."""


class VariBadWrapper:
    """A `Bamdp` whose reset takes the task and gives the observation, and whose step gives four values.

    Attributes that it has not are those of the env, as with Gym's own wrappers.
    """

    def __init__(self, env: Any, episodes_per_task: int, oracle: bool = False) -> None:
        self.bamdp = Bamdp(_as_task_env(env), episodes_per_task, oracle=oracle)
        self.env = env.env if isinstance(env, Bamdp) else env
        self.observation_space = self.bamdp.observation_space
        self.action_space = self.bamdp.action_space
        self.horizon_bamdp = self.bamdp.horizon_bamdp
        self.n_tasks = self.bamdp.n_tasks
        self._seeds = episode_seeds(None)

    @property
    def unwrapped(self) -> Any:
        return getattr(self.env, "unwrapped", self.env)

    @property
    def step_count_bamdp(self) -> int:
        return self.bamdp.step_count

    def seed(self, seed: int | None) -> None:
        """What all episodes from now on are drawn from."""
        self._seeds = episode_seeds(seed)
        self.action_space.seed(seed)

    def reset(self, task: Any = None, *, seed: int | None = None) -> Floats:
        """Begin a task; `seed` is this episode's alone."""
        seed = next(self._seeds) if seed is None else seed
        return self.bamdp.reset(seed=seed, options=None if task is None else {"task": task})[0]

    def step(self, action: Any) -> Transition:
        return as_transition(*self.bamdp.step(action))

    def close(self) -> None:
        self.bamdp.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("bamdp", "env"):  # asked for before they are there, as by copy
            raise AttributeError(name)
        return getattr(self.bamdp if hasattr(Bamdp, name) or name in vars(self.bamdp) else self.env, name)


def as_transition(
    observation: Any, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
) -> Transition:
    """As Gym had it: one end, and the info says whether the time limit caused it."""
    if truncated:
        info = {**info, "TimeLimit.truncated": True}
    return observation, reward, terminated or truncated, info


def episode_seeds(seed: int | None) -> Iterator[int]:
    """The seeds of an env's episodes, one after the other."""
    chance = np.random.default_rng(seed)
    while True:
        yield int(chance.integers(2**31))


def _as_task_env(env: Any) -> TaskEnv:
    if isinstance(env, Bamdp):
        return env.env
    if hasattr(env, "restart") and hasattr(env, "horizon"):
        own: TaskEnv = env
        return own
    return GymCompatEnv(env)
