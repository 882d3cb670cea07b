"""How frames travel between the trainer and a shard; and the outbox that gathers messages into frames."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from asyncrollout.rollouts.shards.shard_messages import encode_messages

_MOST_WAITING = 32 * 2**20  # bytes of frames that the other side has not taken


class ShardChannel(Protocol):
    """Frames in both directions, in order, until one side closes or is gone."""

    @property
    def waiting(self) -> int:
        """Bytes that were sent and are still here."""

    def open(self, on_frame: Callable[[bytes | memoryview], None], on_closed: Callable[[], None]) -> None:
        """Deliver what arrives from now on, and what has arrived by now. `on_closed` is called once, at the end."""

    def send(self, frame: bytes) -> None:
        """Queue a frame; one that is sent after the end is dropped."""

    def hold(self, *, is_held: bool) -> None:
        """Stop delivering, so that the other side's frames wait there; or continue."""

    async def taken(self) -> None:
        """Wait until the other side has taken most of what was sent, or is gone."""

    def close(self) -> None:
        """Send what is queued, and end."""

    def abort(self) -> None:
        """End at once."""


class ShardOutbox:
    """Messages of one loop iteration, which leave as one frame."""

    def __init__(self, channel: ShardChannel) -> None:
        self._channel = channel
        self._messages: list[Any] = []
        self._loop = asyncio.get_running_loop()

    def put(self, message: Any) -> None:
        if not self._messages:
            self._loop.call_soon(self.flush)
        self._messages.append(message)

    def flush(self) -> None:
        messages, self._messages = self._messages, []
        if messages:
            self._channel.send(encode_messages(messages))

    @property
    def is_full(self) -> bool:
        """Whether the other side is far behind."""
        return self._channel.waiting > _MOST_WAITING

    async def room(self) -> None:
        """Wait while the other side is far behind."""
        while self.is_full:
            await self._channel.taken()
