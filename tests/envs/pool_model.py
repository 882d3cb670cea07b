"""The envs of the pool's random programs: calls change them, for good or for an episode, and what they show tells."""

import json
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from asyncrollout import EnvSpec, Observation, Parsed, TextOptions
from tests.odd_values import Text as MarkedText
from tests.odd_values import cycle, marked, objects

Shown = Callable[["Subject"], Any]


def _frame(env: "Subject") -> Any:
    """One and the same array each time, changed in place."""
    env.frame[:] = env.total
    return env.frame


SHOWN: dict[str, Shown] = {
    "text": lambda env: env.text(),
    "dict": lambda env: {"total": env.total, "text": [env.text()], 3: (env.level, None)},
    "frame": _frame,
    "large": lambda env: np.full((200, 200), env.total),
    "scalar": lambda env: np.float32(env.total / 3),
    "set": lambda env: {env.text(), env.total, ("steps", env.steps)},
    "deque": lambda env: deque([env.total, env.text()], maxlen=3),
    "objects": lambda env: objects(env.total),
    "marked text": lambda env: marked(MarkedText)("the same", env.total),
    "cycle": lambda env: cycle(env.total),
}
"""What an env shows."""

ODD = ("deque", "objects", "marked text", "cycle")
"""What only a pickle can hold: it does not travel over a network, nor into a file."""


class Subject:
    """Level, extras and the number of questions are for good; the rest is the episode's. Everything is shown.

    Each object writes into its diary when it is made and when it is closed, and one that `acts_once` each step.
    """

    plays_by_chance = True
    level: int
    total: int
    steps: int
    task: list[Any]
    luck: np.random.Generator

    def __init__(
        self,
        diary: str = "",
        items: list[Any] | None = None,
        shows: str = "text",
        length: int = 6,
        build: float = 0.0,
        pause: float = 0.0,
        drifts: bool = False,
        acts_once: bool = False,
    ) -> None:
        self.uid = os.urandom(6).hex()
        self.diary = diary
        self.write("built")
        time.sleep(build)
        self.items = [] if items is None else items
        self.items.append(len(self.items))  # seen by another env if they share it
        self.own = len(self.items)
        self.shows, self.length, self.pause, self.drifts, self.acts_once = shows, length, pause, drifts, acts_once
        self.level, self.extras, self.asked = 1, 0, 0
        self.frame = np.zeros(3, np.int64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        options = options or {}
        task = options.get("task", [])
        if task == "bad":
            raise LookupError("no such task")
        task.append("used")
        self.luck = np.random.default_rng([seed or 0, options["member"]])
        self.total, self.steps, self.task = len(task), 0, task
        del self.items[self.own :]
        time.sleep(self.pause)
        return self.show(), {"member": options["member"], "task": task}

    def step(self, action: Any) -> Any:
        if self.acts_once:
            self.write("acted")
        if self.pause:
            time.sleep(self.pause)
        return self.play(action)

    def play(self, action: Any) -> Any:
        amount = action.pop() if isinstance(action, list) else action
        self.total += 1  # also if it fails now
        gained = int(self.luck.integers(1, 10)) * int(amount) * self.level
        self.total += gained
        self.steps += 1
        self.items.append(amount)
        return self.show(), gained + self.extras / 4, self.steps >= self.length, False, {"items": self.items}

    def set_level(self, level: int) -> int:
        self.level = level
        return level

    def add(self, amounts: list[int]) -> list[int]:
        self.extras += amounts.pop()
        time.sleep(self.pause)
        return [self.extras, *amounts]

    def change_then_raise(self) -> None:
        self.extras += 100
        raise KeyError("changed all the same")

    def score(self) -> int:
        """In an episode only; counts how often it was asked, for good."""
        total = self.total
        self.asked += 1
        return total

    def nudge(self, amount: int) -> Any:
        """Of the episode alone."""
        self.total += amount
        return self.text()

    def look(self) -> Any:
        return self.text(), self.items, self.task

    def render(self) -> Any:
        time.sleep(self.pause)
        return np.full((2, 2, 3), self.total % 256, np.uint8)

    def close(self) -> None:
        self.write("closed")

    def text(self) -> str:
        uid = f" by {self.uid}" if self.drifts else ""
        return f"{self.total} of {self.task}, {self.steps} steps, level {self.level}, {self.extras}, {self.asked}{uid}"

    def show(self) -> Any:
        return SHOWN[self.shows](self)

    def write(self, what: str) -> None:
        if self.diary:
            with Path(self.diary).open("a") as lines:
                lines.write(f"{what} {self.uid}\n")


class Saving(Subject):
    """Has snapshots, of the episode alone."""

    def snapshot(self) -> bytes:
        time.sleep(self.pause)
        state = [self.total, self.steps, self.task, self.items[self.own :], self.luck.bit_generator.state]
        return json.dumps(state).encode()

    def restore(self, state: bytes) -> None:
        self.luck = np.random.default_rng(0)
        self.total, self.steps, self.task, added, self.luck.bit_generator.state = json.loads(state)
        self.items[self.own :] = added


class AsyncSubject(Subject):
    """Whose steps are coroutines."""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        await anyio.sleep(self.pause)
        pause, self.pause = self.pause, 0.0
        try:
            return super().reset(seed=seed, options=options)
        finally:
            self.pause = pause

    async def step(self, action: Any) -> Any:
        await anyio.sleep(self.pause)
        return self.play(action)

    async def nudge(self, amount: int) -> Any:
        await anyio.sleep(self.pause)
        return super().nudge(amount)

    async def render(self) -> Any:
        await anyio.sleep(self.pause)
        return np.full((2, 2, 3), self.total % 256, np.uint8)


class AsyncSaving(AsyncSubject):
    """Whose snapshots are coroutines, too."""

    async def snapshot(self) -> bytes:
        await anyio.sleep(self.pause)
        return Saving.snapshot(self)  # type: ignore[arg-type]

    async def restore(self, state: bytes) -> None:
        await anyio.sleep(self.pause)
        Saving.restore(self, state)  # type: ignore[arg-type]


class Menu:
    """Reads a reply by what it described last, and shows how often it described, and was misunderstood."""

    def __init__(self, env: Subject, options: TextOptions) -> None:
        self.env = env
        self.options = options
        self.choices: list[int] = []
        self.turns = self.mistakes = self.hints = 0

    def system_prompt(self) -> str:
        self.turns = self.mistakes = self.hints = 0
        return f"At most {self.options.max_actions_per_turn}."

    def parse(self, reply: str) -> Parsed:
        if reply == "nonsense":
            self.mistakes += 1
            return Parsed([], valid=False, reason="no number")
        return Parsed([self.choices[int(place) % len(self.choices)] for place in reply.split()], valid=True)

    def describe(self, observation: Any) -> Any:
        self.turns += 1
        self.choices = [(self.env.total + self.turns + place) % 4 for place in range(3)]
        text = f"turn {self.turns}, {self.mistakes} mistakes, {self.hints} hints: {self.choices}"
        return Observation(text=text, data=observation)

    def hint(self) -> int:
        self.hints += 1
        return self.choices[0]

    def anchor(self) -> Any:
        return self.turns, self.env.steps


class SavedMenu(Menu):
    def snapshot(self) -> bytes:
        return json.dumps([self.choices, self.turns, self.mistakes, self.hints]).encode()

    def restore(self, state: bytes) -> None:
        self.choices, self.turns, self.mistakes, self.hints = json.loads(state)


def _specs() -> list[EnvSpec]:
    here = f"{__name__}:"
    plain, saving = f"{here}Subject", f"{here}Saving"
    menu, saved = f"{here}Menu", f"{here}SavedMenu"
    return [
        EnvSpec(name="model_cpu", factory=plain),
        EnvSpec(name="model_light", factory=plain, runs="light"),
        EnvSpec(name="model_io", factory=plain, runs="io"),
        EnvSpec(name="model_async", factory=f"{here}AsyncSubject", runs="io"),
        EnvSpec(name="model_saving", factory=saving),
        EnvSpec(name="model_async_saving", factory=f"{here}AsyncSaving", runs="io"),
        EnvSpec(name="model_text", factory=plain, text=menu),
        EnvSpec(name="model_text_light", factory=saving, text=saved, runs="light"),
        EnvSpec(name="model_text_saving", factory=saving, text=saved),
        EnvSpec(name="model_text_unsaved", factory=saving, text=menu),
        EnvSpec(name="model_once", factory=plain, replayable=False, kwargs={"acts_once": True}),
        EnvSpec(name="model_once_saving", factory=saving, replayable=False, kwargs={"acts_once": True}),
    ]


SPECS = {spec.name: spec for spec in _specs()}
SAVING = {name for name, spec in SPECS.items() if isinstance(spec.factory, str) and spec.factory.endswith("Saving")}
"""Those with snapshots of their own."""
