"""Policies without a model, for tests, demos and offline runs; replies do not depend on the order of the calls."""

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np

from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.trajectories import without_evaluation
from asyncrollout.types import Generation, Request, Timings

Script = Sequence[Any] | Callable[[Request], Any | Awaitable[Any]]
"""Replies are texts, `Generation`s, or actions of any other kind."""

_UNSURE = "I am not sure what to do."


class ScriptedPolicy:
    """Replies from a list, one per turn and then from the start again, or from a function of the request.

    A reply is a text, a `Generation`, or any other action.
    """

    def __init__(self, reply: Script) -> None:
        if isinstance(reply, str) or (not callable(reply) and not reply):
            raise UsageError(f"ScriptedPolicy takes a list of replies or a function of the request, not {reply!r:.100}")
        self._reply = reply
        self._calls = 0

    async def generate(self, request: Request) -> Generation:
        await anyio.lowlevel.checkpoint()  # without a wait it could be neither cancelled nor overtaken
        if not callable(self._reply):
            # Without a session there are no turns: replies follow the order of the calls.
            turn = request.turn if request.session else self._calls
            self._calls += 1
            return _generation(self._reply[turn % len(self._reply)])
        reply = self._reply(request)
        if inspect.isawaitable(reply):
            reply = await reply
        return _generation(reply)


def _generation(reply: Any) -> Generation:
    if isinstance(reply, Generation):
        return reply
    if reply is None:
        raise UsageError("ScriptedPolicy: the reply is None; return a text, a Generation or an action")
    return Generation(reply) if isinstance(reply, str) else Generation("", action=reply)


class RandomPolicy:
    """One of the given actions, uniformly at random; texts come in <answer> tags, others as the action itself."""

    def __init__(self, actions: Sequence[Any], *, seed: int = 0) -> None:
        if isinstance(actions, str) or not len(actions):
            raise UsageError(f"RandomPolicy takes a list of actions, not {actions!r:.100}")
        self._actions = actions
        self._seed = seed

    async def generate(self, request: Request) -> Generation:
        await anyio.lowlevel.checkpoint()
        action = self._actions[int(_generator_for(self._seed, request).integers(len(self._actions)))]
        if isinstance(action, str):
            return Generation(f"<answer>{action}</answer>")
        return Generation("", action=action)


class SolverPolicy:
    """An env's own expert (open it with `expert=True`), with an error rate and latency.

    A mistake is a reply without an action, or part of the actions. `latency` is the mean of an exponential
    distribution, in seconds, or a pair (min, max).
    """

    needs_expert = True

    def __init__(self, error_rate: float = 0.0, latency: float | tuple[float, float] = 0.0, *, seed: int = 0) -> None:
        if not 0 <= error_rate <= 1:
            raise UsageError(f"SolverPolicy: error_rate={error_rate!r} must be from 0 to 1")
        least, most = latency if isinstance(latency, tuple | list) else (0.0, latency)
        if not 0 <= least <= most:
            raise UsageError(f"SolverPolicy: latency={latency!r} must be a time in seconds or a pair (min, max)")
        self._error_rate = error_rate
        self._latency = latency
        self._seed = seed

    async def generate(self, request: Request) -> Generation:
        if request.expert is None:
            raise UsageError("SolverPolicy plays Request.expert, which is None: open the env with expert=True")
        rng = _generator_for(self._seed, request)
        seconds = self._draw_latency(rng)
        errs = rng.random() < self._error_rate
        text = _mistaken(request.expert, rng) if errs else request.expert
        await anyio.sleep(seconds)
        return Generation(text, timings=Timings(first_byte=seconds, total=seconds))

    def _draw_latency(self, rng: np.random.Generator) -> float:
        if isinstance(self._latency, tuple | list):
            return float(rng.uniform(*self._latency))
        return float(rng.exponential(self._latency)) if self._latency else 0.0


class RecordedPolicy:
    """Replays recorded generations, by session and turn."""

    def __init__(self, recorded: Mapping[tuple[str, int], Generation]) -> None:
        self._recorded = dict(recorded)

    async def generate(self, request: Request) -> Generation:
        try:
            return self._recorded[request.session, request.turn]
        except KeyError:
            known = sum(session == request.session for session, _ in self._recorded)
            raise ProviderError(
                f"nothing is recorded for turn {request.turn} of session {request.session!r}, which has {known} turns"
            ) from None


def _mistaken(expert: str, rng: np.random.Generator) -> str:
    """A worse player's reply: only the last of several actions, or none."""
    thought, tag, answer = expert.rpartition("<answer>")
    actions = answer.removesuffix("</answer>").split("||")
    if not tag or len(actions) == 1 or rng.random() < 0.5:
        return _UNSURE
    return f"{thought}<answer>{actions[-1].strip()}</answer>"


def _generator_for(seed: int, request: Request) -> np.random.Generator:
    """The generator of one turn of one session: whoever asks decides, never the order of the calls.

    Evaluations are numbered; without their number, each evaluation of the same tasks has the same randomness.
    """
    asked = without_evaluation(request.session)
    session = int.from_bytes(hashlib.blake2b(asked.encode(), digest_size=8).digest())
    sampling = () if request.sampling.seed is None else (request.sampling.seed,)
    return np.random.default_rng((seed, session, request.turn, *sampling))
