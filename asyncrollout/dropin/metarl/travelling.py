"""An agent that is sent to the worker processes, and the rollouts that these play with it by themselves."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import numpy as np

from asyncrollout.dropin.metarl.collecting import Play, Played
from asyncrollout.dropin.metarl.selfplay import Ticket
from asyncrollout.errors import ProviderError
from asyncrollout.protocols import Agent, Playable

_CALL_SECONDS = 0.05  # that a call should take: much beside the way to a worker, little beside a person's patience
_SHARE_OF_LIMIT = 0.1  # and of the time limit of a step: what slows down tenfold is still in time
_FASTER = 4  # times as many steps as in the last call, at most
_MOST_STEPS = 1000


class StaysError(Exception):
    """An agent cannot be sent to other processes; the text says why."""


@contextmanager
def carried(make_agent: Callable[[], Agent], *, with_globals: bool) -> Iterator[Ticket]:
    """A file with the agent, for workers to read."""
    try:
        content = cloudpickle.dumps(make_agent)
    except Exception as error:  # pickle raises all sorts
        raise StaysError(f"it cannot be sent to a worker process: {error}") from error
    with tempfile.TemporaryDirectory(prefix="asyncrollout-agent-") as directory:
        path = Path(directory) / "agent"
        path.write_bytes(content)
        yield Ticket(str(path), hashlib.sha256(content).hexdigest(), with_globals)


async def play_alone(ticket: Ticket, step_timeout: float, env: Playable, play: Play) -> Played:
    """A rollout that the env's worker plays with its copy of the agent, in calls that take many steps."""
    call_seconds = min(_CALL_SECONDS, _SHARE_OF_LIMIT * step_timeout)
    task = msgspec.structs.replace(ticket, task=play.task)
    outcome = await env.reset(seed=play.seed, task=task, member=0)
    if reason := outcome.info.get("stays"):
        raise StaysError(reason)
    start, parts, count = outcome.observation, [], 1
    while not outcome.done:
        outcome = await env.step(count)
        if "raised" in outcome.info:
            raise _raised(*outcome.info["raised"])
        if "changed" in outcome.info:
            raise StaysError("acting changes it, or a global of its module, which worker processes cannot share")
        parts.append(outcome.observation)
        count = next_count(count, env.worked or 0.0, call_seconds)
    return Played(
        np.concatenate([np.asarray(start)[None], *(part["seen"] for part in parts)]),
        np.concatenate([part["actions"] for part in parts]),
        np.concatenate([part["rewards"] for part in parts]),
        [goal for part in parts for goal in part["reached"]],
        outcome.terminated,
    )


def next_count(count: int, seconds: float, wanted_seconds: float) -> int:
    """How many steps a call should take if the last one took so many, and so long."""
    wanted = count * wanted_seconds / max(seconds, 1e-9)
    return int(min(max(wanted, 1), _FASTER * count, _MOST_STEPS))


def _raised(told: str, trace: str) -> ProviderError:
    error = ProviderError(f"the policy raised {told}")
    error.add_note(trace)
    return error


def can_travel(agent: Any) -> bool:
    """Whether it is worth a try without being asked for: a torch module needs seconds to load, and may be on a GPU."""
    return not callable(getattr(agent, "parameters", None))
