"""A rollout played where its env is: agent and env in one process, in a worker or beside the learner."""

import traceback
from time import monotonic, thread_time
from typing import Any, NamedTuple

import numpy as np

from asyncrollout.dropin.metarl.chance import PlayedEnv
from asyncrollout.errors import EnvError, ProviderError, RolloutError
from asyncrollout.pool.wire.codec import detach
from asyncrollout.pool.worker.env_runner import run_now
from asyncrollout.protocols import Agent
from asyncrollout.types import Outcome

_MOST_BYTES = 8 << 20  # of observations in one part


class Work(NamedTuple):
    """The seconds of agent and env, without the way between them."""

    worked: float = 0.0
    """By the clock."""
    acted: float = 0.0
    """The agent's part of these."""
    computed: float = 0.0
    """On a processor; 0 where this is not known."""
    checked: float = 0.0
    """Beside these, to see whether acting changed the agent."""

    def plus(self, other: "Work") -> "Work":
        return Work(*(one + more for one, more in zip(self, other, strict=True)))


class Steps(NamedTuple):
    """Consecutive steps of a rollout as arrays."""

    seen: np.ndarray[Any, Any]
    actions: np.ndarray[Any, Any]
    rewards: np.ndarray[Any, Any]
    reached: list[bool | None]  # None where the env reports no goal
    work: Work


class AgentRollout:
    """One rollout. Each `play` continues it for some seconds."""

    def __init__(self, env: PlayedEnv, agent: Agent, seed: int, task: Any) -> None:
        self._env = env
        self._player = agent.open("", seed)
        self._steps = 0
        start, _ = env.reset(seed=seed, options=None if task is None else {"task": task})
        self.start = detach(start)
        self.outcome = Outcome(start)

    def play(self, seconds: float) -> Steps:
        seen: list[Any] = []
        actions, rewards, reached = [], [], []
        computed, acted, size = thread_time(), 0.0, 0
        now = began = monotonic()
        while not self.outcome.done and (not seen or (now < began + seconds and size < _MOST_BYTES)):
            action = self._act()
            acted += monotonic() - now
            actions.append(np.array(action).ravel())  # before the env can change it
            self.outcome = self._step(action)
            seen.append(np.array(self.outcome.observation))  # which the env may reuse
            rewards.append(self.outcome.reward)
            reached.append(self.outcome.info.get("is_goal_state"))
            size += seen[-1].nbytes
            now = monotonic()
        work = Work(now - began, acted, thread_time() - computed)
        return Steps(np.stack(seen), np.stack(actions), np.array(rewards), reached, work)

    def _act(self) -> Any:
        try:
            return run_now(self._player.act(self.outcome, tokens_left=None)).action
        except RolloutError:
            raise
        except Exception as error:
            failed = ProviderError(f"the policy raised {type(error).__name__}: {error}")
            failed.add_note("".join(traceback.format_exception(error)))
            raise failed from error

    def _step(self, action: Any) -> Outcome:
        try:
            outcome = Outcome(*self._env.step(action))
        except Exception as error:
            error.add_note(f"This was step {self._steps} of a rollout that was played where its env is.")
            raise
        if not np.isfinite(outcome.reward):
            raise EnvError(f"reward {outcome.reward} at step {self._steps}")
        self._steps += 1
        return outcome
