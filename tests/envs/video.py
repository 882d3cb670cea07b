"""Envs whose pictures tell who painted them, and when. Workers import this file, so it imports little."""

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncrollout import EnvSpec, Parsed, TextOptions


class Painter:
    """Red is the seed and the member, green the count of actions; what is odd about it is said by `kind`."""

    metadata: Mapping[str, Any] = {"render_fps": 5}
    plays_by_chance = True

    def __init__(self, size: tuple[int, int] = (32, 48), kind: str = "rgb", once: str = "") -> None:
        self.size = size
        self.kind = kind
        self.once = once

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.options = dict(options or {})
        self.painter = (seed or 0) % 4 * 4 + self.options.get("member", 0)
        self.actions = 0
        return self.actions, {}

    def step(self, action: int) -> Any:
        self.actions += 1
        if self.actions == 3 and self._is_first_time():
            if self.kind == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kind == "breaks":
                raise RuntimeError("it breaks")
        return self.actions, float(action), False, False, {"success": action > 1}

    def _is_first_time(self) -> bool:
        """In all processes."""
        try:
            Path(self.once).touch(exist_ok=False)
        except OSError:
            return False
        return True

    def modules(self) -> list[str]:
        return [*sys.modules]

    def render(self) -> Any:
        height, width = self.size
        if self.kind == "grows":
            height, width = height + 10 * self.actions, width + 14 * self.actions
        frame = np.empty((height, width, 3), dtype=np.uint8)
        frame[:] = colour(self.painter, self.actions)
        if self.kind == "blind" and self.actions == 2:
            raise RuntimeError("it looks away")
        return {"none": None, "text": "a text", "number": 7, "odd": Unseen()}.get(self.kind, frame)

    def snapshot(self) -> bytes:
        return bytes([self.painter, self.actions])

    def restore(self, state: bytes) -> None:
        self.painter, self.actions = state


class Replayed(Painter):
    """Has no snapshots of its own."""

    snapshot = None  # type: ignore[assignment]
    restore = None  # type: ignore[assignment]


class Slow(Painter):
    """Waits within a call, once there is a directory `gate`, until it has a file `opens`."""

    def __init__(self, gate: str = "") -> None:
        super().__init__()
        self.gate = Path(gate) if gate else None

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self._wait()
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        self._wait()
        return super().step(action)

    def _wait(self) -> None:
        if self.gate is not None and self.gate.exists():
            (self.gate / "waits").touch()
            while not (self.gate / "opens").exists():
                time.sleep(0.002)


class Noise(Painter):
    """Frames of some 3400 bytes each, in a video."""

    def render(self) -> Any:
        chance = np.random.default_rng(self.actions)
        return chance.integers(0, 256, (48, 64, 3), dtype=np.uint8)


class Unseen:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise KeyError("it has no pixels")


class PainterText:
    """`go 3` is three actions, each worth its number; anything else is invalid."""

    def __init__(self, env: Painter, options: TextOptions) -> None:
        self.env = env

    def parse(self, reply: str) -> Parsed:
        word, _, number = reply.partition(" ")
        if word == "go" and number.isdigit():
            return Parsed([int(number)] * int(number))
        return Parsed([], valid=False, reason="say go and a number")

    def describe(self, observation: int) -> str:
        return f"{observation} strokes"

    def system_prompt(self) -> str:
        return "Paint."

    def tell(self, action: int) -> str:
        return f"stroke {action}"


class NoRender:
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, True, False, {}


class Asked(Painter):
    """Shows a picture only if it was made for that, as Gymnasium's envs do."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return super().render() if self.render_mode == "rgb_array" else None


class Waiting(Painter):
    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed, options=options)

    async def step(self, action: int) -> Any:
        return super().step(action)

    async def render(self) -> Any:
        return super().render()


def colour(painter: int, actions: int) -> tuple[int, int, int]:
    return 10 + 15 * (painter % 16), 10 + 15 * (actions % 16), 60


PAINTER = EnvSpec(name="painter", factory="tests.envs.video:Painter", text="tests.envs.video:PainterText", runs="light")
ON_WORKER = dataclasses.replace(PAINTER, runs="cpu")
TURNS = ["go 2", "what?", "go 1", "go 3"]
