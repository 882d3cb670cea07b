"""A small model of a parallel state manager on ProcessPoolExecutor, as one is described and built for RAGEN.

Every worker holds every environment, each step sends an environment's whole history there and back, and any worker may
get it. (So its results depend on chance: only its speed is of interest here.)
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from asyncrollout.dropin.ragen.envs import EnvConfig, SokobanEnv

Cache = dict[str, Any]

_envs: dict[int, SokobanEnv] = {}
_episode: dict[int, int] = {}  # of each env in this worker


def start_worker(count: int, config: dict[str, Any], seeds: list[int]) -> None:
    for env_id in range(count):
        _envs[env_id] = SokobanEnv(EnvConfig(**config))
        _envs[env_id].reset(seed=seeds[env_id])


def step_env(env_id: int, seed: int, actions: list[str], cache: Cache) -> Cache:
    """A turn on this worker's own copy of the environment."""
    env = _envs[env_id]
    if _episode.setdefault(env_id, seed) != seed:
        env.reset(seed=seed)
        _episode[env_id] = seed
    numbers = {name.lower(): number for number, name in (env.config.action_lookup or {}).items()}
    total, info, played, done = 0.0, {}, [], False
    for action in (numbers[name.lower()] for name in actions if name.lower() in numbers):
        _, reward, done, reported = env.step(action)
        total += reward
        info.update(reported)
        played.append(action)
        if done:
            env.reset(seed=seed)
            break
    cache["history"][-1].update(actions=played, reward=total, info=info, llm_response="", llm_raw_response="")
    cache["history"].append({"state": env.render(), "actions_left": 0})
    return cache


class ExecutorManager:
    """`rebuilt` makes the pool anew at each reset, which is what brings all copies to the same start."""

    def __init__(self, count: int, group_size: int, workers: int, config: dict[str, Any], *, rebuilt: bool) -> None:
        self._count, self._group_size, self._workers, self._config = count, group_size, workers, config
        self._rebuilt = rebuilt
        self._pool: ProcessPoolExecutor | None = None
        self._own = [SokobanEnv(EnvConfig(**config)) for _ in range(count)]

    def reset(self, seed: int) -> None:
        self._seeds = [seed + env_id // self._group_size for env_id in range(self._count)]
        states = [env.reset(seed=own) for env, own in zip(self._own, self._seeds, strict=True)]
        self._caches = [
            {"env_id": env_id, "history": [{"state": state, "actions_left": 0}]} for env_id, state in enumerate(states)
        ]
        if self._rebuilt:
            self.close()
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._workers,
                multiprocessing.get_context("spawn"),
                initializer=start_worker,
                initargs=(self._count, self._config, self._seeds),
            )

    def step(self, actions: list[list[str]]) -> None:
        assert self._pool is not None
        calls = [
            self._pool.submit(step_env, env_id, self._seeds[env_id], chosen, self._caches[env_id])
            for env_id, chosen in enumerate(actions)
        ]
        self._caches = [call.result() for call in calls]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
