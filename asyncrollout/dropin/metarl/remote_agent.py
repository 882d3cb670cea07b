"""An agent sent to the worker processes, and the rollouts that these play with it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import cloudpickle
import msgspec

from asyncrollout.concurrency import task_group
from asyncrollout.dropin.metarl.agent_rollout import Steps, Work
from asyncrollout.dropin.metarl.collecting import CollectedRollout, RolloutStart, joined_steps
from asyncrollout.dropin.metarl.worker_rollout import ASKED_FOR, AgentRef
from asyncrollout.errors import EnvDiverged, ProviderError, UsageError
from asyncrollout.protocols import Agent, Playable

_CALL_SECONDS = 0.05  # of play in a call: long compared with the way to a worker, short for someone who waits
_SHARE_OF_LIMIT = 0.1  # and of the time limit of a step
_TRIES = 3


@contextmanager
def ship_agent(make_agent: Callable[[], Agent], *, is_checked: bool) -> Iterator[AgentRef]:
    """A file with the agent, for workers to read."""
    try:
        content = cloudpickle.dumps(make_agent)
    except Exception as error:  # pickle raises all sorts
        raise UsageError(f"{ASKED_FOR}the agent cannot be sent to a worker process: {error}") from error
    with ExitStack() as stack:
        try:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncrollout-agent-"))) / "agent"
            path.write_bytes(content)
        except OSError as error:
            raise UsageError(f"{ASKED_FOR}the agent's file cannot be written: {error}") from error
        yield AgentRef(str(path), is_checked)


async def load_in_workers(agent: AgentRef, envs: Sequence[Playable]) -> None:
    """Have the envs' workers load the agent, and with it the packages that it needs."""
    only_loaded = msgspec.structs.replace(agent, only_loaded=True)

    async def load(env: Playable) -> None:
        await env.reset(seed=0, task=only_loaded, member=0)

    async with task_group() as tasks:
        for env in envs:
            tasks.start_soon(load, env)


async def play_in_worker(agent: AgentRef, step_timeout: float, env: Playable, play: RolloutStart) -> CollectedRollout:
    """A rollout that the env's worker plays with its copy of the agent, for a short time at each call."""
    seconds = min(_CALL_SECONDS, _SHARE_OF_LIMIT * step_timeout)
    tries = _TRIES
    while True:
        try:
            return await _play_once(agent, seconds, env, play)
        except EnvDiverged:  # its worker died; calls end by the clock, so that no replay can be the same: start over
            tries -= 1
            if not tries:
                raise
        except ProviderError as error:
            error.add_note(getattr(error, "remote_traceback", ""))
            raise


async def _play_once(agent: AgentRef, seconds: float, env: Playable, play: RolloutStart) -> CollectedRollout:
    outcome = await env.reset(seed=play.seed, task=msgspec.structs.replace(agent, task=play.task), member=0)
    start, parts = outcome.observation, []
    while not outcome.done:
        outcome = await env.step(seconds)
        steps = outcome.observation
        parts.append(Steps(**{**steps, "work": Work(*steps["work"])}))
    return joined_steps(start, parts, terminated=outcome.terminated)
