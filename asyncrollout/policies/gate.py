"""Calls that are held back while weights change."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import anyio
import msgspec

from asyncrollout import checks
from asyncrollout.policies.compose import nested
from asyncrollout.protocols import Policy
from asyncrollout.types import Generation, PauseMode, Request


class Gate:
    """Lets calls through, or holds them back; and knows those that are under way."""

    def __init__(self) -> None:
        self._open = anyio.Event()
        self._open.set()
        self._idle = anyio.Event()
        self._under_way: set[asyncio.Timeout] = set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def wait(self) -> None:
        await self._open.wait()

    @contextmanager
    def passing(self, timer: asyncio.Timeout) -> Iterator[None]:
        """A call under its timer, which expires at once if the call is to be made again.

        A timer of asyncio costs a third of a cancel scope, and every call has one.
        """
        self._under_way.add(timer)
        try:
            yield
        finally:
            self._under_way.discard(timer)
            if not self._under_way:
                self._idle.set()

    async def shut(self, mode: PauseMode) -> None:
        """Hold calls back; those under way are awaited, stopped, or left alone. If cancelled, it opens again."""
        checks.one_of("mode", mode, get_args(PauseMode))
        if self.is_open:
            self._open = anyio.Event()
        if mode == "abort":
            self.stop_all()
        is_shut = False
        try:
            while self._under_way and mode != "continue" and not self.is_open:
                if self._idle.is_set():
                    self._idle = anyio.Event()
                await self._idle.wait()
            is_shut = True
        finally:
            if not is_shut:
                self.open()

    def stop_all(self) -> None:
        now = asyncio.get_running_loop().time()
        for timer in self._under_way:
            if not timer.expired():
                timer.reschedule(now)

    def open(self) -> None:
        self._open.set()
        self._idle.set()


class Gated:
    """A policy that can be held back while its weights change, and whose replies tell the version of its weights."""

    def __init__(self, inner: Policy, version: int = 0) -> None:
        self.inner = inner
        self.version = version
        self._gate = Gate()

    async def generate(self, request: Request) -> Generation:
        while True:
            await self._gate.wait()
            version = self.version
            try:
                async with asyncio.timeout(None) as timer:
                    with self._gate.passing(timer):
                        generation = await self.inner.generate(request)
                        return msgspec.structs.replace(generation, version=version)
            except TimeoutError:
                if not timer.expired():  # the policy's own
                    raise

    async def pause(self, mode: PauseMode = "wait") -> None:
        """Hold new calls back: calls under way are awaited, stopped to be made again, or left alone."""
        await self._gate.shut(mode)

    async def resume(self, version: int | None = None) -> None:
        """Let calls through again; what they give is of this version of the weights."""
        _forget(self.inner)
        self.version = self.version if version is None else version
        self._gate.open()


class Composed:
    """A policy around others that can be held back, or are told of new weights, by themselves."""

    def __init__(self, inner: Policy, parts: Sequence[Any]) -> None:
        self.inner = inner
        self._parts = parts

    @property
    def version(self) -> int:
        version: int = self._parts[0].version
        return version

    async def generate(self, request: Request) -> Generation:
        return await self.inner.generate(request)

    async def pause(self, mode: PauseMode = "wait") -> None:
        for part in self._parts:
            await part.pause(mode)

    async def resume(self, version: int | None = None) -> None:
        _forget(self.inner)
        for part in self._parts:
            await part.resume(version)


def _forget(policy: Policy) -> None:
    """Replies of the old weights are not given again."""
    for part in nested(policy):
        if hasattr(part, "forget"):
            part.forget()
