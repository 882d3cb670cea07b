"""Who plays an evaluation: the env's expert, a server's model, or your own code."""

import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from asyncrollout.agents.numeric import MarkovAgent
from asyncrollout.config import schema
from asyncrollout.config.build import chat_agent, import_object, open_policy
from asyncrollout.dropin.rlinf.config import EvaluationConfig, Python, RLinfModel
from asyncrollout.dropin.rlinf.ranks import devices, restricted, visible_devices
from asyncrollout.errors import UsageError
from asyncrollout.policies.scripted import ScriptedPolicy
from asyncrollout.protocols import Agent
from asyncrollout.registry import EnvSpec
from asyncrollout.types import Generation, Request


@dataclass(frozen=True)
class EvaluationPlayer:
    """The agent, whether it plays in words, and whether each env's expert chooses for it."""

    agent: Agent
    text: bool
    expert: bool = False


@asynccontextmanager
async def open_player(config: EvaluationConfig, spec: EnvSpec, *, own: Any = None) -> AsyncIterator[EvaluationPlayer]:
    """The configured policy, or your `own`."""
    chosen = config.policy
    if own is not None:
        yield _own_player(config, spec, own)
    elif isinstance(chosen, RLinfModel):
        named = f" {chosen.model_path!r}" if chosen.model_path else ""
        expert = "" if spec.text is None else ", or policy=solver for the env's expert"
        raise UsageError(
            f"policy: rollout.model names a model{named}, which only RLinf loads: give your own policy "
            f"(--policy module:name, or policy= in Python){expert}"
        )
    elif isinstance(chosen, Python):
        with _visible_gpus(config):
            yield _own_player(config, spec, _imported(chosen))
    elif (is_expert := isinstance(chosen, schema.Solver)) and spec.text is None:
        raise UsageError(f"policy: {spec.name} has no expert: configure a policy")
    else:
        async with open_policy(chosen) as policy:
            yield EvaluationPlayer(chat_agent(policy, config.agent), text=True, expert=is_expert)


def _own_player(config: EvaluationConfig, spec: EnvSpec, own: Any) -> EvaluationPlayer:
    if inspect.isclass(own):
        raise UsageError(f"policy: {own.__name__} is a class: give an instance, such as {own.__name__}()")
    if not (callable(own) or hasattr(own, "open") or hasattr(own, "generate")):
        raise UsageError(f"policy: {own!r:.100} is not a policy, an agent or a function")
    if hasattr(own, "open"):
        return EvaluationPlayer(own, text=spec.text is not None)
    if not hasattr(own, "generate"):
        return EvaluationPlayer(MarkovAgent(ScriptedPolicy(_FunctionPolicy(own))), text=False)
    if spec.text is None:
        return EvaluationPlayer(MarkovAgent(own), text=False)
    return EvaluationPlayer(chat_agent(own, config.agent), text=True)


@contextmanager
def _visible_gpus(config: EvaluationConfig) -> Iterator[None]:
    """Code that is loaded in here sees only the GPUs placed for `rollout`, if there is such a placement."""
    if "rollout" not in config.cluster.components:
        yield
        return
    gpus = [gpu for worker in config.cluster.workers("rollout") for gpu in worker.gpus]
    with restricted(visible_devices(sorted({*gpus}), devices())):
        yield


def _imported(chosen: Python) -> Any:
    """What a path names; if it is a class or has kwargs, what it makes of them."""
    own = import_object(chosen.path, "policy.path")
    if not (inspect.isclass(own) or chosen.kwargs):
        return own
    try:
        inspect.signature(own).bind(**chosen.kwargs)
    except (TypeError, ValueError) as error:
        given = ", ".join(chosen.kwargs) or "none"
        raise UsageError(
            f"policy.kwargs: {chosen.path} cannot be called with these ({given}): {error}. With kwargs, `path` names "
            "a class or a function that makes the policy; a function of the observation takes none"
        ) from error
    return own(**chosen.kwargs)


class _FunctionPolicy:
    """A function of an observation as a function of a request.

    A synchronous one is called in a thread, for one episode at a time, so that it does not block the envs.
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
            if inspect.isawaitable(action):  # of a lambda around a coroutine function
                action = await action
        return Generation("", action=action)
