"""A server's end of the connection to a remote pool."""

import re
import time

import aiohttp
import anyio
import anyio.lowlevel
import msgspec
from aiohttp import web

from asyncrollout.errors import UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.wire.messages import Op
from asyncrollout.service.clients import Client
from asyncrollout.service.messages import CLIENT_HEADER, PROTOCOL, Hello, Outbox, RemoteCall, RemoteReply, read_frame
from asyncrollout.service.sessions import Sessions

log = get_logger(__name__)

_HEARTBEAT = 30.0  # seconds
_MOST_UNSENT = 10_000  # answers; a pool that reads them has at most two per env
_SLICE = 200  # calls that are started at a time, at most
_LEAST_SLICE = 10
_LONG_ROUND = 0.004  # seconds of the event loop
_CLIENT_ID = re.compile(r"[0-9a-f]{32}")


class ServerChannel:
    """One WebSocket: calls come in frames, answers go out in frames as they are ready."""

    def __init__(self, sessions: Sessions, largest: int) -> None:
        self._sessions = sessions
        self._largest = largest
        self._outbox = Outbox()
        self._socket = web.WebSocketResponse(max_msg_size=largest, heartbeat=_HEARTBEAT, compress=False)
        self._stopping = False
        self._slice = _SLICE
        self._begun = 0  # since other tasks had a turn
        self._scope = anyio.CancelScope()

    def send(self, answer: RemoteReply) -> None:
        self._outbox.put(answer)

    async def run(self, request: web.Request) -> web.WebSocketResponse:
        """Serve until the other side leaves."""
        client_id = request.headers.get(CLIENT_HEADER, "")
        if not _CLIENT_ID.fullmatch(client_id):
            raise UsageError(f"a remote pool must send its id in the header {CLIENT_HEADER!r}")
        socket = self._socket
        if not socket.can_prepare(request):
            raise UsageError("this endpoint is for remote pools: asyncrollout.RemoteEnvPool(url, token=...)")
        await socket.prepare(request)
        await socket.send_bytes(msgspec.msgpack.encode(Hello(PROTOCOL, self._largest)))
        client = self._sessions.attach(client_id, self)
        log.info("pool_connected", pool=client_id[:8], envs=len(client.sessions))
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write)
                    if await self._read(client):
                        await self._sessions.close_client(client)
                    tasks.cancel_scope.cancel()
        finally:
            self._sessions.detach(client, self)
            log.info("pool_left", pool=client_id[:8], envs=len(client.sessions))
        return socket

    async def _read(self, client: Client) -> bool:
        """Read calls until the pool leaves; whether it said that it is closed, or else may come back."""
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                break
            if client.channel is not self:  # its pool is connected by another one
                break
            try:
                calls = read_frame(message.data, RemoteCall)
                while calls:
                    now, calls = calls[: self._slice], calls[self._slice :]
                    if self._begin(client, now):
                        return True
                    if len(self._outbox) > _MOST_UNSENT:
                        await self._leave(aiohttp.WSCloseCode.POLICY_VIOLATION, "answers are not taken")
                        return False
                    self._begun += len(now)
                    if self._begun >= self._slice:
                        await self._let_others()
            except UsageError as error:
                await self._leave(aiohttp.WSCloseCode.PROTOCOL_ERROR, str(error))
                break
        return False

    async def _let_others(self) -> None:
        """Let other connections have a turn; the longer that takes, the fewer calls are started at a time."""
        began, self._begun = time.perf_counter(), 0
        await anyio.lowlevel.checkpoint()
        seconds = time.perf_counter() - began
        if seconds > _LONG_ROUND:
            self._slice = max(self._slice // 2, _LEAST_SLICE)
        elif seconds < _LONG_ROUND / 4:
            self._slice = min(self._slice * 2, _SLICE)

    async def _leave(self, code: int, reason: str) -> None:
        await self._socket.close(code=code, message=reason.encode("ascii", "replace")[:100])

    def _begin(self, client: Client, calls: list[RemoteCall]) -> bool:
        """Start these calls; whether the pool said that it is closed."""
        for call in calls:
            if call.op == Op.STOP:
                return True
            if not self._stopping:
                self._sessions.begin(client, call)
        return False

    async def _write(self) -> None:
        try:
            await self._outbox.run(self._socket.send_bytes, self._largest)
        except (aiohttp.ClientError, OSError):  # the reader notices, too
            return

    def stop(self) -> None:
        """Start no more calls."""
        self._stopping = True

    def leave(self) -> None:
        """Take no more calls: the pool is connected by another channel."""
        self._scope.cancel()

    async def close(self, code: int, reason: str) -> None:
        """Send what is ready, and leave."""
        try:
            await self._outbox.flush(self._socket.send_bytes, self._largest)
            await self._socket.close(code=code, message=reason.encode())
        except (aiohttp.ClientError, OSError):
            return
