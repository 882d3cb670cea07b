"""The environments that `bench_rollouts.py` plays. Workers import this file, so it imports little."""

from typing import Any

import numpy as np

from benchmarks.pool_envs import Step, Trivial

TURNS = 8
_KEEP_RATE = 0.3
_LONGEST = 20


class Talk(Trivial):
    """A text of 200 characters in each of eight turns."""

    def _ended(self) -> bool:
        return self.turn >= TURNS


def plan(seed: int) -> tuple[int, bool]:
    """How many turns a group's episodes have, and whether its rewards differ: long ones are as likely to."""
    rng = np.random.default_rng(seed)
    return min(int(rng.geometric(0.25)), _LONGEST), bool(rng.random() < _KEEP_RATE)


class Uneven:
    """Episodes of one to twenty turns, which show what was said; the rewards of few groups differ."""

    plays_by_chance = True

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.length, differs = plan(seed)
        self.reward = float(options["member"]) if differs else 0.0
        self.turn = 0
        return f"episode {seed}", {}

    def step(self, action: str) -> Step:
        self.turn += 1
        over = self.turn >= self.length
        return f"turn {self.turn}: {action}", self.reward * over, over, False, {}
