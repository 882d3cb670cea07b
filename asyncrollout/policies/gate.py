"""Pauses and versions for policies that have none of their own."""

import anyio
import msgspec

from asyncrollout.policies.weights import PauseMode
from asyncrollout.protocols import Policy
from asyncrollout.types import Generation, Request


class Gated:
    """A policy that can be held back while its weights change, and whose replies tell the version of its weights."""

    def __init__(self, inner: Policy, version: int = 0) -> None:
        self.inner = inner
        self.version = version
        self._running = anyio.Event()
        self._running.set()
        self._under_way: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()

    async def generate(self, request: Request) -> Generation:
        while True:
            await self._running.wait()
            version = self.version
            with anyio.CancelScope() as scope:
                self._under_way.add(scope)
                try:
                    generation = await self.inner.generate(request)
                    return msgspec.structs.replace(generation, version=version)
                finally:
                    self._under_way.discard(scope)
                    if not self._under_way:
                        self._idle.set()

    async def pause(self, mode: PauseMode = "wait") -> None:
        """Hold new calls back: calls under way are awaited, stopped to be made again, or left alone."""
        if self._running.is_set():
            self._running = anyio.Event()
        if mode == "abort":
            for scope in tuple(self._under_way):
                scope.cancel()
        while self._under_way and mode != "continue":
            if self._idle.is_set():
                self._idle = anyio.Event()
            await self._idle.wait()

    async def resume(self, version: int | None = None) -> None:
        """Let calls through again; what they give is of this version of the weights."""
        self.version = self.version if version is None else version
        self._running.set()
