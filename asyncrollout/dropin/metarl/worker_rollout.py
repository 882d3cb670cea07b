"""Rollouts that a worker plays by itself, with a copy of the learner's agent: for a while at each call."""

import hashlib
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Protocol

import cloudpickle
import msgspec
import numpy as np

from asyncrollout.errors import EnvError, RolloutError
from asyncrollout.pool.wire.codec import detach
from asyncrollout.pool.worker.env_runner import run_now
from asyncrollout.pool.worker.text import Fields
from asyncrollout.protocols import Agent
from asyncrollout.seeding import sampling_seed
from asyncrollout.types import Outcome

_MOST_BYTES = 8 << 20  # of observations in one reply


class AgentRef(msgspec.Struct, frozen=True):
    """Stands for the task in a reset: in which file the agent is, another one for each collection, and the task.

    If somebody vouches for the copies, nobody compares what they do. So they get global generators of their own, and it
    is noticed here if acting changes them.
    """

    path: str
    vouched: bool
    task: Any = None


class Trouble(msgspec.Struct, frozen=True):
    """Why a rollout was not played to its end here: the agent has to stay where it was, or raised an error."""

    kind: Literal["stays", "raised"]
    text: str
    trace: str = ""


class _PlayedEnv(Protocol):
    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]: ...

    def step(self, action: Any) -> Fields: ...


class WorkerRollout:
    """One rollout. `play` goes on with it for some seconds; its observation has the steps as arrays."""

    def __init__(self, env: _PlayedEnv, copy: "AgentCopy", seed: int, task: Any) -> None:
        self._env = env
        self._copy = copy
        self._player = copy.agent.open("", seed)
        self._chance: tuple[Any, ...] | None = None
        if copy.vouched:  # not of the env's own seed, or the agent would draw what the env drew
            self._chance = _states_of_chance(sampling_seed(seed, "chance"))
        self._steps = 0
        with self._own_chance():
            start, _ = env.reset(seed=seed, options=None if task is None else {"task": task})
        self.start = detach(start)
        self._outcome = Outcome(start)

    def play(self, seconds: float) -> Fields:
        seen: list[Any] = []
        actions, rewards, reached = [], [], []
        end, size = monotonic() + seconds, 0
        with self._own_chance():
            while not self._outcome.done and (not seen or (monotonic() < end and size < _MOST_BYTES)):
                try:
                    move = run_now(self._player.act(self._outcome, tokens_left=None))
                except RolloutError:
                    raise
                except Exception as error:  # noqa: BLE001 (whatever an agent raises, the learner raises)
                    trace = "".join(traceback.format_exception(error))
                    return _ended(Trouble("raised", f"{type(error).__name__}: {error}", trace))
                actions.append(np.array(move.action).ravel())  # before the env can change it
                self._outcome = Outcome(*self._step(move.action))
                seen.append(np.array(self._outcome.observation))  # which the env may use again
                rewards.append(self._outcome.reward)
                reached.append(self._outcome.info.get("is_goal_state"))
                size += seen[-1].nbytes
        if self._outcome.done and self._copy.has_changed():
            return _ended(Trouble("stays", "acting changes it, which its copies in worker processes cannot share"))
        told = {"seen": np.stack(seen), "actions": np.stack(actions), "rewards": np.array(rewards), "reached": reached}
        return told, 0.0, self._outcome.terminated, self._outcome.truncated, {}

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
        if self._chance is None:
            yield
            return
        outer = _chance()
        _set_chance(self._chance)
        try:
            yield
        finally:
            self._chance = _chance()
            _set_chance(outer)


class AgentCopy:
    """An agent that came here, and, if somebody vouches for it, how it looked when it came."""

    def __init__(self, content: bytes, *, vouched: bool) -> None:
        self.vouched = vouched
        self._make = cloudpickle.loads(content)
        self.agent: Agent = self._make()
        self._came_as = self._digest() if vouched else None
        self._rollouts = 0

    def has_changed(self) -> bool:
        """Looks after the rollouts 1, 2, 4, 8, ...: what acting changes, it mostly changes early."""
        self._rollouts += 1
        return self._came_as is not None and self._rollouts.bit_count() == 1 and self._digest() != self._came_as

    def _digest(self) -> bytes:
        return hashlib.sha256(cloudpickle.dumps(self._make)).digest()


_copies: dict[str, AgentCopy] = {}  # the latest alone


def agent_copy(ticket: AgentRef) -> AgentCopy:
    """The agent of a ticket, which is loaded once for all envs of this worker."""
    if ticket.path not in _copies:
        _copies.clear()
        _copies[ticket.path] = AgentCopy(Path(ticket.path).read_bytes(), vouched=ticket.vouched)
    return _copies[ticket.path]


def _ended(trouble: Trouble) -> Fields:
    return None, 0.0, False, True, {"trouble": trouble}


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
