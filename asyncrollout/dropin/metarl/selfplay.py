"""Rollouts that a worker plays by itself, with a copy of the learner's agent: some steps at each call."""

import random
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import cloudpickle
import msgspec
import numpy as np

from asyncrollout.errors import EnvError, RolloutError
from asyncrollout.pool.hosted import run_now
from asyncrollout.protocols import Agent
from asyncrollout.types import Outcome

Fields = tuple[Any, float, bool, bool, dict[str, Any]]


class Ticket(msgspec.Struct, frozen=True):
    """Stands for the task in a reset: in which file the agent is, which version of it, and the task itself.

    `with_globals` asks for a look at the globals that the agent uses, too: they must not change either.
    """

    path: str
    version: str
    with_globals: bool = True
    task: Any = None


class _Env(Protocol):
    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]: ...

    def step(self, action: Any) -> Fields: ...


class SelfPlay:
    """One rollout. `play` takes a number of steps; its observation has them as arrays."""

    def __init__(self, env: _Env, copy: "AgentCopy", seed: int, task: Any) -> None:
        self._env = env
        self._copy = copy
        self._player = copy.agent.open("", seed)
        self._chance = _states_of_chance(seed)
        self._steps = 0
        with self._own_chance():
            self.start, _ = env.reset(seed=seed, options=None if task is None else {"task": task})
        self._outcome = Outcome(self.start)

    def play(self, count: int) -> Fields:
        seen: list[Any] = []
        actions, rewards, reached = [], [], []
        with self._own_chance():
            while len(seen) < count and not self._outcome.done:
                try:
                    move = run_now(self._player.act(self._outcome, tokens_left=None))
                except RolloutError:
                    raise
                except Exception as error:  # noqa: BLE001 (whatever an agent raises, the learner raises)
                    return None, 0.0, False, True, {"raised": [f"{type(error).__name__}: {error}", _trace(error)]}
                self._outcome = Outcome(*self._step(move.action))
                seen.append(self._outcome.observation)
                actions.append(np.ravel(move.action))
                rewards.append(self._outcome.reward)
                reached.append(self._outcome.info.get("is_goal_state"))
        told = {"seen": np.stack(seen), "actions": np.stack(actions), "rewards": np.array(rewards), "reached": reached}
        ended = self._outcome.done
        info = {"changed": True} if ended and self._copy.has_changed() else {}
        return told, 0.0, self._outcome.terminated, self._outcome.truncated, info

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
    def _own_chance(self) -> Iterator[None]:
        """The global generators are this rollout's own: neither its neighbours nor what was played before show."""
        outer = _chance()
        _set_chance(self._chance)
        try:
            yield
        finally:
            self._chance = _chance()
            _set_chance(outer)


class AgentCopy:
    """An agent that came here, and how it looked when it came."""

    def __init__(self, content: bytes, *, with_globals: bool) -> None:
        self._make = cloudpickle.loads(content)
        self.agent: Agent = self._make()
        self._modules = _own_modules(self._make.args) if with_globals else []
        self._came_as = self._looks()
        self._rollouts = 0

    def has_changed(self) -> bool:
        """Looks after the rollouts 1, 2, 4, 8, ... of a version: what acting changes, it changes early."""
        self._rollouts += 1
        return self._rollouts.bit_count() == 1 and self._looks() != self._came_as

    def _looks(self) -> bytes:
        """All that the agent holds, and the values of the globals that its own code uses."""
        for module in self._modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            content: bytes = cloudpickle.dumps(self._make)
        finally:
            for module in self._modules:
                cloudpickle.unregister_pickle_by_value(module)
        return content


_copies: dict[Ticket, AgentCopy] = {}  # the latest alone


def agent_copy(ticket: Ticket) -> AgentCopy:
    """The agent of a ticket, which is loaded once for all envs of this worker."""
    key = msgspec.structs.replace(ticket, task=None)
    if key not in _copies:
        _copies.clear()
        _copies[key] = AgentCopy(Path(ticket.path).read_bytes(), with_globals=ticket.with_globals)
    return _copies[key]


def _own_modules(objects: Iterable[Any]) -> list[ModuleType]:
    """The packages that the classes of these objects are from, but for those that are installed."""
    names = {kind.__module__.partition(".")[0] for one in objects for kind in type(one).__mro__}
    found = [sys.modules.get(name) for name in sorted(names - {"__main__", "asyncrollout"} - sys.stdlib_module_names)]
    return [module for module in found if module is not None and "site-packages" not in (module.__file__ or "")]


def _chance() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()  # noqa: NPY002


def _set_chance(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    if states[2] is not None:
        sys.modules["torch"].set_rng_state(states[2])


def _states_of_chance(seed: int) -> tuple[Any, ...]:
    """What the global generators are for a rollout of this seed."""
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.Generator().manual_seed(seed).get_state()
    return random.Random(seed).getstate(), np.random.RandomState(seed).get_state(), of_torch  # noqa: S311


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))
