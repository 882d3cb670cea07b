"""Envs that calls change for good, or for an episode, and that show it: what a rebuilt env has lost is seen at once."""

import json
from pathlib import Path
from typing import Any

import anyio.lowlevel
import numpy as np

from asyncrollout import Parsed, TextOptions
from tests.envs.tiny import Step


class Changing:
    """Ends after `length` steps. Level and extras are for good, the total is the episode's; observations show all."""

    def __init__(self, length: int = 4) -> None:
        self.length = length
        self.level = 1
        self.extras = 0
        self.asked = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.luck = np.random.default_rng(seed)
        self.total = self.steps = 0
        return self._show(), {"place": "reset"}

    def step(self, action: Any) -> Step:
        gained = int(self.luck.integers(1, 10)) * int(action) * self.level
        self.total += gained
        self.steps += 1
        return self._show(), float(gained + self.extras), self.steps >= self.length, False, {"gained": gained}

    def set_level(self, level: int) -> int:
        self.level = level
        return level

    def add(self, amount: int) -> int:
        self.extras += amount
        return self.extras

    def nudge(self, amount: int) -> int:
        """Of the episode alone."""
        self.total += amount
        return self.total

    def score(self) -> int:
        """Only in an episode; it counts how often it was asked."""
        self.asked += 1
        return self.total

    def change_then_raise(self) -> None:
        self.extras += 1000
        raise ValueError("changed all the same")

    def raise_once(self, path: str) -> None:
        if not Path(path).exists():
            Path(path).touch()
            raise ValueError("only the first time")

    def give_odd(self) -> Any:
        """Changes the env, and gives what cannot travel."""
        self.extras += 1
        return lambda: 0

    def render(self) -> np.ndarray[Any, Any]:
        return np.zeros((2, 2, 3), np.uint8)

    def _show(self) -> Any:
        return f"{self.total} at level {self.level}, {self.extras} extra, asked {self.asked}"


class Saving(Changing):
    """Has snapshots, of the episode alone."""

    def snapshot(self) -> bytes:
        return json.dumps([self.total, self.steps, self.luck.bit_generator.state]).encode()

    def restore(self, state: bytes) -> None:
        self.luck = np.random.default_rng(0)
        self.total, self.steps, self.luck.bit_generator.state = json.loads(state)


class AsyncSaving:
    """Whose every method is a coroutine, also those that take and restore snapshots."""

    def __init__(self) -> None:
        self.inner = Saving(length=8)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        await anyio.lowlevel.checkpoint()
        return self.inner.reset(seed=seed, options=options)

    async def step(self, action: Any) -> Step:
        await anyio.lowlevel.checkpoint()
        return self.inner.step(action)

    async def snapshot(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        return self.inner.snapshot()

    async def restore(self, state: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self.inner.restore(state)

    async def render(self) -> None:
        await anyio.sleep_forever()


class Menu:
    """Reads replies by what it described: the choices of a turn are other ones each time."""

    def __init__(self, env: Saving, options: TextOptions) -> None:
        self.env = env
        self.options = options
        self.choices: dict[str, int] = {}

    def parse(self, reply: str) -> Parsed:
        if reply not in self.choices:
            return Parsed([], valid=False, reason="no such choice")
        return Parsed([self.choices[reply]])

    def describe(self, observation: Any) -> str:
        self.choices = {f"choice {self.env.total + number}": number for number in (1, 2, 3)}
        return f"{observation}: {', '.join(self.choices)}"

    def system_prompt(self) -> str:
        return "Choose."


class SavedMenu(Menu):
    """Its choices are part of a snapshot."""

    def snapshot(self) -> bytes:
        return json.dumps(self.choices).encode()

    def restore(self, state: bytes) -> None:
        self.choices = json.loads(state)


class SlottedMenu(Menu):
    __slots__ = ("hidden",)

    def describe(self, observation: Any) -> str:
        self.hidden = self.env.total
        return f"{observation}: {self.env.total}"

    def parse(self, reply: str) -> Parsed:
        return Parsed([2 if self.hidden else 1])


class Framed(Changing):
    """Shows one and the same array each time, and a dict that is its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.frame = np.zeros(4, np.int64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        _, info = super().reset(seed=seed, options=options)
        return self._paint(), {**info, "kept": [1]}

    def step(self, action: Any) -> Any:
        _, reward, terminated, truncated, info = super().step(action)
        return self._paint(), reward, terminated, truncated, {**info, "kept": [self.total]}

    def smear(self) -> None:
        self.frame[:] = -1

    def _paint(self) -> Any:
        self.frame[:] = self.total
        return self.frame


class FramedSaving(Framed, Saving):
    """The same with snapshots."""


class Listing(Changing):
    """Changes what it was made with, and shows it."""

    def __init__(self, items: list[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.items = items

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        _, info = super().reset(seed=seed, options=options)
        return list(self.items), info

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        self.items.append(action)
        return list(self.items), *rest


class PlainText:
    def __init__(self, env: Changing, options: TextOptions) -> None:
        self.env = env

    def parse(self, reply: str) -> Parsed:
        return Parsed([int(reply)]) if reply.isdigit() else Parsed([], valid=False, reason="no number")

    def describe(self, observation: Any) -> str:
        return str(observation)

    def system_prompt(self) -> str:
        return "Numbers."

    def solve(self) -> str:
        return "1"


class Drifting(Changing):
    """Each object's first episode goes another way, as a file remembers how many there were."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with Path(path).open("a") as file:
            file.write("x")
        self.nth = len(Path(path).read_text())

    def _show(self) -> Any:
        return f"{super()._show()} {self.nth}"


class Gatekeeper(Changing):
    """Waits at a gate, a named pipe, while it renders or is called."""

    def __init__(self, pipe: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipe = pipe

    def render(self) -> Any:
        self._wait()
        return super().render()

    def wait_then_add(self, amount: int) -> None:
        self._wait()
        self.extras += amount

    def _wait(self) -> None:
        with Path(self.pipe).open("wb", buffering=0) as gate:
            gate.write(b"begun")
            gate.write(bytes(1 << 20))


class SlowSnapshot(Saving):
    """Its snapshot waits at the gate."""

    def __init__(self, pipe: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipe = pipe

    def snapshot(self) -> bytes:
        with Path(self.pipe).open("wb", buffering=0) as gate:
            gate.write(b"begun")
            gate.write(bytes(1 << 20))
        return super().snapshot()


class Halting(Changing):
    """Whatever fails has changed the episode by then."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        shown = super().reset(seed=seed)
        if options is not None:
            self._halt()
        return shown

    def step(self, action: Any) -> Step:
        return self._halt() if action == "x" else super().step(action)

    def _halt(self) -> Any:
        self.total += 1000
        raise ValueError("stopped half-way")
