"""Your own text environment in six steps, which docs/own_env.md explains: `python examples/custom_env.py`."""

import asyncio
from typing import Any

import numpy as np

import asyncrollout as ar
from asyncrollout.testing import check_env
from asyncrollout.text.replies import read_choice, turn_format


class Thermostat:  # 1. the env: Gymnasium's reset and step
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.degrees, self.goal = (int(n) for n in np.random.default_rng(seed).choice(30, 2, replace=False))
        return self.degrees, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.degrees += action
        success = self.degrees == self.goal
        return self.degrees, 1.0 if success else -0.05, success, False, {"success": success}


class ThermostatText:
    def __init__(self, env: Thermostat, options: ar.TextOptions) -> None:
        self.env, self.options = env, options

    def parse(self, reply: str) -> ar.Parsed:  # 2. the projection: what a reply asks for
        return read_choice(reply, self.options, {"warmer": 1, "colder": -1})

    def describe(self, degrees: int) -> str:  # 3. what the model is shown
        return f"It is {degrees} degrees; {self.env.goal} are wanted."

    def system_prompt(self) -> str:
        return "Your actions are: warmer, colder.\n" + turn_format(self.options, "warmer")


ar.register_env("thermostat", Thermostat, text=ThermostatText, runs="light")  # 4. its name, 5. by which a pool opens it
if __name__ == "__main__":  # 6. the contract, as a test would check it
    print(asyncio.run(check_env("thermostat", actions=["<answer>warmer || warmer</answer>", "colder", "jump"])))
