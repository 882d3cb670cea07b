"""A remote pool's connection to one server: connecting, reconnecting, and what a refusal means."""

import random
from types import TracebackType
from typing import Self

import aiohttp
import anyio
import msgspec

from asyncrollout.errors import PoolError, RolloutError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.policies.openai.bodies import read_start
from asyncrollout.service.messages import PATH, PROTOCOL, Hello

log = get_logger(__name__)

_HEARTBEAT = 10.0  # seconds
_CONNECT_SECONDS = 5.0
_LEAVE_SECONDS = 1.0
_LARGEST_ANSWER = 1 << 30
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between attempts to connect while calls wait
_FIRST_PAUSE_AWAY, _LONGEST_PAUSE_AWAY = 1.0, 5.0  # between attempts after the server was given up
_MOST_LOSSES = 5  # in a row, without an answer in between


class Connection:
    """A WebSocket that can reconnect; an async context manager. The server takes messages of up to `largest` bytes."""

    def __init__(self, url: str, headers: dict[str, str], patience: float) -> None:
        self.url = url
        self.largest = 0
        self.socket: aiohttp.ClientWebSocketResponse | None = None
        self._headers = headers
        self._patience = patience
        self._http: aiohttp.ClientSession | None = None
        self._losses = 0
        self._pause_away = _FIRST_PAUSE_AWAY
        self._made_at = 0.0

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(headers=self._headers, auto_decompress=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._http is not None
        if self.socket is not None:  # it may never have been used
            await leave(self.socket)
        await self._http.close()

    async def make(self) -> None:
        """One attempt; `PoolError` if the server is not there, `UsageError` if it refuses."""
        assert self._http is not None
        refused = 0
        try:
            with anyio.fail_after(_CONNECT_SECONDS):
                socket = await self._http.ws_connect(
                    self.url + PATH, heartbeat=_HEARTBEAT, max_msg_size=_LARGEST_ANSWER, compress=0
                )
                self.largest = await _greeted(socket, self.url)
                self.socket, self._made_at = socket, anyio.current_time()
        except aiohttp.WSServerHandshakeError as error:
            refused = error.status
        except (aiohttp.ClientError, OSError, TimeoutError, TypeError, msgspec.DecodeError) as error:
            raise PoolError(f"{self.url} cannot be reached: {str(error) or type(error).__name__}") from error
        if refused:  # outside `except`: aiohttp's error shows the token, and must not be chained
            raise await _refusal(self._http, self.url, refused)

    def heard(self) -> None:
        """The server has answered: forget earlier losses."""
        self._losses, self._pause_away = 0, _FIRST_PAUSE_AWAY

    async def make_again(self, calls: int) -> None:
        """Reconnect after a loss with this many calls in flight; raises the reason if the server is given up."""
        self._count_loss(calls)
        pause = _FIRST_PAUSE
        deadline = anyio.current_time() + self._patience
        if self._losses > 1:
            await _sleep(self._losses * pause)
        while True:
            try:
                return await self.make()
            except PoolError:
                if anyio.current_time() + pause > deadline:
                    raise
            await _sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _count_loss(self, calls: int) -> None:
        log.warning("connection_lost", host=self.url, calls=calls)
        is_short = anyio.current_time() - self._made_at < _LONGEST_PAUSE
        self._losses += bool(calls) or is_short
        if self._losses > _MOST_LOSSES:
            losses, self._losses = self._losses, 0
            raise PoolError(f"{self.url} closed the connection {losses} times without an answer")

    async def rest(self, trouble: RolloutError) -> None:
        """The pause before the next attempt at a server that was given up; the longest if it refuses."""
        await _sleep(_LONGEST_PAUSE_AWAY if isinstance(trouble, UsageError) else self._pause_away)
        self._pause_away = min(2 * self._pause_away, _LONGEST_PAUSE_AWAY)


async def _sleep(pause: float) -> None:
    await anyio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, so that clients do not reconnect all at once)


async def _greeted(socket: aiohttp.ClientWebSocketResponse, url: str) -> int:
    """The largest message that the server takes, by its greeting; closes the socket if the greeting is not valid."""
    largest = None
    try:
        hello = msgspec.msgpack.decode(await socket.receive_bytes(), type=Hello)
        if hello.protocol != PROTOCOL:
            raise UsageError(
                f"{url} speaks protocol {hello.protocol}, this pool {PROTOCOL}: use the same version on both sides"
            )
        largest = hello.largest
    finally:
        if largest is None:
            await leave(socket)
    return largest


async def leave(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Close a socket without waiting long for the other side."""
    with anyio.move_on_after(_LEAVE_SECONDS, shield=True):
        await socket.close()


async def _refusal(http: aiohttp.ClientSession, url: str, status: int) -> RolloutError:
    """The error with the server's reason, which only a plain request receives."""
    reason = f"status {status}"
    try:
        with anyio.fail_after(_CONNECT_SECONDS):
            async with http.get(url + PATH) as response:
                reason += f", {msgspec.json.decode(await read_start(response))['error']}"
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, KeyError, TypeError):
        reason += ", which is not an answer of `asyncrollout serve`"
    is_busy = status >= 500 or status == 429
    return (PoolError if is_busy else UsageError)(f"{url} refused the connection: {reason}")
