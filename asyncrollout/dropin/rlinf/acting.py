"""Who plays an evaluation: an expert, a server's model, or code of the user's own."""

import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.to_thread

from asyncrollout.agents.numeric import MarkovAgent
from asyncrollout.config import schema
from asyncrollout.config.build import chat_agent, import_object, open_policy
from asyncrollout.dropin.rlinf.config import EvaluationConfig, Python
from asyncrollout.dropin.rlinf.playing import Manner
from asyncrollout.dropin.rlinf.ranks import visible_devices
from asyncrollout.dropin.rlinf.results import EvaluatedEpisode
from asyncrollout.errors import UsageError
from asyncrollout.policies.scripted import ScriptedPolicy
from asyncrollout.protocols import Agent
from asyncrollout.registry import EnvSpec
from asyncrollout.types import Generation, Request

DEVICES = "CUDA_VISIBLE_DEVICES"


@asynccontextmanager
async def open_manner(
    config: EvaluationConfig,
    spec: EnvSpec,
    on_step: Callable[[], None],
    on_episode: Callable[[EvaluatedEpisode], None],
    *,
    own: Any = None,
) -> AsyncIterator[Manner]:
    """How envs are played: by the policy that is configured, or by one's `own`."""
    chosen = config.policy
    if own is not None:
        yield Manner(*_own_agent(config, spec, own), False, on_step, on_episode)
    elif isinstance(chosen, Python):
        with _seen_gpus(config):
            yield Manner(*_own_agent(config, spec, _imported(chosen)), False, on_step, on_episode)
    elif (is_expert := isinstance(chosen, schema.Solver)) and spec.text is None:
        raise UsageError(f"policy: {spec.name} has no expert to play it: give a policy")
    else:
        async with open_policy(chosen) as policy:
            yield Manner(chat_agent(policy, config.agent), True, is_expert, on_step, on_episode)


def _own_agent(config: EvaluationConfig, spec: EnvSpec, own: Any) -> tuple[Agent, bool]:
    """What plays, and whether it plays in words."""
    if not (callable(own) or hasattr(own, "open") or hasattr(own, "generate")):
        raise UsageError(f"policy: it is of type {type(own).__name__}: neither policy nor agent, nor a function")
    if hasattr(own, "open"):
        return own, spec.text is not None
    if not hasattr(own, "generate"):
        return MarkovAgent(ScriptedPolicy(_FunctionPolicy(own))), False
    if spec.text is None:
        return MarkovAgent(own), False
    return chat_agent(own, config.agent), True


@contextmanager
def _seen_gpus(config: EvaluationConfig) -> Iterator[None]:
    """The GPUs of the policy's own placement are all that code which is loaded now sees, if there is one."""
    if "rollout" not in config.cluster.components:
        yield
        return
    before = os.environ.get(DEVICES)
    gpus = [gpu for worker in config.cluster.workers("rollout") for gpu in worker.gpus]
    os.environ[DEVICES] = visible_devices(sorted({*gpus}), before)
    try:
        yield
    finally:
        if before is None:
            del os.environ[DEVICES]
        else:
            os.environ[DEVICES] = before


def _imported(chosen: Python) -> Any:
    """What a path names; if it is a class, or there are options for it, what it makes."""
    own = import_object(chosen.path, "policy.path")
    return own(**chosen.kwargs) if inspect.isclass(own) or chosen.kwargs else own


class _FunctionPolicy:
    """A function of an observation as one of a request. One that is no coroutine is called in a thread, by one episode
    at a time, so that the envs go on meanwhile.
    """

    def __init__(self, act: Any) -> None:
        self._act = act
        self._is_async = inspect.iscoroutinefunction(act) or inspect.iscoroutinefunction(getattr(act, "__call__", None))  # noqa: B004
        self._one = anyio.CapacityLimiter(1)

    async def __call__(self, request: Request) -> Generation:
        if self._is_async:
            action = await self._act(request.data)
        else:
            action = await anyio.to_thread.run_sync(self._act, request.data, limiter=self._one, abandon_on_cancel=True)
        return Generation("", action=action)
