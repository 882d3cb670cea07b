"""Shards on the trainer's own event loop: all that shards do but for other processes, for tests and simulations."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio

from asyncrollout.concurrency import Background
from asyncrollout.errors import PoolError
from asyncrollout.rollouts.shards.shard_server import ShardServer


@dataclass(frozen=True)
class LocalShards:
    """So many shards, in turn on so many nodes; what they are given is pickled, as for other processes."""

    count: int
    nodes: int = 1
    workers: int | None = None

    def launcher(self) -> "LocalShardLauncher":
        return LocalShardLauncher(self)


class LocalShardLauncher:
    """Starts servers as tasks. `processes` has the latest one of each shard, by its name."""

    def __init__(self, shards: LocalShards) -> None:
        self.processes: dict[str, LocalShardProcess] = {}
        self._shards = shards
        self._background = Background()
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        await self._background.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.close(error)

    async def start(self, name: str, on_silent: Callable[[str], None]) -> "LocalShardProcess":  # noqa: ARG002
        if self._shards.nodes < 1:
            raise PoolError("there are no nodes")
        process = LocalShardProcess(f"node{next(self._numbers) % self._shards.nodes}")
        self.processes[name] = process
        self._background.start_soon(process.run)
        return process


class LocalShardProcess:
    """A server that runs as a task."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.channel, self.inner_channel = LocalChannel.pair()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def run(self) -> None:
        try:
            with self._scope:
                await ShardServer(self.inner_channel).run()
        finally:
            self._ended.set()

    def die(self) -> None:
        """As if it were killed: what it has not sent is lost."""
        self.channel.abort()
        self._scope.cancel()

    async def kill(self) -> None:
        self.die()
        await self._ended.wait()


class LocalChannel:
    """One of two ends on the same event loop; `pair` makes both. Each end reaches into the other."""

    def __init__(self) -> None:
        self._peer: LocalChannel | None = None
        self.arrived: list[bytes] = []
        self._on_frame: Callable[[bytes | memoryview], None] | None = None
        self._on_closed: Callable[[], None] | None = None
        self._is_held = self.is_closed = self._is_reported = self._is_due = False
        self.changed = anyio.Event()

    @classmethod
    def pair(cls) -> tuple["LocalChannel", "LocalChannel"]:
        one, other = cls(), cls()
        one._peer, other._peer = other, one
        return one, other

    @property
    def waiting(self) -> int:
        assert self._peer is not None
        return sum(map(len, self._peer.arrived))

    def open(self, on_frame: Callable[[bytes | memoryview], None], on_closed: Callable[[], None]) -> None:
        self._on_frame, self._on_closed = on_frame, on_closed
        self.plan()

    def send(self, frame: bytes) -> None:
        assert self._peer is not None
        if not self.is_closed:
            self._peer.arrived.append(frame)
            self._peer.plan()

    def hold(self, *, is_held: bool) -> None:
        self._is_held = is_held
        self.plan()

    async def taken(self) -> None:
        if self.is_closed:
            await anyio.sleep_forever()  # whoever sends is about to be cancelled
        await self.changed.wait()

    def close(self) -> None:
        assert self._peer is not None
        for end in (self, self._peer):
            end.is_closed = True
            end.plan()

    def abort(self) -> None:
        """As a process that is killed: nothing that has not arrived ever will."""
        assert self._peer is not None
        for end in (self, self._peer):
            end.arrived.clear()
        self.close()

    def plan(self) -> None:
        if not self._is_due and self._on_frame is not None:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_due = False
        assert self._on_frame is not None
        assert self._on_closed is not None
        assert self._peer is not None
        while self.arrived and not self._is_held:
            self._on_frame(self.arrived.pop(0))
        self._peer.changed.set()
        self._peer.changed = anyio.Event()
        if self.is_closed and not self.arrived and not self._is_reported:
            self._is_reported = True
            self._on_closed()
