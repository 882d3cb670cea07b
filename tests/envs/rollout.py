"""A small env for tests of rollouts; what goes wrong in it is said by its task."""

import datetime
from collections import Counter, OrderedDict
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asyncrollout import EnvSpec, Observation, Parsed, TextOptions
from asyncrollout.images import encode_png


class Walk:
    """Ends after `turns` steps, or where the seed says so; the reward of a step is its action."""

    def __init__(self, turns: int | None = 3, pictures: bool | str = False) -> None:
        self.turns = turns
        self.pictures = pictures

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.task = (options or {}).get("task")
        self.at = (seed or 0) % 10
        self.left = self.turns or 1 + (seed or 0) % 7
        if self.task == "no start":
            raise RuntimeError("it does not start")
        return self.at, {}

    def step(self, action: int) -> Any:
        if self.task == "breaks":
            raise RuntimeError("it breaks")
        self.at += action
        self.left -= 1
        reward = float("nan") if self.task == "nan" else float(action)
        return self.at, reward, self.left == 0, False, {"success": self.at > 10}

    def render(self) -> Any:
        return np.full((4, 4, 3), self.at, dtype=np.uint8)

    def picture(self) -> Any:
        """As an array, a PIL image, the bytes of a file, or what is none."""
        if self.pictures == "pil":
            from PIL import Image

            return Image.fromarray(self.render())
        return {"png": encode_png(self.render()), "list": [[self.at]]}.get(str(self.pictures), self.render())


class WalkText:
    def __init__(self, env: Walk, options: TextOptions) -> None:
        self.env = env

    def parse(self, reply: str) -> Parsed:
        word, _, number = reply.partition(" ")
        if word == "go" and number.isdigit():
            return Parsed([int(number)])
        return Parsed([], valid=False, reason="say go and a number")

    def describe(self, observation: int) -> str | Observation:
        text = f"You are at {observation}."
        return Observation(text, images=(self.env.picture(),)) if self.env.pictures else text

    def system_prompt(self) -> str:
        return "Walk."

    def anchor(self) -> int:
        return self.env.at

    def solve(self) -> str:
        return "go 9"


WALK = EnvSpec(name="walk", factory="tests.envs.rollout:Walk", text="tests.envs.rollout:WalkText", runs="light")


class OddWalk(Walk):
    """Tells things that no file holds as they are."""

    def step(self, action: int) -> Any:
        observation, *rest, info = super().step(action)
        info |= {
            "counted": Counter("aab"),
            "ordered": OrderedDict(b=1, a=2),
            "named": Place(1, 2),
            "direction": Direction.UP,
            "day": datetime.date(2026, 1, 1),
            "where": Path("a/b"),
            "price": Decimal("1.5"),
            "objects": np.array([{}], dtype=object),
        }
        return observation, *rest, info


class Place(NamedTuple):
    x: int
    y: int


class Direction(Enum):
    UP = 1


ODD_WALK = EnvSpec(name="odd", factory="tests.envs.rollout:OddWalk", text="tests.envs.rollout:WalkText", runs="light")


class HalfWalk(Walk):
    """Shows half of a character."""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        at, info = super().reset(seed=seed, options=options)
        return f"\ud83d {at}", info

    def step(self, action: Any) -> Any:
        _, *rest = super().step(1)
        return f"\ud83d {self.at}", *rest
