"""Where the workers of a pool connect to: one port of this program, on the address by which its cluster knows it."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

from asyncrollout.errors import PoolError
from asyncrollout.pool.wire import codec, network

_GREETING_LIMIT = 20.0  # seconds
_MOST_STRANGERS = 1024  # connections that have not proved anything yet


class _Greeting(msgspec.Struct, frozen=True, array_like=True):
    life: bytes
    role: str
    proof: bytes
    challenge: bytes


_read_greeting = msgspec.msgpack.Decoder(_Greeting).decode

Admission = Callable[[str], asyncio.Protocol | None]
"""What a connection of this role continues as; None if it is not expected."""


class WorkerListener:
    """Lets in the connections of lives that it knows."""

    def __init__(self) -> None:
        self.host, self.port = "", 0
        self._lives: dict[bytes, tuple[bytes, Admission]] = {}
        self._strangers: set[_Doorkeeper] = set()
        self._server: asyncio.Server | None = None

    async def open(self, host: str) -> None:
        try:
            self._server = await asyncio.get_running_loop().create_server(lambda: _Doorkeeper(self), host, 0)
        except OSError as error:
            raise PoolError(
                f"workers cannot connect to this program at {host}, the address of its Ray node: {error}. "
                'RayOptions(transport="ray") needs no port of its own'
            ) from error
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for stranger in [*self._strangers]:
            stranger.refuse()

    def expect(self, admit: Admission) -> network.NetworkAddress:
        """Let in the connections of a new life."""
        life, secret = secrets.token_bytes(12), secrets.token_bytes(32)
        self._lives[life] = secret, admit
        return network.NetworkAddress(self.host, self.port, life, secret)

    def forget(self, address: network.NetworkAddress) -> None:
        self._lives.pop(address.life, None)

    def welcome(self, stranger: "_Doorkeeper") -> bool:
        if len(self._strangers) >= _MOST_STRANGERS:
            return False
        self._strangers.add(stranger)
        return True

    def part_with(self, stranger: "_Doorkeeper") -> None:
        self._strangers.discard(stranger)

    def admit(self, greeting: "_Greeting", challenge: bytes) -> tuple[bytes, asyncio.Protocol] | None:
        """The answer to a greeting, and what the connection continues as."""
        secret, admit = self._lives.get(greeting.life, (b"", None))
        if admit is None or not network.is_proof(secret, challenge, greeting.role, greeting.proof):
            return None
        protocol = admit(greeting.role)
        return None if protocol is None else (network.prove(secret, greeting.challenge, "pool"), protocol)


class _Doorkeeper(asyncio.Protocol):
    """A connection until it has proved that it belongs to a life."""

    def __init__(self, listener: WorkerListener) -> None:
        self._listener = listener
        self._challenge = secrets.token_bytes(network.CHALLENGE)
        self._frames = codec.FrameReader(most=network.MOST_GREETING)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, of the same shape
        if not self._listener.welcome(self):
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(_GREETING_LIMIT, self.refuse)
        connection: Any = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            network.notice_silence(connection)
        self._transport.write(self._challenge)

    def data_received(self, data: bytes) -> None:
        try:
            greeting = next(iter(self._frames.feed(data)), None)
            if greeting is None:  # the rest of it is yet to come
                return
            admitted = self._listener.admit(_read_greeting(greeting), self._challenge)
        except (ValueError, msgspec.MsgspecError):
            admitted = None
        if admitted is None:
            self.refuse()
        else:
            self._continue_as(*admitted)

    def _continue_as(self, answer: bytes, protocol: asyncio.Protocol) -> None:
        transport = self._transport
        assert transport is not None
        self._leave()
        transport.write(answer)  # the other side sends nothing before it has read this
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def refuse(self) -> None:
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self._listener.part_with(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
