"""The trainer's end of one shard, from its start to its end: orders go out, reports come in."""

from collections.abc import Callable
from typing import Any

import anyio

from asyncrollout.errors import PoolError
from asyncrollout.journal.events import ShardPlace
from asyncrollout.pool.wire.definitions import SentDefinitions
from asyncrollout.rollouts.shards.placed_group import PlacedGroup, error_from
from asyncrollout.rollouts.shards.shard_channel import ShardChannel, ShardOutbox
from asyncrollout.rollouts.shards.shard_messages import (
    CancelGroup,
    EndShard,
    GroupEnded,
    PauseHeard,
    PoliciesPaused,
    PoolCounts,
    ShardFailed,
    ShardOrder,
    ShardReady,
    decode_reports,
)


class ShardLink:
    """What one shard plays, and whether it is ready, paused or gone.

    A link has one life. Whatever a shard sends after its link has ended is never read: that is what fences a shard that
    may still be running.
    """

    def __init__(
        self,
        place: ShardPlace,
        channel: ShardChannel,
        *,
        on_read: Callable[["ShardLink"], None],
        on_end: Callable[["ShardLink"], None],
    ) -> None:
        self.place = place
        self.plays: dict[int, PlacedGroup] = {}
        self.rollouts = 0  # of the groups that play here
        self.played = 0  # groups that came to their end
        self.pool = PoolCounts(0, 0, 0)
        self.is_ready = self.is_draining = False
        self.lost: str | None = None
        self.failure: Exception | None = None
        """Why it could not start."""
        self.heard_pause = self.paused = 0  # the numbers of the last ones
        self.changed = anyio.Event()
        self._channel = channel
        self._outbox = ShardOutbox(channel)
        self._on_read = on_read
        self._on_end = on_end
        self.sent = SentDefinitions()
        self.is_ending = False

    def open(self, setup: bytes) -> None:
        """Send what the shard is made of; every later order comes after it."""
        self._channel.send(setup)
        self._channel.open(self._on_frame, self._on_closed)

    def send(self, order: ShardOrder) -> None:
        if self.lost is None:
            self._outbox.put(order)

    def add(self, play: int, group: PlacedGroup) -> None:
        self.plays[play] = group
        self.rollouts += group.size

    def remove(self, play: int) -> None:
        self.rollouts -= self.plays.pop(play).size
        self._notify()

    def cancel(self, play: int) -> None:
        self.send(CancelGroup(play))

    def finish(self) -> None:
        """Ask the shard to end."""
        self.is_ending = True
        self.send(EndShard())
        self._outbox.flush()
        self._notify()

    def end(self, reason: str) -> None:
        """It is gone, or is to be: nothing that it says counts from now on."""
        if self.lost is not None:
            return
        self.lost = reason
        self._on_end(self)
        self._channel.abort()
        for group in [*self.plays.values()]:
            group.lose(reason)
        self._notify()

    def hold(self, *, is_held: bool) -> None:
        """Leave its reports unread, while the disk is behind."""
        if self.lost is None:
            self._channel.hold(is_held=is_held)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, or the shard is lost."""
        while self.lost is None and not is_so():
            await self.changed.wait()

    def _on_frame(self, frame: bytes | memoryview) -> None:
        if self.lost is not None:
            return
        for report in decode_reports(frame):
            group = self.plays.get(getattr(report, "play", 0))
            if group is None:
                self._hear(report)
            elif type(report) is GroupEnded:
                self._end_group(group, report)
            else:
                group.hear(report)  # type: ignore[arg-type] # only reports of members are left
        self._on_read(self)

    def _end_group(self, group: PlacedGroup, ended: GroupEnded) -> None:
        self.played += 1
        if ended.error:
            group.fail(error_from(ended.error))
        elif not group.is_finished:
            group.fail(PoolError(f"shard {self.place.shard} ended group {group.request.id} without its rollouts"))
        group.over.set()

    def _hear(self, report: Any) -> None:
        match report:
            case ShardReady():
                self.is_ready = True
            case ShardFailed(error=error):
                self.failure = error_from(error)
                self.end(f"{type(self.failure).__name__}: {self.failure}")
            case PauseHeard(number=number):
                self.heard_pause = number
            case PoliciesPaused(number=number):
                self.heard_pause = self.paused = number
            case PoolCounts():
                self.pool = report
            case _:  # of a stay that is over
                return
        self._notify()

    def _on_closed(self) -> None:
        self.end("it was closed" if self.is_ending else "its process ended")

    def _notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()
