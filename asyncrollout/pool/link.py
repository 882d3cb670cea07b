"""The pool's end of a worker's socket: calls go out in frames, replies resolve their futures."""

import asyncio
import hmac
from collections.abc import Callable, Iterable
from typing import Any, cast

from asyncrollout.pool import wire
from asyncrollout.pool.arrays import ArrayReader
from asyncrollout.pool.home import Clock, Lost, Reply
from asyncrollout.pool.wire import Op

Pending = tuple["asyncio.Future[Reply]", Op, bool]
"""A call under way: who waits for it, what it is, and whether it may be made elsewhere."""

_MOST_CALLS = 16  # calls; the worker plays them while the next ones are prepared


class Link(asyncio.Protocol):
    """The home of one worker process's envs. Calls of one loop iteration travel in few frames; each costs a future."""

    def __init__(
        self,
        rank: int,
        *,
        token: bytes,
        arrays: ArrayReader,
        clock: Clock,
        on_hello: Callable[["Link"], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.rank = rank
        self.load = 0.0
        self.envs = 0
        self.stuck = False
        self.pid = 0
        self.pending: dict[int, Pending] = {}
        self._ended: Lost | None = None
        self._token = token
        self._arrays = arrays
        self._clock = clock
        self._on_hello = on_hello
        self._on_lost = on_lost
        self._frames = wire.FrameReader()
        self._decode = wire.Unpacker(arrays.read).decode
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outbox: list[tuple[int, int, int, Any]] = []
        self._last_id = 0

    @property
    def usable(self) -> bool:
        return self._ended is None

    def call(self, env_id: int, op: Op, payload: Any, *, movable: bool = False) -> "asyncio.Future[Reply]":
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self._ended is not None:
            future.set_exception(self._ended)
            return future
        message = wire.embed(payload)
        self._last_id = call_id = self._last_id + 1
        self.pending[call_id] = (future, op, movable)
        outbox = self._outbox
        if not outbox:
            self._loop.call_soon(self._flush)
        outbox.append((call_id, env_id, op, message))
        if len(outbox) >= _MOST_CALLS:
            self._flush()
        return future

    def drop(self, env_id: int) -> None:
        self._last_id += 1
        self._outbox.append((self._last_id, env_id, Op.CLOSE, None))
        self._flush()

    def stop(self) -> None:
        """Ask the worker to close its envs and end."""
        self._outbox.append((0, 0, Op.STOP, None))
        self._flush()

    def let_go(self, call_ids: Iterable[int], lost: Callable[[int], Lost]) -> None:
        """Give up these calls: whoever awaits them hears why."""
        for call_id in call_ids:
            future = self.pending.pop(call_id)[0]
            if not future.done():
                future.set_exception(lost(call_id))

    def end(self, later: Lost, lost: Callable[[int], Lost]) -> None:
        """The worker is gone: give up all calls, and those to come."""
        self._ended = later
        self.let_go(list(self.pending), lost)
        self._arrays.close()
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        calls, self._outbox = self._outbox, []
        if calls and self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.frame(calls))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, of the same shape

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            replies = self._decode(frame)
            if not self.pid:
                self._greet(replies)
                continue
            waiting = self.pending
            for reply in replies:
                pending = waiting.pop(reply[0], None)
                if pending is not None and not pending[0].done():  # else it was moved or cancelled meanwhile
                    pending[0].set_result(reply)
            self._clock.extend([reply[5] for reply in replies])

    def _greet(self, hello: Any) -> None:
        token, pid = hello
        if hmac.compare_digest(token, self._token):
            self.pid = pid
            self._on_hello(self)
        elif self._transport is not None:
            self._transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.pid:
            self._on_lost()
