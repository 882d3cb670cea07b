"""A deterministic machine with few states, whose anchors may be given: to check what `check_env` says about anchors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrollout import Parsed, TextOptions


class Machine:
    """From state `s`, action `a` leads to `table[s][a]` and earns `rewards[s]`; it ends in the states of `ends`."""

    def __init__(
        self,
        table: Sequence[Sequence[int]],
        rewards: Sequence[float],
        anchors: Sequence[int],
        ends: Sequence[int] = (),
        draws: bool = False,
    ) -> None:
        self.table, self.rewards, self.anchors, self.ends, self.draws = table, rewards, anchors, ends, draws

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.state = 0
        self.luck = {"of": [np.random.default_rng(seed)]}
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = self.rewards[self.state]
        self.state = self.table[self.state][action]
        if self.draws:
            self.luck["of"][0].random()
        return self.state, float(reward), self.state in self.ends, False, {}


class MachineText:
    def __init__(self, env: Machine, options: TextOptions) -> None:
        self.env, self.options = env, options

    def parse(self, reply: str) -> Parsed:
        words = reply.split(self.options.separator)
        known = [str(action) for action in range(len(self.env.table[0]))]
        if all(word.strip() in known for word in words):
            return Parsed([int(word) for word in words])
        return Parsed([], valid=False, reason="not an action")

    def describe(self, observation: int) -> str:
        return f"state {observation}"

    def system_prompt(self) -> str:
        return "Choose a number."

    def anchor(self) -> int:
        return self.env.anchors[self.env.state]
