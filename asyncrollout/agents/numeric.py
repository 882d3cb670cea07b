"""Agents for numeric envs: with no memory, with one, and at random. A `BatchedPolicy` gathers what they ask."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.protocols import Policy, ask_policy
from asyncrollout.seeding import sampling_seed
from asyncrollout.trajectories import Move, Remembered
from asyncrollout.types import Generation, Outcome, Request, Sampling

Memory = Literal["none", "hidden", "recorded"]


class Recalled(msgspec.Struct, frozen=True):
    """What a policy with a memory is given as `Request.data`; `state` is the `Generation.state` of its last turn."""

    observation: Any
    action: Any = None
    reward: float = 0.0
    state: Any = None


@dataclass(frozen=True)
class MarkovAgent:
    """Acts on the present observation alone: `Request.data` is the observation."""

    asks_once: ClassVar[bool] = True
    policy: Policy

    def open(self, session: str, seed: int) -> "NumericPlayer":
        return NumericPlayer(self.policy, session, seed, "none")


@dataclass(frozen=True)
class MemoryAgent:
    """Carries the policy's state through an episode: `Request.data` is a `Recalled`. For training on whole episodes."""

    asks_once: ClassVar[bool] = True
    policy: Policy

    def open(self, session: str, seed: int) -> "NumericPlayer":
        return NumericPlayer(self.policy, session, seed, "hidden")


@dataclass(frozen=True)
class MemoryMarkovAgent:
    """As `MemoryAgent`, and each turn records the state it was played from, so that steps can be trained on alone."""

    asks_once: ClassVar[bool] = True
    policy: Policy

    def open(self, session: str, seed: int) -> "NumericPlayer":
        return NumericPlayer(self.policy, session, seed, "recorded")


class NumericPlayer:
    """One episode."""

    def __init__(self, policy: Policy, session: str, seed: int, memory: Memory) -> None:
        self.messages: list[dict[str, Any]] = []
        self._policy = policy
        self._session = session
        self._seed = seed
        self._memory = memory
        self._turn = 0
        self._action: Any = None
        self._state: Any = None

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:  # noqa: ARG002
        data, recorded = outcome.observation, None
        if self._memory != "none":
            data = Recalled(outcome.observation, self._action, outcome.reward, self._state)
        if self._memory == "recorded":
            recorded = Remembered(outcome.observation, self._state)
        sampling = Sampling(seed=sampling_seed(self._seed, self._turn))
        request = Request(sampling=sampling, session=self._session, turn=self._turn, data=data)
        generation = await ask_policy(self._policy, request)
        self._turn += 1
        self._action, self._state = generation.action, generation.state
        return Move(generation.action, generation, recorded)


@dataclass(frozen=True)
class RandomAgent:
    """Plays at random: one of a list of actions (texts as answers in tags), or a sample of a Gymnasium space."""

    actions: Any

    def __post_init__(self) -> None:
        is_list = isinstance(self.actions, Sequence) and not isinstance(self.actions, str) and len(self.actions) > 0
        if not is_list and not hasattr(self.actions, "sample"):
            raise UsageError(f"RandomAgent takes a list of actions or a Gymnasium space, not {self.actions!r:.100}")

    def policies(self) -> list[Policy]:
        return []

    def with_policies(self, policies: Sequence[Policy]) -> "RandomAgent":  # noqa: ARG002
        return self

    def open(self, session: str, seed: int) -> "RandomPlayer":  # noqa: ARG002
        return RandomPlayer(self.actions, seed)


class RandomPlayer:
    """One episode."""

    def __init__(self, actions: Any, seed: int) -> None:
        self.messages: list[dict[str, Any]] = []
        self._actions = copy.deepcopy(actions)  # seeding a space must not show to others who use it
        self._seed = seed
        self._turn = 0

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:  # noqa: ARG002
        chance = sampling_seed(self._seed, self._turn)
        self._turn += 1
        if hasattr(self._actions, "sample"):
            self._actions.seed(chance)
            action = self._actions.sample()
        else:
            action = self._actions[chance % len(self._actions)]
        if isinstance(action, str):
            reply = f"<answer>{action}</answer>"
            return Move(reply, Generation(reply))
        return Move(action, Generation("", action=action))
