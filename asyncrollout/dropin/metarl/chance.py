"""The generators that everybody in a process shares, seeded for one moment of a rollout.

Agents and older envs draw from the global generators of Python, numpy and torch. Rollouts take turns in a process, so
each call is preceded by a seed that follows from the rollout and the turn: neither the neighbours, nor the number of
workers, nor the process in which a rollout is played makes a difference.
"""

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from asyncrollout.seeding import sampling_seed

_Fields = tuple[Any, float, bool, bool, dict[str, Any]]


def seed_generators(seed: int) -> None:
    """Python's, numpy's and, where it is loaded, torch's."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    for generator in _torch_generators():
        generator.manual_seed(seed)  # torch.manual_seed() walks the stack for each kind of device


@contextmanager
def kept_generators() -> Iterator[None]:
    """What is drawn and seeded in here does not show afterwards."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    of_torch = [(generator, generator.get_state()) for generator in _torch_generators()]
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        for generator, state in of_torch:
            generator.set_state(state)


def _torch_generators() -> list[Any]:
    """The processor's and those of the GPUs in use."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


class PlayedEnv(Protocol):
    """An env as rollouts play it."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]: ...

    def step(self, action: Any) -> _Fields: ...

    def close(self) -> None: ...


class SeededEnv:
    """An env that may draw from the global generators; what it draws follows from the episode's seed."""

    def __init__(self, env: PlayedEnv) -> None:
        self._env = env
        self._seed = self._calls = 0

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._seed, self._calls = seed or 0, 0
        self._seed_call()
        return self._env.reset(seed=seed, options=options)

    def step(self, action: Any) -> _Fields:
        self._seed_call()
        return self._env.step(action)

    def close(self) -> None:
        self._env.close()

    def _seed_call(self) -> None:
        seed_generators(sampling_seed(self._seed, "env", self._calls))
        self._calls += 1
