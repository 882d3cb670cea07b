"""A connection that can be cut: a relay of bytes between a client and a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream


class Cable:
    """`url` leads to the server. Cut, it drops what is connected; muted, it swallows what the server says, and
    deaf, what the client says.

    Both are heard again when the client connects anew.
    """

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._streams: set[SocketStream] = set()
        self.url = ""
        self.muted = self.deaf = self.severed = False
        self.swallowed = anyio.Event()
        self.connections = 0

    async def _relay(self, source: SocketStream, target: SocketStream, *, answers: bool) -> None:
        try:
            async for data in source:
                if self.muted if answers else self.deaf:
                    self.swallowed.set()
                else:
                    await target.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        await anyio.aclose_forcefully(target)
        await anyio.aclose_forcefully(source)

    async def _connected(self, client: SocketStream) -> None:
        self.connections += 1
        self.muted = self.deaf = False
        server = None if self.severed else await self._connect()
        if server is None:
            await anyio.aclose_forcefully(client)
            return
        async with client, server:
            both = {client, server}
            self._streams |= both
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: self._relay(client, server, answers=False))
                await self._relay(server, client, answers=True)
            self._streams -= both

    async def _connect(self) -> SocketStream | None:
        """None if the server is not there."""
        assert self._server.hostname is not None
        assert self._server.port is not None
        try:
            return await anyio.connect_tcp(self._server.hostname, self._server.port)
        except OSError:
            return None

    async def sever(self) -> None:
        """Cut it, and let nobody through until `severed` is false again."""
        self.severed = True
        await self.cut()

    async def cut(self) -> None:
        for stream in [*self._streams]:
            await anyio.aclose_forcefully(stream)

    @asynccontextmanager
    async def laid(self) -> AsyncIterator["Cable"]:
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as tasks,
        ):
            self.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
            tasks.start_soon(listener.serve, self._connected)
            yield self
            tasks.cancel_scope.cancel()
