"""A whole environment: guess a number. Gymnasium's two methods are all that is needed."""

from typing import Any

import numpy as np


class Guess:
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.secret = int(np.random.default_rng(seed).integers(9))
        self.guesses = 0
        return "Which number from 0 to 8?", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.guesses += 1
        right = action == self.secret
        hint = "right" if right else "higher" if action < self.secret else "lower"
        return hint, float(right), right, self.guesses == 5, {}
