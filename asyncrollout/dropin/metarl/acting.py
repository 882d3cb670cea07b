"""A learner's own agent as a policy of ours: what it is given, and what becomes of its actions and its memory."""

import inspect
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from asyncrollout.agents.numeric import MarkovAgent, MemoryAgent
from asyncrollout.dropin.metarl.chance import seed_generators
from asyncrollout.dropin.metarl.row_rng import RowGenerator
from asyncrollout.errors import UsageError
from asyncrollout.policies.batched import BatchedPolicy
from asyncrollout.protocols import Agent, Policy
from asyncrollout.types import Generation, Request
from asyncrollout.validation import check_choice

_BATCH_AXIS = 1  # of a hidden state: layers, batch, size


class AGENT_ARCHS(StrEnum):  # noqa: N801 (the name that configurations know)
    """What an agent acts on, and what is stored: steps, or whole episodes.

    A memory is carried through an episode. With `Memory_Markov` only the critic has one, and is trained on episodes.
    """

    Markov = "markov"
    Memory = "memory"
    Memory_Markov = "memory-markov"


def as_arch(value: Any) -> AGENT_ARCHS:
    """Also that of another enum of the same names."""
    text = str(getattr(value, "value", value)).lower().replace("_", "-")
    check_choice("agent_arch", text, [arch.value for arch in AGENT_ARCHS])
    return AGENT_ARCHS(text)


@asynccontextmanager
async def batched_agent(agent: Any, arch: AGENT_ARCHS, *, discrete: bool) -> AsyncIterator[Agent]:
    """A learner's agent as one of ours, which is asked in a thread for all who wait."""
    async with BatchedPolicy(AgentPolicy(agent, arch, discrete=discrete), max_wait=0.0) as policy:
        yield _agent(arch, policy)


def direct_agent(agent: Any, arch: AGENT_ARCHS, *, discrete: bool) -> Agent:
    """A learner's agent as one of ours, which answers at once."""
    return _agent(arch, _DirectAgent(AgentPolicy(agent, arch, discrete=discrete)))


def is_torch_module(agent: Any) -> bool:
    """By its method `parameters`: torch is then installed."""
    return callable(getattr(agent, "parameters", None))


def device_of(agent: Any) -> Any:
    """Where the parameters of a torch module are; None where it has none."""
    first = next(iter(agent.parameters()), None)
    return None if first is None else first.device


@contextmanager
def one_torch_thread(agent: Any) -> Iterator[None]:
    """A torch module on the CPU acts on one thread: workers would compete, and sums may depend on the number."""
    if not is_torch_module(agent):
        yield
        return
    import torch  # noqa: PLC0415

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _agent(arch: AGENT_ARCHS, policy: Policy) -> Agent:
    return MemoryAgent(policy) if arch is AGENT_ARCHS.Memory else MarkovAgent(policy)


@dataclass(frozen=True)
class _DirectAgent:
    """Answers at once: who plays has an env to wait for."""

    acting: "AgentPolicy"

    async def generate(self, request: Request) -> Generation:
        return self.acting([request])[0]


class AgentPolicy:
    """Asks `act(obs, deterministic=False)`; a memory with `prev_internal_state`, `prev_action`, `reward` and `obs`.

    All have a batch axis. The first of what `act` gives is the action (one-hot, or a number, where actions are
    discrete); a memory gives `((action, ...), state)`. A torch module is given tensors on its device.

    What `act` draws follows from the rollout's seed and the turn: from `rng`, if it takes one, also in a batch; from
    the global generators, if it is asked for one rollout at a time.
    """

    def __init__(self, agent: Any, arch: AGENT_ARCHS, *, discrete: bool) -> None:
        self.arch = arch
        self._agent = agent
        self._discrete = discrete
        self._takes_rng = "rng" in inspect.signature(agent.act).parameters
        self._torch: Any = None
        if is_torch_module(agent):
            import torch  # noqa: PLC0415

            self._torch = torch
            self._device = device_of(agent)

    def __call__(self, requests: list[Request]) -> list[Generation]:
        seeds = [request.sampling.seed or 0 for request in requests]
        seed_generators(seeds[0])
        chance = {"rng": _generator(seeds)} if self._takes_rng else {}
        with self._no_grad():
            if self.arch is not AGENT_ARCHS.Memory:
                seen = self._given(_stacked([request.data for request in requests]))
                result = self._agent.act(seen, deterministic=False, **chance)
                actions = result[0] if isinstance(result, tuple) else result
                return [Generation("", action=action) for action in self._played(actions, len(requests))]
            return self._recall([request.data for request in requests], chance)

    def _recall(self, recalled: Sequence[Any], chance: dict[str, Any]) -> list[Generation]:
        before = [self._before(one) for one in recalled]
        result, states = self._agent.act(
            prev_internal_state=self._joined([state for _, _, state in before], _BATCH_AXIS),
            prev_action=self._joined([action for action, _, _ in before], 0),
            reward=self._joined([reward for _, reward, _ in before], 0),
            obs=self._given(_stacked([one.observation for one in recalled])),
            deterministic=False,
            **chance,
        )
        raw = result[0] if isinstance(result, tuple) else result
        alone = len(recalled) == 1
        return [
            Generation("", action=action, state=(raw if alone else raw[at : at + 1], _part(states, at, alone=alone)))
            for at, action in enumerate(self._played(raw, len(recalled)))
        ]

    def _before(self, recalled: Any) -> tuple[Any, Any, Any]:
        """The last action as the agent gave it, its reward, and the state after it."""
        if recalled.state is None:
            first: tuple[Any, Any, Any] = self._agent.get_initial_info()
            return first
        action, state = recalled.state
        return action, self._given(np.array([[recalled.reward]])), state

    def _played(self, actions: Any, asked: int) -> list[Any]:
        """What the env is given, for each row."""
        rows = np.asarray(actions.detach().cpu() if hasattr(actions, "detach") else actions)
        if rows.ndim < (1 if self._discrete else 2) or len(rows) != asked:
            raise UsageError(
                f"{type(self._agent).__name__}.act() gave actions of shape {rows.shape} for {asked} observation(s): "
                "the first axis is the batch, as that of obs"
            )
        if not self._discrete:
            return list(rows.astype(np.float32))
        return [int(row.argmax()) if row.size > 1 else int(row.item()) for row in rows]

    def _given(self, values: np.ndarray[Any, Any]) -> Any:
        """A copy: an agent may change what it is given, and torch's own memory is aligned alike in every process."""
        if self._torch is None:
            return values.astype(np.float32)
        return self._torch.tensor(values, dtype=self._torch.float32, device=self._device)

    def _joined(self, parts: Sequence[Any], axis: int) -> Any:
        if len(parts) == 1:
            return parts[0]
        if isinstance(parts[0], tuple | list):  # as the two states of an LSTM
            return tuple(self._joined(inner, axis) for inner in zip(*parts, strict=True))
        return np.concatenate(parts, axis) if self._torch is None else self._torch.cat(list(parts), axis)

    def _no_grad(self) -> AbstractContextManager[Any]:
        """Which a thread does not inherit."""
        manager: AbstractContextManager[Any] = nullcontext() if self._torch is None else self._torch.no_grad()
        return manager


def _generator(seeds: Sequence[int]) -> Any:
    generators = [np.random.default_rng(seed) for seed in seeds]
    return generators[0] if len(generators) == 1 else RowGenerator(generators)


def _stacked(observations: Sequence[Any]) -> np.ndarray[Any, Any]:
    return np.stack(observations) if len(observations) > 1 else np.asarray(observations[0])[None]


def _part(states: Any, at: int, *, alone: bool) -> Any:
    """One episode's part of a batch of hidden states."""
    if alone:
        return states
    if isinstance(states, tuple | list):
        return tuple(_part(inner, at, alone=False) for inner in states)
    return states[:, at : at + 1]
