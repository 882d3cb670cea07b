"""The remote pools of a server, and what it keeps of each of their envs."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.service.messages import RemoteReply, decode


class Session:
    """One env of a remote pool: the number of its latest call, and the answer once there is one."""

    def __init__(self) -> None:
        self.handle: EnvHandle | None = None
        self.number = 0
        self.answer: RemoteReply | None = None
        self.waiting = 0
        self.reads = 0  # how many of `waiting` only read
        self.idle_since = time.monotonic()
        self.turn = asyncio.Lock()  # anyio's yields to the event loop at each acquisition
        self._pieces = bytearray()

    def add_piece(self, start: Any, content: Any, largest: int) -> None:
        """Add a part of a replay log that is too long for one message; one at 0 starts again."""
        if not isinstance(content, bytes):
            raise UsageError(f"a piece of a replay log must be bytes, not {content!r:.100}")
        if start == 0:
            self.forget_pieces()
        if start != len(self._pieces):
            raise UsageError(
                f"a piece of its replay log starts at {start!r:.100}, but {len(self._pieces)} bytes have arrived"
            )
        if start + len(content) > largest:
            self.forget_pieces()
            raise UsageError(
                f"its replay log takes more than the {largest:,} bytes that this server replays: start the server with "
                "a larger --max-body"
            )
        self._pieces += content

    def take_log(self) -> Any:
        """The replay log that the pieces make up."""
        pieces = msgspec.Raw(self._pieces)
        self.forget_pieces()
        return decode(pieces)

    def forget_pieces(self) -> None:
        self._pieces = bytearray()


class Channel(Protocol):
    """Where answers go."""

    def send(self, answer: RemoteReply) -> None: ...

    def leave(self) -> None:
        """Take no more calls."""


class Client:
    """One remote pool: its envs and, while it is connected, its channel."""

    def __init__(self, client_id: str) -> None:
        self.id = client_id
        self.sessions: dict[int, Session] = {}
        self.channel: Channel | None = None
        self.left_at = time.monotonic()

    def take(self, envs: Iterable[int] | None = None) -> list[Session]:
        """Remove and return the sessions of these envs, or all."""
        return [self.sessions.pop(env) for env in [*(self.sessions if envs is None else envs)]]

    def send(self, answer: RemoteReply) -> None:
        if self.channel is not None:  # otherwise it asks again when it reconnects
            self.channel.send(answer)
