"""Envs by the id that a configuration names: one, or many in processes."""

import re
from functools import partial
from typing import Any

from asyncrollout.dropin.metarl.parallel import POOL_OPTIONS, ParallelEnvManager
from asyncrollout.dropin.metarl.wrapper import VariBadWrapper
from asyncrollout.errors import UnknownEnvError
from asyncrollout.registry import EnvSpec, env_names, find_env, load_factory
from asyncrollout.validation import check_int, did_you_mean

_VERSION = re.compile(r"-v\d+$")


def make_env(
    env_id: str, episodes_per_task: int, seed: int | None = None, oracle: bool = False, **kwargs: Any
) -> VariBadWrapper:
    """An env that plays `episodes_per_task` episodes of each task; `kwargs` are the env's own."""
    env = _wrapped(_find(env_id), episodes_per_task, oracle, kwargs)
    env.seed(seed)
    return env


def make_parallel_env(
    env_id: str,
    episodes_per_task: int,
    num_workers: int,
    seed: int | None = None,
    oracle: bool = False,
    **kwargs: Any,
) -> ParallelEnvManager:
    """As many envs as workers; env i draws its episodes from `seed + i`.

    Among the `kwargs`, those that `ParallelEnvManager` knows are for it: processes, recover, and
    the time limits step_timeout and reset_timeout.
    """
    check_int("num_workers", num_workers, 1)
    options = {key: kwargs.pop(key) for key in POOL_OPTIONS if key in kwargs}
    make = partial(_wrapped, _find(env_id), episodes_per_task, oracle, kwargs)
    seeds = None if seed is None else [seed + rank for rank in range(num_workers)]
    return ParallelEnvManager([make] * num_workers, seeds=seeds, name=env_id, **options)


def _find(env_id: str) -> EnvSpec:
    """An id that is none of ours is one of Gymnasium's."""
    if env_id in env_names() or ":" in env_id:
        return find_env(env_id)
    import gymnasium  # noqa: PLC0415 (a fifth of a second, paid only by those who use it)

    names = {_VERSION.sub("", known) for known in gymnasium.registry}  # of which Gymnasium takes the newest version
    if env_id not in gymnasium.registry and env_id not in names:
        known = [*env_names(), *gymnasium.registry]
        raise UnknownEnvError(
            f"no env is called {env_id!r}, neither here nor in Gymnasium{did_you_mean(env_id, known)}"
        )
    return find_env(f"gymnasium:{env_id}")


def _wrapped(spec: EnvSpec, episodes_per_task: int, oracle: bool, kwargs: dict[str, Any]) -> VariBadWrapper:
    env = load_factory(spec.factory)(**{**spec.kwargs, **kwargs})
    return VariBadWrapper(env, episodes_per_task, oracle)
