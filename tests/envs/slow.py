"""Environments that take their time, or wait for each other, and write down what becomes of them."""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.lowlevel

from tests.envs.tiny import AsyncCounter, Counter, Step

_LOOK = 0.002  # seconds, in envs that wait for a file


def write(diary: str, *words: object) -> None:
    with Path(diary).open("a") as lines:
        lines.write(" ".join(map(str, words)) + "\n")


def read(diary: Path) -> list[list[str]]:
    return [line.split() for line in diary.read_text().splitlines()] if diary.exists() else []


class Lengthy(Counter):
    """Takes seconds, or parts of one, to be built, reset, stepped and closed."""

    def __init__(
        self, diary: str, build: float = 0.0, reset: float = 0.0, step: float = 0.0, close: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._diary, self._reset, self._step, self._close = diary, reset, step, close
        write(diary, "built")
        time.sleep(build)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        time.sleep(self._reset)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        write(self._diary, "stepped", action)
        time.sleep(self._step)
        return super().step(action)

    def close(self) -> None:
        time.sleep(self._close)
        write(self._diary, "closed")


class Held(Counter):
    """A step of "hold" lasts as long as the file is there; all that is done is written down, with its thread."""

    def __init__(self, diary: str, name: str = "", hold: str = "", build_hold: str = "", close_hold: str = "") -> None:
        super().__init__()
        self._diary, self._name, self._hold, self._close_hold = diary, name, hold, close_hold
        self._is_stepping = False
        self._write("building")
        _wait_while(build_hold)
        self._write("built")

    def step(self, action: Any) -> Step:
        self._is_stepping = True
        self._write("step")
        if action == "hold":
            _wait_while(self._hold)
        self._is_stepping = False
        return super().step(1 if action == "hold" else action)

    def set_name(self, name: str) -> None:
        self._name = name

    def close(self) -> None:
        self._write("closing")
        _wait_while(self._close_hold)
        self._write("closed-within-its-step" if self._is_stepping else "closed")

    def _write(self, what: str) -> None:
        write(self._diary, what, self._name, os.getpid(), threading.get_ident())


class Crowd(Counter):
    """In the process `first`, steps never end; in any other, each waits until there were as many as `together`."""

    def __init__(self, diary: str, first: int, together: int) -> None:
        super().__init__()
        self._diary, self._first, self._together = Path(diary), first, together

    def step(self, action: Any) -> Step:
        write(str(self._diary), "step", os.getpid())
        while sum(int(pid) != self._first for _, pid in read(self._diary)) < self._together:
            time.sleep(_LOOK)
        return super().step(action)


class AsyncLong(AsyncCounter):
    """Steps take a while each; those of "stay" never end. Its end can wait until as many as `crowd` are at theirs."""

    entered: ClassVar[list[str]] = []
    closed: ClassVar[list[str]] = []

    def __init__(self, name: str = "", step: float = 0.0, crowd: int = 0, hangs: bool = False) -> None:
        super().__init__()
        self._name, self._step, self._crowd, self._hangs = name, step, crowd, hangs
        self._is_stepping = False

    async def step(self, action: Any) -> Step:
        self._is_stepping = True
        try:
            await anyio.sleep(float("inf") if action == "stay" else self._step)
            return await super().step(1 if action == "stay" else action)
        finally:
            await anyio.lowlevel.cancel_shielded_checkpoint()
            self._is_stepping = False

    async def close(self) -> None:
        self.entered.append(self._name)
        while len(self.entered) < self._crowd:
            await anyio.lowlevel.checkpoint()
        if self._hangs:
            await anyio.sleep(float("inf"))
        self.closed.append("within its step" if self._is_stepping else self._name)


class Confused(AsyncCounter):
    """Awaits tasks of its own, after it has cancelled them."""

    async def step(self, action: Any) -> Step:
        await _cancelled_task()
        return await super().step(action)

    async def close(self) -> None:
        await _cancelled_task()


async def _cancelled_task() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


def _wait_while(path: str) -> None:
    while path and Path(path).exists():
        time.sleep(_LOOK)
