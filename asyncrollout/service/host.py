"""A remote pool's end of the connection to one server, which is where some of its envs live."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import aiohttp
import anyio
import msgspec
import structlog

from asyncrollout import errors
from asyncrollout.errors import PoolError, RolloutError, UsageError
from asyncrollout.pool import wire
from asyncrollout.pool.home import Clock, Lost, Reply
from asyncrollout.pool.hosted import Called, Opening, Past
from asyncrollout.pool.wire import OUTCOMES, Op
from asyncrollout.service.exchange import (
    CLIENT_HEADER,
    PATH,
    PROTOCOL,
    Answer,
    Call,
    Hello,
    Outbox,
    decode,
    encode,
    read_frame,
)
from asyncrollout.tasks import task_group
from asyncrollout.types import Durations, WorkerStats

log = structlog.get_logger(__name__)

_HEARTBEAT = 10.0  # seconds
_CONNECT_SECONDS = 5.0
_LARGEST_ANSWER = 1 << 30
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_MOST_LOSSES = 5  # of a connection with calls under way, one after the other, without an answer in between
_CLOSE_GRACE = 5.0

Pending = tuple["asyncio.Future[Reply]", Call]


class Host:
    """The home of the envs that live at one server. A call that was under way when the connection broke is asked again.

    `usable` stays true while the server is tried again, for `patience` seconds; then all calls are `Lost`.
    """

    stuck = False

    def __init__(self, rank: int, url: str, *, client_id: str, token: str | None, patience: float) -> None:
        self.rank = rank
        self.url = url
        self.load = 0.0
        self.envs = 0
        self.clock = Clock()
        self.reconnects = 0
        self.trouble: RolloutError | None = None
        self._patience = patience
        self._headers = {CLIENT_HEADER: client_id} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        self._pending: dict[tuple[int, int], Pending] = {}
        self._numbers: dict[int, int] = {}
        self._outbox = Outbox()
        self._largest = 0
        self._losses = 0
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    @property
    def usable(self) -> bool:
        return self.trouble is None

    def call(self, env_id: int, op: Op, payload: Any, *, movable: bool = False) -> "asyncio.Future[Reply]":  # noqa: ARG002
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if op is Op.SNAPSHOT:  # an env's own state is never read from a network: its episode is played again instead
            future.set_result((0, None, None, None, None, 0.0, None))
        elif self.trouble is not None:
            future.set_exception(Lost("crash", cause=str(self.trouble)))
        else:
            call = self._call(env_id, op, encode(_PAYLOADS.get(op, _as_it_is)(payload)))
            self._pending[env_id, call.number] = (future, call)
            self._outbox.put(call)
        return future

    def drop(self, env_id: int) -> None:
        if self.trouble is None:
            self._outbox.put(self._call(env_id, Op.CLOSE, encode(None)))
            self._numbers.pop(env_id, None)

    def _call(self, env_id: int, op: Op, payload: msgspec.Raw) -> Call:
        if len(payload) > self._largest // 2:
            raise wire.UnsendableError(f"{len(payload):,} bytes are more than half of what {self.url} takes at a time")
        number = self._numbers[env_id] = self._numbers.get(env_id, 0) + 1
        return Call(env_id, number, int(op), payload)

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
        """Hold the connection; ends when the server is given up. The first one must come at once."""
        async with aiohttp.ClientSession(headers=self._headers) as http:
            await self._connect(http)
            task_status.started()
            try:
                while True:
                    await self._talk()
                    if self.trouble is not None:
                        return
                    self._count_loss()
                    await self._reconnect(http)
                    self.reconnects += 1
                    self._outbox = Outbox()
                    for _, call in self._pending.values():
                        self._outbox.put(call)
            except RolloutError as error:
                log.warning("host_lost", host=self.url, error=str(error))
                self._end(error, Lost("crash", cause=str(error)))

    def _count_loss(self) -> None:
        log.warning("connection_lost", host=self.url, calls=len(self._pending))
        self._losses += bool(self._pending)
        if self._losses > _MOST_LOSSES:
            raise PoolError(f"{self.url} closed the connection {self._losses} times without an answer")

    async def _reconnect(self, http: aiohttp.ClientSession) -> None:
        pause = _FIRST_PAUSE
        deadline = anyio.current_time() + self._patience
        while True:
            try:
                return await self._connect(http)
            except PoolError:
                if anyio.current_time() + pause > deadline:
                    raise
            await anyio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (so that not all come back at once)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _connect(self, http: aiohttp.ClientSession) -> None:
        """One try; `PoolError` if the server is not there, `UsageError` if it refuses."""
        refused = 0
        try:
            with anyio.fail_after(_CONNECT_SECONDS):
                socket = await http.ws_connect(
                    self.url + PATH, heartbeat=_HEARTBEAT, max_msg_size=_LARGEST_ANSWER, compress=0
                )
                hello = msgspec.msgpack.decode(await socket.receive_bytes(), type=Hello)
        except aiohttp.WSServerHandshakeError as error:
            refused = error.status
        except (aiohttp.ClientError, OSError, TimeoutError, TypeError, msgspec.DecodeError) as error:
            raise PoolError(f"{self.url} cannot be reached: {str(error) or type(error).__name__}") from error
        if refused:  # out of reach of aiohttp's own error, which shows the token among the headers
            raise await self._refusal(http, refused)
        if hello.protocol != PROTOCOL:
            await socket.close()
            raise UsageError(f"{self.url} speaks protocol {hello.protocol}, and this is {PROTOCOL}: use one version")
        self._largest = hello.largest
        self._socket = socket

    async def _refusal(self, http: aiohttp.ClientSession, status: int) -> RolloutError:
        """What the server says about it, which only a plain request is told."""
        reason = f"status {status}"
        try:
            with anyio.fail_after(_CONNECT_SECONDS):
                async with http.get(self.url + PATH) as response:
                    reason += f", {msgspec.json.decode(await response.read())['error']}"
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, KeyError, TypeError):
            reason += ", which is no answer of `asyncrollout serve`"
        is_busy = status >= 500 or status == 429
        return (PoolError if is_busy else UsageError)(f"{self.url} refused the connection: {reason}")

    async def _talk(self) -> None:
        """Send and receive until the connection is lost."""
        socket = self._socket
        assert socket is not None
        async with task_group() as tasks:
            tasks.start_soon(self._write, socket)
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    break
                for answer in self._answers(message.data):
                    self._losses = 0
                    self._take(answer)
            tasks.cancel_scope.cancel()

    def _answers(self, frame: bytes) -> list[Answer]:
        try:
            return read_frame(frame, Answer)
        except UsageError as error:
            raise PoolError(f"{self.url} is no server of ours: {error}") from error

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            await self._outbox.run(socket.send_bytes, self._largest)
        except (aiohttp.ClientError, OSError):  # the reader finds out, too
            return

    def _take(self, answer: Answer) -> None:
        pending = self._pending.pop((answer.env, answer.number), None)
        if pending is None:
            return
        future, call = pending
        if call.op == Op.CLOSE:
            self._numbers.pop(answer.env, None)
        if future.done():  # whoever asked is gone
            return
        if answer.gone:
            future.set_exception(Lost("crash", cause=f"{self.url} has this env no more"))
            return
        self.clock.extend((answer.seconds,))
        try:
            future.set_result(_reply(answer, call))
        except UsageError as error:
            future.set_exception(PoolError(f"{self.url} gave an answer that makes no sense: {error}"))

    async def close(self) -> None:
        """Say that all envs of this pool are done with."""
        socket = self._socket
        if self.trouble is not None or socket is None:
            return
        self._end(PoolError("the pool is closed"), Lost("closed"))
        try:
            with anyio.move_on_after(_CLOSE_GRACE, shield=True):
                self._outbox.put(Call(0, 0, int(Op.STOP)))
                await self._outbox.flush(socket.send_bytes, self._largest)
                await socket.close()
        except (aiohttp.ClientError, OSError):  # it is lost anyway
            return

    def _end(self, trouble: RolloutError, lost: Lost) -> None:
        self.trouble = trouble
        waiting, self._pending = self._pending, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(lost)


def _reply(answer: Answer, call: Call) -> Reply:
    if answer.failure is not None:
        told = getattr(errors, answer.failure.raises, None)
        if not isinstance(told, type) or not issubclass(told, RolloutError):
            raise UsageError(f"no error is called {answer.failure.raises!r:.100}")
        return 0, answer.failure, None, None, None, answer.seconds, None
    value, info = decode(answer.value), decode(answer.info)
    if call.op in OUTCOMES and call.op != Op.REPLAY and (not isinstance(value, list) or len(value) != 4):
        raise UsageError("an outcome has four parts")
    return 0, None, value, info, answer.digest, answer.seconds, None


def _as_it_is(payload: Any) -> Any:
    return payload


def _opening(opening: Opening) -> list[Any]:
    return [opening.spec.name, dict(opening.spec.kwargs)]


def _called(called: Called) -> list[Any]:
    return [called.method, called.args, called.kwargs]


def _past(past: Past) -> list[Any]:
    if past.state is not None:
        raise wire.UnsendableError("a snapshot that holds an env's own state: it was not made by a remote pool")
    done = [[isinstance(entry, Called), _called(entry) if isinstance(entry, Called) else entry] for entry in past.done]
    return [[_called(one) for one in past.setup], past.seed, past.task, past.member, done, past.digests]


_PAYLOADS: dict[Op, Callable[[Any], Any]] = {Op.OPEN: _opening, Op.CALL: _called, Op.REPLAY: _past}
