"""An agent that is sent to the worker processes, and the rollouts that these play with it by themselves."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.lowlevel
import cloudpickle
import msgspec
import numpy as np

from asyncrollout.dropin.metarl.collecting import CollectedRollout, RolloutStart
from asyncrollout.dropin.metarl.worker_rollout import AgentRef
from asyncrollout.errors import EnvDiverged, ProviderError
from asyncrollout.pool.worker.env_runner import run_now
from asyncrollout.protocols import Agent, Playable
from asyncrollout.types import Outcome

_CALL_SECONDS = 0.05  # that a call plays: much beside the way to a worker, little beside a person's patience
_SHARE_OF_LIMIT = 0.1  # and of the time limit of a step
_TRIES = 3
_LARGEST = 32 << 20  # bytes of an agent that is sent without being asked for
_WITHOUT_PAUSE = 100  # answers, after which other tasks have their turn


class StaysError(Exception):
    """An agent cannot be sent to other processes; the text says why."""


@contextmanager
def ship_agent(make_agent: Callable[[], Agent], *, vouched: bool) -> Iterator[AgentRef]:
    """A file with the agent, for workers to read."""
    try:
        content = cloudpickle.dumps(make_agent)
    except Exception as error:  # pickle raises all sorts
        raise StaysError(f"it cannot be sent to a worker process: {error}") from error
    if len(content) > _LARGEST and not vouched:
        raise StaysError(f"it has {len(content) >> 20} MB, which every worker process would need, too")
    try:
        directory = tempfile.TemporaryDirectory(prefix="asyncrollout-agent-")
    except OSError as error:
        raise StaysError(f"there is no place for its file: {error}") from error
    with directory as name:
        path = Path(name) / "agent"
        try:
            path.write_bytes(content)
        except OSError as error:
            raise StaysError(f"its file cannot be written: {error}") from error
        yield AgentRef(str(path), vouched)


async def play_alone(
    ticket: AgentRef, step_timeout: float, own: Agent | None, env: Playable, play: RolloutStart
) -> CollectedRollout:
    """A rollout that the env's worker plays with its copy of the agent, some time at each call.

    If it is given, `own`, from which the copy was made, is asked the same, and must answer the same.
    """
    seconds = min(_CALL_SECONDS, _SHARE_OF_LIMIT * step_timeout)
    for _ in range(_TRIES - 1):
        try:
            return await _play_once(ticket, seconds, own, env, play)
        except EnvDiverged:  # its worker died, and where calls end by the clock, no replay can be the same
            continue
    return await _play_once(ticket, seconds, own, env, play)


async def _play_once(
    ticket: AgentRef, seconds: float, own: Agent | None, env: Playable, play: RolloutStart
) -> CollectedRollout:
    outcome = await env.reset(seed=play.seed, task=msgspec.structs.replace(ticket, task=play.task), member=0)
    _raise_trouble(outcome)
    start, parts = outcome.observation, []
    witness = None if own is None else _ShadowAgent(own, play.seed, start)
    while not outcome.done:
        outcome = await env.step(seconds)
        _raise_trouble(outcome)
        parts.append(outcome.observation)
        if witness is not None:
            await witness.check(outcome.observation)
    return CollectedRollout(
        np.concatenate([np.asarray(start)[None], *(part["seen"] for part in parts)]),
        np.concatenate([part["actions"] for part in parts]),
        np.concatenate([part["rewards"] for part in parts]),
        [goal for part in parts for goal in part["reached"]],
        outcome.terminated,
    )


class _ShadowAgent:
    """The learner's own agent through a rollout of its copy."""

    def __init__(self, agent: Agent, seed: int, start: Any) -> None:
        self._player = agent.open("", seed)
        self._outcome = Outcome(start)

    async def check(self, part: dict[str, Any]) -> None:
        steps = zip(part["actions"], part["seen"], part["rewards"], strict=True)
        for number, (action, seen, reward) in enumerate(steps):
            if number % _WITHOUT_PAUSE == 0:
                await anyio.lowlevel.checkpoint()
            try:
                move = run_now(self._player.act(self._outcome, tokens_left=None))
            except Exception as error:
                raise StaysError(f"it raised {error!r:.100} where its copy in a worker process had not") from error
            if not np.array_equal(np.ravel(move.action), action):
                raise StaysError("its copy in a worker process acts otherwise: it depends on more than it takes along")
            self._outcome = Outcome(seen, float(reward))


def _raise_trouble(outcome: Outcome) -> None:
    trouble = outcome.info.get("trouble")
    if trouble is None:
        return
    if trouble.kind == "stays":
        raise StaysError(trouble.text)
    error = ProviderError(f"the policy raised {trouble.text}")
    error.add_note(trouble.trace)
    raise error


def can_travel(agent: Any) -> bool:
    """Whether it is worth a try without being asked for: a torch module needs seconds to load, and may be on a GPU."""
    return not callable(getattr(agent, "parameters", None))
