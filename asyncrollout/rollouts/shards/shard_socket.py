"""A shard in a process of its own: it listens, the trainer connects, and each proves that it is the right one.

One connection carries the frames. Over a second one, a thread of the shard sends a byte each second, whatever its event
loop is doing: so a process that is frozen, or a node that is gone, is told from one that is busy. The shard, for its
part, ends when the trainer's end of a connection is gone.
"""

import asyncio
import hmac
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, cast

import anyio

from asyncrollout.errors import PoolError
from asyncrollout.pool.wire.codec import FrameReader, framed
from asyncrollout.rollouts.shards.shard_server import ShardServer

_PROOF = 32  # bytes of each half of a secret
_CONNECT_SECONDS = 30.0
_ACCEPT_SECONDS = 60.0
_BEAT_EVERY = 1.0
_SILENT_SECONDS = 10.0
_LOST_MILLISECONDS = 60_000  # in which nothing that was sent has arrived
_ENOUGH = 4 * 2**20  # bytes that may wait in a transport

SECRET_BYTES = 2 * _PROOF
"""The first half proves the trainer, the second half the shard."""


class ShardAddress(NamedTuple):
    """Where a shard listens for frames, and for whoever wants to know whether it lives."""

    host: str
    port: int
    beat_port: int


class SocketChannel(asyncio.Protocol):
    """One end of the connection; nothing is delivered before the other end has sent its proof."""

    def __init__(self, own_proof: bytes, other_proof: bytes, on_change: Callable[[], None]) -> None:
        self._on_change = on_change  # it has proven itself, or is gone
        self.is_proven = self.is_closed = False
        self._own_proof, self._other_proof = own_proof, other_proof
        self._greeting = b""
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._on_frame: Callable[[bytes | memoryview], None] | None = None
        self._on_closed: Callable[[], None] | None = None
        self._early: list[bytes] = []
        self._writable = anyio.Event()
        self._writable.set()

    @property
    def waiting(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def open(self, on_frame: Callable[[bytes | memoryview], None], on_closed: Callable[[], None]) -> None:
        self._on_frame, self._on_closed = on_frame, on_closed
        early, self._early = self._early, []
        for frame in early:
            on_frame(frame)
        if self.is_closed:
            on_closed()

    def send(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(frame))

    def hold(self, *, is_held: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if is_held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    async def taken(self) -> None:
        await self._writable.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, of the same shape
        self._transport.set_write_buffer_limits(high=_ENOUGH)
        _send_at_once(transport.get_extra_info("socket"))
        self._transport.write(self._own_proof)

    def data_received(self, data: bytes) -> None:
        if not self.is_proven:
            self._greeting += data
            if len(self._greeting) < _PROOF:
                return
            proof, data = self._greeting[:_PROOF], self._greeting[_PROOF:]
            if not hmac.compare_digest(proof, self._other_proof):
                self.abort()
                return
            self.is_proven = True
            self._on_change()
        for frame in self._reader.feed(data):
            if self._on_frame is None:
                self._early.append(bytes(frame))
            else:
                self._on_frame(frame)

    def pause_writing(self) -> None:
        self._writable = anyio.Event()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_closed = True
        self._on_change()
        self._writable.set()
        if self._on_closed is not None:
            self._on_closed()


def _send_at_once(connection: Any) -> None:
    """However small a frame is."""
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _bound_loss(connection: socket.socket) -> None:
    """A trainer that is out of reach is noticed in a minute, not in a quarter of an hour.

    Not for frames: a trainer whose event loop is blocked for long leaves them unread, and is there all the same.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MILLISECONDS)


# In the shard.


class ShardListener:
    """The sockets of a shard's process; `serve` returns when the shard has ended."""

    def __init__(self, host: str, secret: bytes) -> None:
        self._secret = secret
        self._listener = socket.create_server((host, 0))
        self._beats = socket.create_server((host, 0))
        self.address = ShardAddress(host, self._listener.getsockname()[1], self._beats.getsockname()[1])

    def serve(self) -> None:
        """Wait for the trainer, and serve it to its end; nobody else is let in."""
        threading.Thread(target=self._beat, daemon=True).start()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        trainer, shard = self._secret[:_PROOF], self._secret[_PROOF:]
        arrived: list[SocketChannel] = []
        changed = anyio.Event()

        def accept() -> SocketChannel:
            channel = SocketChannel(shard, trainer, lambda: changed.set())  # noqa: PLW0108 (that of then)
            arrived.append(channel)
            return channel

        server = await asyncio.get_running_loop().create_server(accept, sock=self._listener)
        try:
            with anyio.fail_after(_ACCEPT_SECONDS):
                while not (proven := [one for one in arrived if one.is_proven]):
                    await changed.wait()
                    changed = anyio.Event()
        finally:
            server.close()
        for other in arrived:
            if other is not proven[0]:
                other.abort()
        await ShardServer(proven[0]).run()

    def _beat(self) -> None:
        """In a thread: the end of this connection is the end of this process, whatever it is at."""
        self._beats.settimeout(_ACCEPT_SECONDS)
        try:
            connection = self._accept_beat()
            _bound_loss(connection)
            while True:
                connection.sendall(b".")
                time.sleep(_BEAT_EVERY)
        except OSError:
            os._exit(1)

    def _accept_beat(self) -> socket.socket:
        while True:
            connection, _ = self._beats.accept()
            connection.settimeout(_CONNECT_SECONDS)
            with suppress(OSError):
                if hmac.compare_digest(_received(connection), self._secret[:_PROOF]):
                    self._beats.close()
                    connection.sendall(self._secret[_PROOF:])
                    return connection
            connection.close()


def _received(connection: socket.socket) -> bytes:
    proof = b""
    while len(proof) < _PROOF and (more := connection.recv(_PROOF - len(proof))):
        proof += more
    return proof


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 (not on every system)
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


# In the trainer.


class BeatWatch:
    """Calls whoever belongs to a shard that has been silent for too long; each look costs the silent ones alone."""

    def __init__(self) -> None:
        self._heard: OrderedDict[_BeatProtocol, float] = OrderedDict()  # the longest silent first
        self._observed = 0.0  # seconds that passed while this loop was running
        self._last = time.monotonic()

    async def run(self) -> None:
        while True:
            await anyio.sleep(_BEAT_EVERY)
            now = time.monotonic()
            self._observed += min(now - self._last, 2 * _BEAT_EVERY)  # this loop may have been blocked, or frozen
            self._last = now
            self.look()

    def look(self) -> None:
        while self._heard:
            beats, heard = next(iter(self._heard.items()))
            if self._observed - heard <= _SILENT_SECONDS:
                return
            del self._heard[beats]
            beats.on_silent(f"it has been silent for {_SILENT_SECONDS:g} s")

    def heard(self, beats: "_BeatProtocol") -> None:
        self._heard[beats] = self._observed
        self._heard.move_to_end(beats)

    def forget(self, beats: "_BeatProtocol") -> None:
        self._heard.pop(beats, None)


class _BeatProtocol(asyncio.Protocol):
    def __init__(self, secret: bytes, watch: BeatWatch, on_silent: Callable[[str], None]) -> None:
        self.on_silent = on_silent
        self._secret = secret
        self._watch = watch
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._secret[:_PROOF])
        self._watch.heard(self)

    def data_received(self, _data: bytes) -> None:
        self._watch.heard(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._watch.forget(self)  # the other connection says whether the process has ended


class ShardConnection:
    """The trainer's connections to one shard."""

    def __init__(self, channel: SocketChannel, beats: _BeatProtocol, watch: BeatWatch) -> None:
        self.channel = channel
        self._beats = beats
        self._watch = watch

    def close(self) -> None:
        self.channel.abort()
        self._watch.forget(self._beats)
        if self._beats.transport is not None:
            self._beats.transport.abort()


async def connect_shard(
    address: ShardAddress, secret: bytes, watch: BeatWatch, on_silent: Callable[[str], None]
) -> ShardConnection:
    """Connect to a shard that listens, and have it prove itself."""
    loop = asyncio.get_running_loop()
    channel: SocketChannel | None = None
    try:
        with anyio.fail_after(_CONNECT_SECONDS):
            changed = anyio.Event()
            _, channel = await loop.create_connection(
                lambda: SocketChannel(secret[:_PROOF], secret[_PROOF:], changed.set), address.host, address.port
            )
            await changed.wait()
            if not channel.is_proven:
                raise PoolError(
                    f"what listens at {address.host}:{address.port} is not the shard that was started there"
                )
            _, beats = await loop.create_connection(
                lambda: _BeatProtocol(secret, watch, on_silent), address.host, address.beat_port
            )
    except (OSError, TimeoutError) as error:
        if channel is not None:
            channel.abort()
        why = str(error) or f"no answer within {_CONNECT_SECONDS:g} s"
        raise PoolError(f"a shard at {address.host}:{address.port} cannot be reached from here: {why}") from error
    except BaseException:
        if channel is not None:
            channel.abort()
        raise
    return ShardConnection(channel, beats, watch)
