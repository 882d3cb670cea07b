"""Envs whose resets, restores and calls go wrong in ways of their own."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from asyncrollout import Parsed, TextOptions
from tests.envs.recovery import Changing, Gatekeeper, Saving
from tests.envs.tiny import Step


class Picky(Changing):
    """Takes no task."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if options:
            raise ValueError("no tasks here")
        return super().reset(seed=seed, options=options)


class Stuck:
    """An async env whose resets hang while a file is there."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.inner = Changing(length=50)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        await anyio.lowlevel.checkpoint()
        if self.path.exists():
            await anyio.sleep_forever()
        return self.inner.reset(seed=seed, options=options)

    async def step(self, action: Any) -> Step:
        await anyio.lowlevel.checkpoint()
        return self.inner.step(action)

    def set_level(self, level: int) -> None:
        self.inner.set_level(level)


class Forwarding:
    """Counts steps itself, and passes on all else to an env that has snapshots."""

    def __init__(self) -> None:
        self.inner = Saving(length=50)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return self.inner.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.count += 1
        _, *rest = self.inner.step(action)
        return self.count, *rest

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class EnvTimeout(Exception):
    """Called like one of ours."""


class Counted(Gatekeeper):
    """Has a property that counts how often it was read."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reads = 0

    @property
    def read(self) -> int:
        self.reads += 1
        return self.reads

    def time_out(self) -> None:
        self.extras += 1
        raise EnvTimeout("not the pool's")


class Box:
    """Only a pickle can hold it."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and other.content == self.content

    def __hash__(self) -> int:
        return hash(self.content)


class Boxed(Saving):
    """Its observations have no safe file form."""

    def _show(self) -> Any:
        return Box(super()._show())


class BoxText:
    def __init__(self, env: Boxed, options: TextOptions) -> None:
        self.env = env

    def parse(self, reply: str) -> Parsed:
        return Parsed([int(reply)])

    def describe(self, observation: Box) -> str:
        return str(observation.content)

    def system_prompt(self) -> str:
        return "Numbers."
