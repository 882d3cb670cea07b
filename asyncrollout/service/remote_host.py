"""A remote pool's end of the connection to one server, which is where some of its envs live."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import anyio
import msgspec

from asyncrollout import errors
from asyncrollout.concurrency import task_group
from asyncrollout.errors import ClosedError, PoolError, RolloutError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.hosts import Caller, DurationWindow, HostLost
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.messages import OUTCOMES, CallReply, Op, OpenRequest
from asyncrollout.pool.wire.replay_log import RecordedCall, write_log
from asyncrollout.service.connection import Connection, leave
from asyncrollout.service.messages import (
    CLIENT_HEADER,
    LIVE,
    PIECE,
    Outbox,
    RemoteCall,
    RemoteReply,
    decode,
    encode,
    read_frame,
)
from asyncrollout.types import Durations, WorkerStats

log = get_logger(__name__)

_CLOSE_GRACE = 5.0
_LET_GO = 0.05  # seconds for waiting calls to learn that the server is given up
_PIECE_OVERHEAD = 32  # bytes of a piece besides its content, at most

Pending = tuple["asyncio.Future[CallReply]", RemoteCall]


class RemoteHost:
    """The host of the envs that live at one server. A call that was in flight when the connection broke is repeated.

    A lost connection is retried for `patience` seconds, in which `usable` stays true. Then the server is given up:
    calls raise `HostLost` until it is back, which `on_back` reports. Envs without calls in flight may still live there.
    """

    is_idle = True  # as for `wait`
    is_held_up = False

    def __init__(
        self,
        rank: int,
        url: str,
        *,
        client_id: str,
        token: str | None,
        patience: float,
        on_back: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.url = url
        self.load = 0.0
        self.envs = 0
        self.clock = DurationWindow()
        self.reconnects = 0
        self.trouble: RolloutError | None = None
        self.just_lost = False  # calls made now have already waited for it
        self._on_back = on_back
        headers = {CLIENT_HEADER: client_id} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        self._connection = Connection(url, headers, patience)
        self._pending: dict[tuple[int, int], Pending] = {}
        self._numbers: dict[int, int] = {}  # of each env that lives here, its latest call
        self._outbox = Outbox()

    @property
    def usable(self) -> bool:
        return self.trouble is None

    def wait(self) -> float:
        """Always 0: the server balances the load in its own pool."""
        return 0.0

    def call(self, env_id: int, op: Op, payload: Any, *, caller: Caller | None = None) -> Awaitable[CallReply]:  # noqa: ARG002
        content = encode(_PAYLOADS.get(op, _as_it_is)(payload))
        if op is Op.REPLAY and len(content) > self._connection.largest // 2:
            return self._replay_in_pieces(env_id, bytes(content))
        return self._send(env_id, op, content)

    async def _replay_in_pieces(self, env_id: int, replay_log: bytes) -> CallReply:
        """A log that is too long for one message: the server puts it together and replays it."""
        size = max(1, self._connection.largest // 2 - _PIECE_OVERHEAD)
        for start in range(0, len(replay_log), size):
            reply = await self._send(env_id, PIECE, encode([start, replay_log[start : start + size]]))
            if reply.failure is not None:
                return reply
        return await self._send(env_id, Op.REPLAY, encode(None))

    def _send(self, env_id: int, op: int, content: msgspec.Raw) -> "asyncio.Future[CallReply]":
        future: asyncio.Future[CallReply] = asyncio.get_running_loop().create_future()
        if self.trouble is not None:
            self._numbers.pop(env_id, None)  # the env is about to leave
            future.set_exception(HostLost("crash", cause=str(self.trouble)))
        else:
            call = self._call(env_id, op, content)
            self._pending[env_id, call.number] = (future, call)
            self._outbox.put(call)
        return future

    def drop(self, env_id: int) -> None:
        if self.trouble is None:
            self._outbox.put(self._call(env_id, Op.CLOSE, encode(None)))
        self._numbers.pop(env_id, None)  # if this does not reach the server, `LIVE` will

    def _call(self, env_id: int, op: int, content: msgspec.Raw) -> RemoteCall:
        if len(content) > self._connection.largest // 2:
            raise codec.UnsendableError(f"{len(content):,} bytes are more than half of what {self.url} takes at a time")
        number = self._numbers[env_id] = self._numbers.get(env_id, 0) + 1
        return RemoteCall(env_id, number, int(op), content)

    def stats(self) -> WorkerStats:
        return WorkerStats(
            rank=self.rank,
            pid=None,
            envs=self.envs,
            queued=len(self._pending),
            calls=self.clock.calls,
            restarts=self.reconnects,
            seconds=Durations.of(self.clock.recent()),
        )

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep a connection until the pool is closed. The first attempt must succeed."""
        async with self._connection as connection:
            await connection.make()
            task_status.started()
            while self.trouble is None:  # else the pool is closed
                try:
                    await self._talk()
                    if self.trouble is None:
                        await connection.make_again(len(self._pending))
                        self._resume()
                except RolloutError as error:
                    self._give_up(error)
                    await self._come_back()

    def _give_up(self, error: RolloutError) -> None:
        log.warning("host_lost", host=self.url, error=str(error))
        self.just_lost = True
        self._end(error, HostLost("crash", cause=str(error)))

    async def _come_back(self) -> None:
        """Try the server again until it takes the connection."""
        await anyio.sleep(_LET_GO)
        self.just_lost = False
        while self.trouble is not None:
            await self._connection.rest(self.trouble)
            try:
                await self._connection.make()
                self.trouble = None
            except RolloutError as error:
                self.trouble = error
        log.info("host_back", host=self.url)
        self._resume()
        self._on_back()

    def _resume(self) -> None:
        """List the live envs, so that the server closes the others, and repeat calls that have no answer yet."""
        self.reconnects += 1
        for future, call in self._take_awaited():
            if call.env in self._numbers:
                self._pending[call.env, call.number] = (future, call)
            else:
                future.set_exception(self._closed())
        self._outbox = Outbox()
        self._outbox.put(RemoteCall(0, 0, LIVE, encode([*self._numbers])))
        for _, call in self._pending.values():
            self._outbox.put(call)

    async def _talk(self) -> None:
        """Send and receive until the connection is lost."""
        socket = self._connection.socket
        assert socket is not None
        try:
            async with task_group() as tasks:
                tasks.start_soon(self._write, socket)
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.BINARY:
                        break
                    answers = self._answers(message.data)
                    self._connection.heard()
                    for answer in answers:
                        self._take(answer)
                tasks.cancel_scope.cancel()
        finally:
            await leave(socket)

    def _answers(self, frame: bytes) -> list[RemoteReply]:
        try:
            return read_frame(frame, RemoteReply)
        except UsageError as error:
            raise PoolError(f"{self.url} is not an asyncrollout server: {error}") from error

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            await self._outbox.run(socket.send_bytes, self._connection.largest)
        except (aiohttp.ClientError, OSError):  # the reader notices, too
            return

    def _take(self, answer: RemoteReply) -> None:
        pending = self._pending.pop((answer.env, answer.number), None)
        if pending is None:
            return
        future, call = pending
        is_over = call.op == Op.CLOSE or answer.gone
        if is_over and self._numbers.get(call.env) == call.number:
            del self._numbers[call.env]
        if future.done():  # it was cancelled
            return
        if answer.gone:
            future.set_exception(HostLost("crash", cause=f"{self.url} no longer has this env"))
            return
        self.clock.extend((answer.seconds,))
        try:
            future.set_result(_reply(answer, call))
        except UsageError as error:
            future.set_exception(PoolError(f"{self.url} sent an invalid answer: {error}"))

    async def close(self) -> None:
        """Notify the server that this pool is closed, and all its envs with it."""
        socket = self._connection.socket
        if self.trouble is not None or socket is None:
            return
        self._end(PoolError("the pool is closed"), HostLost("closed"))
        try:
            with anyio.move_on_after(_CLOSE_GRACE, shield=True):
                self._outbox.put(RemoteCall(0, 0, int(Op.STOP)))
                await self._outbox.flush(socket.send_bytes, self._connection.largest)
                await socket.close()
        except (aiohttp.ClientError, OSError):  # it is lost anyway
            return

    def _end(self, trouble: RolloutError, lost: HostLost) -> None:
        """Fail the calls that wait for an answer, so that their envs move elsewhere."""
        self.trouble = trouble
        for future, call in self._take_awaited():
            lives = self._numbers.pop(call.env, None) is not None
            future.set_exception(lost if lives else self._closed())

    def _take_awaited(self) -> list[Pending]:
        """Take all pending calls; returns those still awaited. An env whose close is not awaited is gone."""
        pending, self._pending = [*self._pending.values()], {}
        for future, call in pending:
            if call.op == Op.CLOSE and future.done():
                self._numbers.pop(call.env, None)
        return [(future, call) for future, call in pending if not future.done()]

    def _closed(self) -> ClosedError:
        return ClosedError(f"the env was closed during this call, and the connection to {self.url} was lost")


def _reply(answer: RemoteReply, call: RemoteCall) -> CallReply:
    if answer.failure is not None:
        kind = getattr(errors, answer.failure.raises, None)
        if not isinstance(kind, type) or not issubclass(kind, RolloutError):
            raise UsageError(f"unknown error {answer.failure.raises!r:.100}")
        return CallReply(0, answer.failure, None, None, None, answer.seconds, None)
    value, info = decode(answer.value), decode(answer.info)
    has_outcome = call.op in OUTCOMES and not (call.op == Op.REPLAY and value is None)
    if has_outcome and (not isinstance(value, list) or len(value) != 4):
        raise UsageError("an outcome must have four parts")
    return CallReply(0, None, value, info, answer.digest, answer.seconds, None)


def _as_it_is(payload: Any) -> Any:
    return payload


def _opening(opening: OpenRequest) -> list[Any]:
    return [opening.spec.name, dict(opening.spec.kwargs)]


def _called(called: RecordedCall) -> list[Any]:
    return [called.method, called.args, called.kwargs, called.keep]


_PAYLOADS: dict[Op, Callable[[Any], Any]] = {Op.OPEN: _opening, Op.CALL: _called, Op.REPLAY: write_log}
