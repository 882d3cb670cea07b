"""Frames carried by calls of an actor, where no port but Ray's own is open.

A call costs the pool about half a millisecond, however little it carries. So one is under way in each direction at a
time, and what is written meanwhile leaves with the next one.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import anyio

from asyncrollout.ray.actor_host import ActorLink

FRAMES_GROUP = "frames"
"""The actor's threads for these calls, beside the one that watches."""


class CallTransport:
    """What writes as an asyncio transport does, as far as hosts and links use one."""

    def __init__(self, on_write: Callable[[], None]) -> None:
        self.written = bytearray()
        self._on_write = on_write
        self._is_closed = False

    def write(self, data: bytes) -> None:
        if not self._is_closed:
            self.written += data
            self._on_write()

    def is_closing(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        self._is_closed = True
        self.written.clear()

    def take(self) -> bytes:
        data = bytes(self.written)
        self.written.clear()
        return data


class FrameCalls:
    """Both connections of a life, of the worker's host and of the link to its actor, over one actor's calls."""

    def __init__(self, actor: Any, host: asyncio.Protocol, link: ActorLink) -> None:
        grouped = {"concurrency_group": FRAMES_GROUP}
        self._send = actor.send.options(**grouped)
        self._receive = actor.receive.options(**grouped)
        self._host, self._link = host, link
        self._wake = anyio.Event()
        self._steps, self._control = CallTransport(self._note), CallTransport(self._note)
        link.connection_made(cast("asyncio.Transport", self._control))
        host.connection_made(cast("asyncio.Transport", self._steps))

    def _note(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Until the actor is gone, which whoever awaits its `run` learns, too."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._carry_out)
            await self._carry_in()
            tasks.cancel_scope.cancel()

    async def _carry_out(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            steps, control = self._steps.take(), self._control.take()
            if steps or control:
                try:
                    await self._send.remote(steps, control)
                except Exception:  # noqa: BLE001 (Ray raises all sorts; the end of `run` says which)
                    return

    async def _carry_in(self) -> None:
        while True:
            try:
                steps, control = await self._receive.remote()
            except Exception:  # noqa: BLE001 (likewise)
                return
            if control:
                self._link.data_received(control)
            if steps is None:
                self._host.connection_lost(None)
            elif steps:
                self._host.data_received(steps)
