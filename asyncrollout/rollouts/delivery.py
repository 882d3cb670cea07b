"""Batches on their way from streams of groups to whoever awaits them: each one comes to somebody, and once."""

from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from asyncrollout.batches.batch import Batch
from asyncrollout.errors import ClosedError, UsageError
from asyncrollout.rollouts.observers import MetricsObserver
from asyncrollout.rollouts.resume import ReadyBatch
from asyncrollout.rollouts.sampling.batch_stats import BatchStats
from asyncrollout.rollouts.sampling.filtering import is_older
from asyncrollout.rollouts.sampling.stream import GroupStream, StreamRules, TakenGroups
from asyncrollout.rollouts.sampling.task_source import TaskSource
from asyncrollout.trajectories import Group

StartStream = Callable[[StreamRules], tuple[GroupStream, anyio.CancelScope]]

_END_GRACE = 30.0
_NOTHING = TakenGroups([], [], [])


class Delivery:
    """Numbers batches, has them recorded by `watch`, and hands them out."""

    def __init__(
        self,
        rules: StreamRules,
        start: StartStream,
        source: TaskSource,
        watch: MetricsObserver,
        *,
        version: Callable[[], int],
        on_batch: Callable[[], None],
    ) -> None:
        self.watch = watch
        self.batch_stats = BatchStats()
        self.count = 0
        self.stale_groups = 0
        # Where nothing can be carried over, finish order would select the quick ones.
        self._rules = msgspec.structs.replace(rules, order="start") if rules.ahead == 0 else rules
        self._start = start
        self._source = source
        self._version = version
        self._on_batch = on_batch
        self._again: deque[ReadyBatch] = deque()  # batches of an earlier process
        self._shared: GroupStream | None = None  # the one that `batches` and `groups` share
        self._stop_shared: anyio.CancelScope | None = None
        self._streams: list[GroupStream] = []
        self._left_over = _NOTHING  # what was kept, and has neither a stream nor a taker
        self._failure: Exception | None = None  # of a stream whose taker had his batch already
        self._handing_over: list[ReadyBatch] = []
        self._is_closed = self._is_accounted = False

    @property
    def next_batch(self) -> int:
        return self._again[0].index if self._again else self.count

    @property
    def playing_groups(self) -> int:
        return sum(stream.playing for stream in self._streams)

    @property
    def buffered_groups(self) -> int:
        return sum(stream.buffered for stream in self._streams) + len(self._left_over.groups)

    def resume_at(self, count: int, again: list[ReadyBatch]) -> None:
        """Begin after so many batches, and deliver these ones again first."""
        self._again.extend(again)
        self.count = max([count, *(ready.index + 1 for ready in again)])  # numbers may be left out

    def note_judged(self, group: Group) -> None:
        self.batch_stats.add(group)

    def note_stale(self, group: Group) -> None:
        self.stale_groups += 1
        self.batch_stats.add_stale(group)

    def close(self) -> None:
        """What is under way is over; nothing of it is given up, since a resumed run may go on with it."""
        self._is_closed = True
        for ready in [*self._handing_over]:
            self._take_back(ready)

    def account(self) -> None:
        """Once nothing plays any more: for all that was not delivered."""
        self._is_accounted = True
        for left_over in (self._left_over, *(stream.close()[1] for stream in self._streams)):
            self._keep_left_over(left_over)
        self._streams, self._left_over = [], _NOTHING

    async def once(self, groups: int) -> Batch | None:
        """The next groups in start order; what is under way beyond them is cancelled, and played anew next time."""
        return await self._next(lambda: self._take_once(groups))

    async def ahead(self, groups: int) -> Batch | None:
        """The next groups of the shared stream, which plays on."""
        return await self._next(lambda: self._take(groups, None))

    async def one_ahead(self, needed: int) -> Group | None:
        """The next group of the shared stream, which works towards `needed` at a time.

        A batch of several groups that is delivered again is not taken apart: its rest would be lost to a resumed run.
        """
        batch = await self._next(lambda: self._take(1, needed), is_single=True)
        return None if batch is None else batch.groups[0]

    async def _next(self, take: Callable[[], Awaitable[ReadyBatch | None]], *, is_single: bool = False) -> Batch | None:
        while True:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if is_single and self._again and len(self._again[0].groups) > 1:
                raise UsageError(
                    f"batch {self._again[0].index} is delivered again, and has {len(self._again[0].groups)} groups: "
                    "take it with batches() or collect(), which give it as it was; groups() gives one group at a time"
                )
            ready = self._again.popleft() if self._again else await take()
            if ready is None:
                return None
            if (batch := await self._hand_over(ready)) is not None:
                return batch

    async def _hand_over(self, ready: ReadyBatch) -> Batch | None:
        """The batch, once it is on record; None if its groups became too old meanwhile.

        A batch that does not come through to its taker is taken back, and its groups come first the next time.
        """
        self._handing_over.append(ready)
        is_through = False
        try:
            if ready.taken is None:
                self.watch.delivered(ready.index, ready.groups, ready.dropped, ready.stats)
            await self.watch.flush()
            if ready not in self._handing_over:
                raise ClosedError("these Rollouts were closed")
            is_through = ready.taken is None or not self._has_stale(ready.groups)
        finally:
            if not is_through and ready in self._handing_over:
                self._take_back(ready)
        if not is_through:
            return None
        self._handing_over.remove(ready)
        versions = [group.version for group in ready.groups if group.version is not None]
        lag = max((self._version() - version for version in versions), default=0)
        self.watch.handed_over(ready.groups, max(lag, 0), is_repeated=ready.taken is None)
        self._on_batch()
        return Batch(ready.index, ready.groups, ready.stats)

    def _has_stale(self, groups: list[Group]) -> bool:
        lag = self._rules.max_lag
        return lag is not None and any(is_older(group, self._version() - lag) for group in groups)

    def _take_back(self, ready: ReadyBatch) -> None:
        if ready in self._handing_over:
            self._handing_over.remove(ready)
        self.watch.taken_back(ready.index)
        if ready.taken is None:
            self._again = deque(sorted((ready, *self._again), key=lambda one: one.index))
            return
        if ready.index == self.count - 1:
            self.count -= 1
        self.batch_stats.restore(ready.sums)
        self._keep_left_over(ready.taken)

    def _keep_left_over(self, taken: TakenGroups) -> None:
        """For the next stream that somebody takes from, in the order of their draws; or cancelled, if that is over."""
        if self._is_accounted:
            for group in taken.groups:
                self.watch.ledger.cancel(group.id, len(group.trajectories))
            return
        pairs = [*zip(self._left_over.draws, self._left_over.groups, strict=True)]
        pairs += zip(taken.draws, taken.groups, strict=True)
        pairs.sort(key=lambda pair: pair[0].index)
        dropped = [*self._left_over.dropped, *taken.dropped]
        self._left_over = TakenGroups([group for _, group in pairs], [draw for draw, _ in pairs], dropped)

    def _begin(self, rules: StreamRules) -> tuple[GroupStream, anyio.CancelScope]:
        stream, stop = self._start(rules)
        self._streams.append(stream)
        return stream, stop

    async def _take_from(self, stream: GroupStream, groups: int, needed: int | None = None) -> ReadyBatch | None:
        left_over, self._left_over = self._left_over, _NOTHING
        stream.adopt(left_over)
        return self._make_ready(await stream.take(groups, needed=needed))

    async def _take_once(self, groups: int) -> ReadyBatch | None:
        stream, stop = self._begin(msgspec.structs.replace(self._rules, order="start", ahead=0))
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
                await self._end(stream, stop, gives_up=gives_up, is_alone=self._shared is None)
                is_ended = True
            finally:
                if ready is not None and not is_ended:
                    self._take_back(ready)
                if not is_raised and not isinstance(stream.failure, ClosedError):
                    self._failure = self._failure or stream.failure
        return ready

    async def _take(self, groups: int, needed: int | None) -> ReadyBatch | None:
        while True:
            if self._shared is None:
                self._shared, self._stop_shared = self._begin(self._rules)
            stream = self._shared
            try:
                ready = await self._take_from(stream, groups, needed)
            except Exception:
                if stream.failure is not None and not self._is_closed:
                    await self._end_shared(stream)
                raise
            if ready is not None or not self._source.has_returned or self._is_closed:
                return ready
            await self._end_shared(stream)  # it had come to the end of the tasks before others gave some back

    async def _end_shared(self, stream: GroupStream) -> None:
        """The next one begins with what this one had left."""
        if self._shared is not stream:  # somebody else has ended it, and may have begun another
            return
        self._shared = None
        assert self._stop_shared is not None
        await self._end(stream, self._stop_shared, gives_up=True, is_alone=False)

    def _make_ready(self, taken: TakenGroups) -> ReadyBatch | None:
        """Groups that were taken, as a batch; none if the tasks are at their end."""
        if not taken.groups and not self._source.count:
            raise UsageError("tasks has no tasks: there is nothing to play")
        if not taken.groups:
            return None
        sums = self.batch_stats.take()
        ready = ReadyBatch(self.count, taken.groups, taken.dropped, self.batch_stats.figures(sums), sums, taken)
        self.count += 1
        self.watch.delivered(ready.index, ready.groups, ready.dropped, ready.stats)
        return ready

    async def _end(self, stream: GroupStream, stop: anyio.CancelScope, *, gives_up: bool, is_alone: bool) -> None:
        """End a stream; what it has not kept so far is played anew by the next one.

        If it was not given up, but only interrupted, a resumed run continues with what is recorded. What an earlier
        process recorded, and nobody has drawn yet, belongs to the shared stream; to the one that ends if that
        `is_alone`.
        """
        stop.cancel()
        try:
            await _until_stopped(stream)
        finally:
            if stream in self._streams:  # else everything was closed meanwhile
                self._streams.remove(stream)
                given_up, left_over = stream.close()
                if gives_up and not self._is_closed:
                    self.watch.dropped(left_over.dropped)
                    self.watch.given_up(given_up, with_all_recorded=is_alone)
                    left_over = left_over._replace(dropped=[])
                self._keep_left_over(left_over)


async def _until_stopped(stream: GroupStream) -> None:
    """Wait for it, and only then be cancelled: asyncio's own cancellation does not heed a shield.

    What is drawn anew while it still plays would be there twice.
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
