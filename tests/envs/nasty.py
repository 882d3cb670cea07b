"""Environments that raise and return whatever Python allows."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import anyio.lowlevel

from tests.envs.tiny import Counter, Step


class OwnBaseError(BaseException):
    """Not even an Exception."""


def _with_text(what: Callable[[], Any]) -> type[Exception]:
    class BadText(Exception):
        def __str__(self) -> str:
            text: str = what()
            return text

        __repr__ = __str__

    return BadText


class _BadMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class BadName(Exception, metaclass=_BadMeta):
    pass


class BadClass(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, _: Any) -> None:
        raise RuntimeError("no class")


class BadNotes(Exception):
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no notes")


def _interrupt() -> None:
    raise KeyboardInterrupt("in a text")


RAISED: dict[str, Callable[[], BaseException]] = {
    "generator exit": lambda: GeneratorExit("left"),
    "cancelled": lambda: asyncio.CancelledError("by itself"),
    "interrupt": lambda: KeyboardInterrupt("by itself"),
    "exit": lambda: SystemExit("bye"),
    "stop": lambda: StopIteration("over"),
    "async stop": lambda: StopAsyncIteration("over"),
    "own base": lambda: OwnBaseError("deep"),
    "group": lambda: BaseExceptionGroup("two", [KeyboardInterrupt("one"), BadName("two")]),
    "text raises": lambda: _with_text(lambda: 1 / 0)(),
    "text exits": lambda: _with_text(sys.exit)(),
    "text interrupts": lambda: _with_text(_interrupt)(),
    "text of no type": lambda: _with_text(object)(),
    "metaclass": lambda: BadName("x"),
    "class": lambda: BadClass("x"),
    "notes": lambda: BadNotes("x"),
}


class LoadsAs:
    """Pickles well, and raises when it is loaded."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return _raise, (self.kind,)


class NoRepr:
    def __repr__(self) -> str:
        raise KeyboardInterrupt("in a repr")


def _raise(kind: str) -> None:
    error = RAISED[kind]()
    raise error


class Nasty(Counter):
    """An action `(where, kind)` says what it raises, and how."""

    def __init__(self, build: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if build:
            _raise(build)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        if options:
            _raise(options["task"])
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        if not isinstance(action, tuple):
            return super().step(action)
        where, kind = action
        text, *rest = super().step(1)
        odd: Any = text
        match where:
            case "raise":
                _raise(kind)
            case "load":
                odd = LoadsAs(kind)
            case "info":
                rest[-1] = {"x": LoadsAs(kind)}
            case "shape":
                return NoRepr()  # type: ignore[return-value]
            case "reward":
                rest[0] = NoRepr()
        return odd, *rest

    def raise_it(self, kind: str) -> None:
        _raise(kind)

    def give(self, kind: str) -> LoadsAs:
        return LoadsAs(kind)


class AsyncNasty:
    """The same on the event loop."""

    def __init__(self, **kwargs: Any) -> None:
        self.inner = Nasty(**kwargs)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        await anyio.lowlevel.checkpoint()
        return self.inner.reset(seed=seed, options=options)

    async def step(self, action: Any) -> Step:
        await anyio.lowlevel.checkpoint()
        if action == "wait":
            await anyio.sleep_forever()
        return self.inner.step(action)

    async def raise_it(self, kind: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.inner.raise_it(kind)

    def give(self, kind: str) -> LoadsAs:
        return self.inner.give(kind)
