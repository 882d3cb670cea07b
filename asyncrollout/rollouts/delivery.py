"""Batches on their way from streams of groups to whoever awaits them: each one comes to somebody, and once."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio
import msgspec

from asyncrollout.arrays.batch import Batch
from asyncrollout.errors import UsageError
from asyncrollout.rollouts.durable import Ready
from asyncrollout.rollouts.watching import Watching
from asyncrollout.sampler.draws import Draws
from asyncrollout.sampler.stream import GroupStream, Order, StreamRules
from asyncrollout.sampler.tally import Tally
from asyncrollout.trajectories import Group

StartStream = Callable[[StreamRules], tuple[GroupStream, anyio.CancelScope]]

_END_GRACE = 30.0


class Delivery:
    """Numbers batches, has them recorded by `watch`, and hands them out."""

    def __init__(
        self,
        rules: StreamRules,
        start: StartStream,
        draws: Draws,
        watch: Watching,
        *,
        version: Callable[[], int],
        on_batch: Callable[[], None],
    ) -> None:
        self.watch = watch
        self.stream: GroupStream | None = None
        """The one that `batches` and `groups` share."""
        self.tally = Tally()
        self.count = 0
        self._rules = rules
        self._start = start
        self._draws = draws
        self._version = version
        self._on_batch = on_batch
        self._left: deque[Ready] = deque()  # batches that nobody has yet
        self._stop_stream: anyio.CancelScope | None = None
        self._is_closed = False

    @property
    def next_batch(self) -> int:
        return self._left[0].index if self._left else self.count

    def go_on(self, count: int, again: list[Ready]) -> None:
        """Begin after so many batches, and deliver these ones again first."""
        self._left.extend(again)
        self.count = count + len(again)

    def close(self) -> None:
        """What is under way is over; nothing of it is given up, since a resumed run may go on with it."""
        self._is_closed = True

    def account(self) -> None:
        """Once nothing plays any more: for all that the stream has not delivered."""
        if self.stream is not None:
            self.stream.close()

    async def once(self, groups: int, order: Order | None = None) -> Batch | None:
        """The next groups; what is under way beyond them is cancelled, and played anew the next time."""
        return await self._next(lambda: self._take_once(groups, order or self._rules.order))

    async def ahead(self, groups: int, *, needed: int | None = None) -> Batch | None:
        """The next groups of the shared stream, which plays on; it works towards `needed` at a time."""
        return await self._next(lambda: self._take(groups, needed))

    async def _next(self, take: Callable[[], Awaitable[Ready | None]]) -> Batch | None:
        """The next batch, once it is recorded; one whose taker was cancelled before he had it comes first."""
        ready = self._left.popleft() if self._left else await take()
        if ready is None:
            return None
        with self._not_lost(ready):
            if not ready.is_told:
                self._tell(ready)
            await self.watch.flush()
        return Batch(ready.index, ready.groups, ready.stats)

    @contextmanager
    def _not_lost(self, ready: Ready | None) -> Iterator[None]:
        """Whoever comes next has the batch if this one does not come through."""
        is_through = False
        try:
            yield
            is_through = True
        finally:
            if ready is not None and not is_through:
                self._left.append(ready)

    async def _take_once(self, groups: int, order: Order) -> Ready | None:
        stream, stop = self._start(msgspec.structs.replace(self._rules, order=order, ahead=0))
        ready, gives_up = None, True
        try:
            ready = self._make_ready(stream, await stream.take(groups))
        except anyio.get_cancelled_exc_class():
            gives_up = False
            raise
        finally:
            with self._not_lost(ready):
                await self._end(stream, stop, gives_up=gives_up, is_alone=self.stream is None)
        return ready

    async def _take(self, groups: int, needed: int | None) -> Ready | None:
        if self.stream is None:
            self.stream, self._stop_stream = self._start(self._rules)
        stream = self.stream
        try:
            return self._make_ready(stream, await stream.take(groups, needed=needed))
        finally:
            if stream.failure is not None and not self._is_closed:  # the next one begins with what this one had left
                self.stream = None
                assert self._stop_stream is not None
                await self._end(stream, self._stop_stream, gives_up=True, is_alone=False)

    def _make_ready(self, stream: GroupStream, groups: list[Group]) -> Ready | None:
        """Groups that were taken, as a batch; none if the tasks are at their end."""
        if not groups and not self._draws.count:
            raise UsageError("tasks has no tasks: there is nothing to play")
        if not groups:
            return None
        ready = Ready(self.count, groups, stream.consumed_by(groups), self.tally.read())
        self.count += 1
        self._tell(ready)
        return ready

    def _tell(self, ready: Ready) -> None:
        versions = [group.version for group in ready.groups if group.version is not None]
        lag = max((self._version() - version for version in versions), default=0)
        self.watch.delivered(ready.index, ready.groups, ready.dropped, max(lag, 0), ready.stats)
        ready.is_told = True
        self._on_batch()

    async def _end(self, stream: GroupStream, stop: anyio.CancelScope, *, gives_up: bool, is_alone: bool) -> None:
        """End a stream; what it has not delivered is played anew by the next one.

        If it was not given up, but only interrupted, a resumed run continues with what is recorded. What an earlier
        process recorded, and nobody has drawn yet, belongs to the shared stream; to the one that ends if that
        `is_alone`.
        """
        stop.cancel()
        with anyio.move_on_after(_END_GRACE, shield=True):
            await stream.stopped.wait()
        groups = stream.close()
        if gives_up and not self._is_closed:
            self.watch.dropped(stream.consumed())
            self.watch.given_up(groups, with_all_recorded=is_alone)
