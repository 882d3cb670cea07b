"""Rollouts that a worker plays by itself with a copy of the learner's agent, for a short time at each call."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import cloudpickle
import msgspec
import numpy as np

from asyncrollout.errors import EnvError, ProviderError, RolloutError, UsageError
from asyncrollout.pool.wire.codec import detach
from asyncrollout.pool.worker.env_runner import run_now
from asyncrollout.pool.worker.text import Fields
from asyncrollout.protocols import Agent
from asyncrollout.seeding import sampling_seed
from asyncrollout.types import Outcome

_MOST_BYTES = 8 << 20  # of observations in one reply


class AgentRef(msgspec.Struct, frozen=True):
    """Takes the place of the task in a reset: the agent's file, a new one for each collection, and the task."""

    path: str
    task: Any = None


class _PlayedEnv(Protocol):
    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]: ...

    def step(self, action: Any) -> Fields: ...


class WorkerRollout:
    """One rollout. Each `play` continues it for some seconds and returns the steps as arrays.

    Agents often draw from the global generators (torch's `sample()` does). Several rollouts take turns in a worker, so
    each has its own state of these generators: its neighbours, and the number of workers, make no difference.
    """

    def __init__(self, env: _PlayedEnv, ref: AgentRef, seed: int) -> None:
        self._env = env
        self._player = load_agent(ref.path).open("", seed)
        self._generators = _seeded_generators(sampling_seed(seed, "chance"))  # the env has the seed itself
        self._steps = 0
        with self._own_generators():
            start, _ = env.reset(seed=seed, options=None if ref.task is None else {"task": ref.task})
        self.start = detach(start)
        self._outcome = Outcome(start)

    def play(self, seconds: float) -> Fields:
        seen: list[Any] = []
        actions, rewards, reached = [], [], []
        end, size = monotonic() + seconds, 0
        with self._own_generators():
            while not self._outcome.done and (not seen or (monotonic() < end and size < _MOST_BYTES)):
                action = self._act()
                actions.append(np.array(action).ravel())  # before the env can change it
                self._outcome = Outcome(*self._step(action))
                seen.append(np.array(self._outcome.observation))  # which the env may reuse
                rewards.append(self._outcome.reward)
                reached.append(self._outcome.info.get("is_goal_state"))
                size += seen[-1].nbytes
        steps = {"seen": np.stack(seen), "actions": np.stack(actions), "rewards": np.array(rewards), "reached": reached}
        return steps, 0.0, self._outcome.terminated, self._outcome.truncated, {}

    def _act(self) -> Any:
        try:
            return run_now(self._player.act(self._outcome, tokens_left=None)).action
        except RolloutError:
            raise
        except Exception as error:  # not the env's failure, though it happens where the env is
            raise ProviderError(f"the policy raised {type(error).__name__}: {error}") from error

    def _step(self, action: Any) -> Fields:
        try:
            fields = self._env.step(action)
        except Exception as error:
            error.add_note(f"This was step {self._steps} of a rollout that the worker played by itself.")
            raise
        if not np.isfinite(fields[1]):
            raise EnvError(f"reward {fields[1]} at step {self._steps}")
        self._steps += 1
        return fields

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        """The global generators are this rollout's own in here."""
        outer = _generators()
        _set_generators(self._generators)
        try:
            yield
        finally:
            self._generators = _generators()
            _set_generators(outer)


@lru_cache(maxsize=1)  # of the latest collection
def load_agent(path: str) -> Agent:
    """The agent of a file, loaded once for all envs of this worker."""
    try:
        agent: Agent = cloudpickle.loads(Path(path).read_bytes())()
    except Exception as error:  # whatever loading it runs
        raise UsageError(
            f"acts_in_workers=True: the agent cannot be loaded in a worker process: {type(error).__name__}: {error}"
        ) from error
    return agent


def _generators() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()  # noqa: NPY002


def _set_generators(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    if states[2] is not None:
        sys.modules["torch"].set_rng_state(states[2])


def _seeded_generators(seed: int) -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.Generator().manual_seed(seed).get_state()
    return random.Random(seed).getstate(), np.random.RandomState(seed).get_state(), of_torch  # noqa: S311
