"""Batches on their way from streams of groups to their takers: each is handed out exactly once."""

from collections import deque
from contextlib import ExitStack

import anyio
import msgspec

from asyncrollout.batches.batch import Batch
from asyncrollout.errors import ClosedError, UsageError
from asyncrollout.rollouts.engine import Engine
from asyncrollout.rollouts.resume import ReadyBatch
from asyncrollout.rollouts.sampling.filtering import is_older
from asyncrollout.rollouts.sampling.stream import GroupStream, StreamRules, TakenGroups
from asyncrollout.telemetry.exporter import MetricsExporter
from asyncrollout.trajectories import Group

_END_GRACE = 30.0
_NOTHING = TakenGroups([], [], [])


class Delivery:
    """Numbers batches, has them journaled, and hands them out."""

    def __init__(self, engine: Engine, exporter: MetricsExporter) -> None:
        self._engine = engine
        self._exporter = exporter
        self._source, self._observer, self._control = engine.source, engine.observer, engine.control
        self._stats = engine.batch_stats
        rules = engine.rules
        # Where nothing can be carried over, finish order would select the quick ones.
        self._rules = msgspec.structs.replace(rules, order="start") if rules.ahead == 0 else rules
        self._count = 0
        self._redelivered: deque[ReadyBatch] = deque()  # batches of an earlier process
        self._shared: GroupStream | None = None  # the one that `batches` and `groups` share
        self._streams: list[GroupStream] = []
        self._left_over = _NOTHING  # kept groups without a stream or a taker
        self._failure: Exception | None = None  # of a stream whose taker had its batch already
        self._handing_over: list[ReadyBatch] = []
        self._is_closed = self._is_accounted = False

    @property
    def next_index(self) -> int:
        """The number of the next batch."""
        return self._redelivered[0].index if self._redelivered else self._count

    @property
    def playing_groups(self) -> int:
        return sum(stream.playing for stream in self._streams)

    @property
    def buffered_groups(self) -> int:
        return sum(stream.buffered for stream in self._streams) + len(self._left_over.groups)

    def resume(self) -> None:
        """Begin after the batches that a resumed run has delivered, and deliver some of them again first."""
        self._redelivered.extend(self._engine.redelivered)
        after = [ready.index + 1 for ready in self._redelivered]
        self._count = max([self._engine.next_batch, *after])  # numbers may be left out

    def close(self) -> None:
        """Hand out nothing more; nothing is given up, since a resumed run may continue with it."""
        self._is_closed = True
        for ready in [*self._handing_over]:
            self._take_back(ready)

    def account(self) -> None:
        """Account for everything that was not delivered, once nothing plays any more."""
        self._is_accounted = True
        for left_over in (self._left_over, *(stream.close()[1] for stream in self._streams)):
            self._keep_left_over(left_over)
        self._streams, self._left_over = [], _NOTHING

    async def next_batch(self, groups: int) -> Batch | None:
        """The next groups of the shared stream, which continues to play; None at the end of the tasks."""
        return await self._next(groups, None)

    async def collect(self, groups: int) -> Batch | None:
        """The next groups in start order; rollouts still running are cancelled, and played again next time."""
        return await self._next(groups, None, is_alone=True)

    async def next_group(self, needed: int) -> Group | None:
        """The next group of the shared stream, which works towards `needed` at a time.

        A batch of several groups that is delivered again is not taken apart: its rest would be lost to a resumed run.
        """
        batch = await self._next(1, needed)
        return None if batch is None else batch.groups[0]

    async def _next(self, groups: int, needed: int | None, *, is_alone: bool = False) -> Batch | None:
        while True:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._redelivered:
                if needed is not None and len(again := self._redelivered[0].groups) > 1:
                    raise UsageError(
                        f"batch {self._redelivered[0].index} is delivered again, and has {len(again)} groups: take it "
                        "with batches() or collect(), which give it as it was; groups() gives one group at a time"
                    )
                ready: ReadyBatch | None = self._redelivered.popleft()
            elif is_alone:
                ready = await self._take_alone(groups)
            else:
                ready = await self._take(groups, needed)
            if ready is None:
                return None
            if (batch := await self._hand_over(ready)) is not None:
                return batch

    async def _hand_over(self, ready: ReadyBatch) -> Batch | None:
        """The batch, once it is recorded; None if its groups became too old meanwhile.

        A batch that does not reach its taker is taken back, and its groups come first next time.
        """
        self._handing_over.append(ready)
        with ExitStack() as unless_handed_over:
            unless_handed_over.callback(self._take_back, ready)
            if ready.taken is None:
                self._journal_delivery(ready)
            await self._observer.journal.flush()
            if ready not in self._handing_over:
                raise ClosedError("these Rollouts were closed")
            if ready.taken is not None and self._has_stale(ready.groups):
                return None
            unless_handed_over.pop_all()
        self._handing_over.remove(ready)
        oldest = min((version for group in ready.groups if (version := group.version) is not None), default=None)
        lag = 0 if oldest is None else self._control.version - oldest
        self._observer.handed_over(ready.groups, max(lag, 0), is_repeated=ready.taken is None)
        self._exporter.write()
        return Batch(ready.index, ready.groups, ready.stats)

    def _has_stale(self, groups: list[Group]) -> bool:
        lag = self._rules.max_lag
        return lag is not None and any(is_older(group, self._control.version - lag) for group in groups)

    def _take_back(self, ready: ReadyBatch) -> None:
        if ready not in self._handing_over:  # it was taken back when everything was closed
            return
        self._handing_over.remove(ready)
        self._observer.journal.taken_back(ready.index)
        if ready.taken is None:
            self._redelivered = deque(sorted((ready, *self._redelivered), key=lambda one: one.index))
            return
        if ready.index == self._count - 1:
            self._count -= 1
        self._stats.restore(ready.sums)
        self._keep_left_over(ready.taken)

    def _keep_left_over(self, taken: TakenGroups) -> None:
        """Keep groups for the next stream, in the order of their draws; once all is accounted for, cancel them."""
        if self._is_accounted:
            self._engine.ledger.cancel(group.id for group in taken.groups)
            return
        pairs = [*zip(self._left_over.draws, self._left_over.groups, strict=True)]
        pairs += zip(taken.draws, taken.groups, strict=True)
        pairs.sort(key=lambda pair: pair[0].index)
        dropped = [*self._left_over.dropped, *taken.dropped]
        self._left_over = TakenGroups([group for _, group in pairs], [draw for draw, _ in pairs], dropped)

    def _start_stream(self, rules: StreamRules) -> GroupStream:
        stream = self._engine.start_stream(rules, had_valid=self._count > 0)
        self._streams.append(stream)
        return stream

    async def _take_from(self, stream: GroupStream, groups: int, needed: int | None = None) -> ReadyBatch | None:
        left_over, self._left_over = self._left_over, _NOTHING
        stream.adopt(left_over)
        return self._make_ready(await stream.take(groups, needed=needed))

    async def _take_alone(self, groups: int) -> ReadyBatch | None:
        """Take groups from a stream of their own, which ends with them."""
        stream = self._start_stream(msgspec.structs.replace(self._rules, order="start", ahead=0))
        ready, gives_up, is_raised, is_ended = None, True, False, False
        try:
            ready = await self._take_from(stream, groups)
        except anyio.get_cancelled_exc_class():
            gives_up = False
            raise
        except Exception:
            is_raised = True
            raise
        finally:
            try:
                await self._end(stream, gives_up=gives_up, is_alone=self._shared is None)
                is_ended = True
            finally:
                if ready is not None and not is_ended:
                    self._handing_over.append(ready)
                    self._take_back(ready)
                if not is_raised and not isinstance(stream.failure, ClosedError):
                    self._failure = self._failure or stream.failure
        return ready

    async def _take(self, groups: int, needed: int | None) -> ReadyBatch | None:
        while True:
            if self._shared is None:
                self._shared = self._start_stream(self._rules)
            stream = self._shared
            try:
                ready = await self._take_from(stream, groups, needed)
            except Exception:
                if stream.failure is not None and not self._is_closed:
                    await self._end_shared(stream)
                raise
            if ready is not None or not self._source.has_returned or self._is_closed:
                return ready
            await self._end_shared(stream)  # it had reached the end of the tasks before others gave some back

    async def _end_shared(self, stream: GroupStream) -> None:
        """End the shared stream; the next one starts with what it had left."""
        if self._shared is not stream:  # another task has ended it, and may have started the next
            return
        self._shared = None
        await self._end(stream, gives_up=True, is_alone=False)

    def _make_ready(self, taken: TakenGroups) -> ReadyBatch | None:
        """Groups that were taken, as a batch; None if the tasks have ended."""
        if not taken.groups and not self._source.count:
            raise UsageError("tasks is empty: there is nothing to play")
        if not taken.groups:
            return None
        sums = self._stats.take()
        ready = ReadyBatch(self._count, taken.groups, taken.dropped, self._stats.figures(sums), sums, taken)
        self._count += 1
        self._journal_delivery(ready)
        return ready

    def _journal_delivery(self, ready: ReadyBatch) -> None:
        self._observer.journal.delivered(ready.index, ready.groups, ready.dropped, ready.stats)

    async def _end(self, stream: GroupStream, *, gives_up: bool, is_alone: bool) -> None:
        """End a stream; what it has not kept so far is played again by the next one.

        If it was only interrupted, not given up, a resumed run continues with what is recorded. What an earlier process
        recorded and nobody has drawn yet belongs to the shared stream, or to this one if it `is_alone`.
        """
        stream.cancel()
        try:
            await _until_stopped(stream)
        finally:
            if stream in self._streams:  # else everything was closed meanwhile
                self._streams.remove(stream)
                given_up, left_over = stream.close()
                if gives_up and not self._is_closed:
                    self._observer.journal.dropped(left_over.dropped)
                    self._observer.given_up(given_up, with_all_recorded=is_alone)
                    left_over = left_over._replace(dropped=[])
                self._keep_left_over(left_over)


async def _until_stopped(stream: GroupStream) -> None:
    """Wait until it has stopped, and raise a cancellation only then: asyncio's own ignores the shield.

    A group that is drawn again while it still plays would exist twice.
    """
    cancelled: BaseException | None = None
    with anyio.move_on_after(_END_GRACE, shield=True) as grace:
        while not stream.stopped.is_set():
            try:
                await stream.stopped.wait()
            except anyio.get_cancelled_exc_class() as error:
                if grace.cancel_called:
                    raise
                cancelled = error
    if cancelled is not None:
        raise cancelled
