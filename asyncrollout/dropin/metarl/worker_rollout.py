"""Rollouts that a worker plays by itself with a copy of the learner's agent, for a short time at each call."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any

import cloudpickle
import msgspec

from asyncrollout.dropin.metarl.agent_rollout import AgentRollout
from asyncrollout.dropin.metarl.chance import PlayedEnv
from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.pool.worker.text import Fields
from asyncrollout.protocols import Agent

ASKED_FOR = "acts_in_workers=True: "
"""What errors begin with where nothing else may be done instead."""


class AgentRef(msgspec.Struct, frozen=True):
    """Takes the place of the task in a reset: the agent's file, a new one for each collection, and the task.

    With `is_checked`, an agent that acting changes is an error: what a copy learns or counts would be lost. With
    `only_loaded`, nothing is played.
    """

    path: str
    is_checked: bool = False
    only_loaded: bool = False
    task: Any = None


class WorkerRollout:
    """One rollout. Each `play` continues it for some seconds and returns the steps as arrays."""

    def __init__(self, env: PlayedEnv, ref: AgentRef, seed: int) -> None:
        self._loaded = load_agent(ref.path)
        self._is_checked = ref.is_checked
        began = monotonic()
        if ref.is_checked:
            self._loaded.remember()
        self._checked = monotonic() - began
        self._rollout = AgentRollout(env, self._loaded.agent, seed, ref.task)
        self.start = self._rollout.start

    def play(self, seconds: float) -> Fields:
        steps = self._rollout.play(seconds)
        outcome = self._rollout.outcome
        if self._is_checked and outcome.done:
            began = monotonic()
            self._loaded.check_unchanged()
            steps = steps._replace(work=steps.work._replace(checked=self._checked + monotonic() - began))
        fields = {**steps._asdict(), "work": [*steps.work]}
        return fields, 0.0, outcome.terminated, outcome.truncated, {}


@dataclass
class _LoadedAgent:
    """A copy of the agent: the function that made it, which holds the learner's own agent, and what it made."""

    make: Callable[[], Agent]
    agent: Agent
    content: bytes = b""

    def remember(self) -> None:
        self.content = self.content or cloudpickle.dumps(self.make)

    def check_unchanged(self) -> None:
        if cloudpickle.dumps(self.make) != self.content:
            raise ProviderError("acting changes the agent: what changes in a worker's copy would be lost")


@lru_cache(maxsize=1)  # of the latest collection
def load_agent(path: str) -> _LoadedAgent:
    """The agent of a file, loaded once for all envs of this worker."""
    try:
        make: Callable[[], Agent] = cloudpickle.loads(Path(path).read_bytes())
        agent = make()
    except Exception as error:  # whatever loading it runs
        raise UsageError(
            f"{ASKED_FOR}the agent cannot be loaded in a worker process: {type(error).__name__}: {error}"
        ) from error
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # workers would compete for the cores
    return _LoadedAgent(make, agent)
