"""The stream of groups: started under admission, judged in order, and handed out to the consumer that awaits them."""

import time
from typing import Literal, NamedTuple

import anyio
import anyio.lowlevel
import msgspec

from asyncrollout.concurrency import GradualTasks
from asyncrollout.errors import ClosedError, ExhaustedError, StalledError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.policies.control import PolicyControl
from asyncrollout.rollouts.episode.group import GroupPlayer
from asyncrollout.rollouts.observers import RunObserver
from asyncrollout.rollouts.sampling.admission import AdmissionLoad, AdmissionRules, is_wanted
from asyncrollout.rollouts.sampling.batch_buffer import BatchBuffer, OnExhausted
from asyncrollout.rollouts.sampling.batch_stats import BatchStats
from asyncrollout.rollouts.sampling.failure_streak import FailureStreak
from asyncrollout.rollouts.sampling.filtering import FilterRunner, is_older
from asyncrollout.rollouts.sampling.in_progress import FinishedGroups, PlayingGroups
from asyncrollout.rollouts.sampling.pace import Pace
from asyncrollout.rollouts.sampling.places import GroupPlaces, Places
from asyncrollout.rollouts.sampling.task_source import GroupRequest, TaskSource
from asyncrollout.trajectories import DRAWN, Group

Order = Literal["finish", "start"]

log = get_logger(__name__)


class TakenGroups(NamedTuple):
    """Kept groups with their draws, in order, and the ids of groups that were dropped on the way to them."""

    groups: list[Group]
    draws: list[GroupRequest]
    dropped: list[str]


class StreamRules(msgspec.Struct, frozen=True):
    """What bounds a stream, and in which order it delivers.

    `ahead` is how many batches may be started while nobody waits for one; `max_lag` is how old, in versions of the
    weights, a group may be when it is handed out.
    """

    group_size: int
    max_in_flight: int
    order: Order = "finish"
    ahead: int = 1
    max_lag: int | None = None
    max_num_gen_batches: int | None = 10
    on_exhausted: OnExhausted = "raise"
    stall_seconds: float = 900.0


class GroupStream:
    """Plays groups while `run` runs; `take` gives those that were kept. For one consumer at a time.

    The states of a group: *requested* from the source; *playing*; *early*, in start order, until all that started
    before it are finished; *finished*, and waiting for its verdict; *judged*; *kept* in the buffer, or rejected (but it
    may fill a batch). It leaves the stream when it is *delivered*, filtered, or dropped as stale; or it is given up
    with the stream, and requested again by the next one. `_open` has it from its request until it leaves.
    """

    def __init__(
        self,
        source: TaskSource,
        player: GroupPlayer,
        *,
        places: Places,
        filters: FilterRunner,
        stats: BatchStats,
        observer: RunObserver,
        control: PolicyControl,
        rules: StreamRules,
        had_valid: bool = False,
    ) -> None:
        self._source = source
        self._player = player
        self._places = places
        self._filters = filters
        self._stats = stats
        self._observer = observer
        self._ledger = observer.ledger
        self._control = control
        self._rules = rules
        ranked = rules.order == "start" or bool(rules.max_lag)
        self._open: dict[str, GroupRequest] = {}
        self._playing = PlayingGroups()
        self._finished = FinishedGroups(by_start=rules.order == "start")
        self._buffer = BatchBuffer(rules.max_num_gen_batches, rules.on_exhausted, self._rank if ranked else None)
        self._failures = FailureStreak(rules.group_size, had_valid=had_valid)
        self._wanted = 0
        self._pace: Pace | None = None
        self._version_of_last_batch: int | None = None
        self._has_warned = False
        self._checked_at: int | None = control.version  # when finished groups were last searched for stale ones
        self._drained = False
        self.failure: Exception | None = None
        self._moved = time.monotonic()
        self._changed = anyio.Event()
        self._scope = anyio.CancelScope()
        self.stopped = anyio.Event()

    @property
    def playing(self) -> int:
        return len(self._playing)

    @property
    def buffered(self) -> int:
        return len(self._buffer.kept)

    async def run(self) -> None:
        """Play until the tasks end, or until it is cancelled; `take` raises a failure."""
        with self._scope:
            try:
                async with GradualTasks() as tasks:
                    await self._admit(tasks)
            except Exception as failure:  # noqa: BLE001 (raised where groups are awaited)
                self.failure = self.failure or failure
            finally:
                if self.failure is None and (self._playing or not self._drained):
                    self.failure = ClosedError("these Rollouts were closed")
                self.stopped.set()
                self._notify()

    def cancel(self) -> None:
        """Stop playing; `stopped` is set once nothing plays."""
        self._scope.cancel()

    def adopt(self, taken: TakenGroups) -> None:
        """Take over groups that were kept before, and not delivered."""
        if not taken.groups and not taken.dropped:
            return
        self._open.update((draw.id, draw) for draw in taken.draws)
        self._buffer.adopt(taken.groups, taken.dropped)
        self._checked_at = None

    def close(self) -> tuple[list[str], TakenGroups]:
        """End all that plays or waits for a verdict; returns its ids, to be drawn again, and what was kept so far."""
        for group in self._buffer.rejected:
            self._end(group, "filtered")
        kept = [*self._buffer.kept]
        left_over = TakenGroups(kept, [self._open.pop(group.id) for group in kept], self._buffer.consumed())
        given_up = [*self._open]
        self._ledger.cancel(given_up)
        self._source.give_back(self._open.values())
        self._open.clear()
        return given_up, left_over

    async def take(self, groups: int, *, needed: int | None = None) -> TakenGroups:
        """The next groups that are kept; fewer at the end of the tasks, or as `on_exhausted` says.

        `needed` is how many the stream works towards at a time when groups are taken one by one.
        """
        if self._wanted:
            raise UsageError("another task awaits groups of this stream: one consumer at a time")
        self._buffer.needed = groups if needed is None else needed
        self._pace = None if needed is None else self._pace or Pace()
        self._wanted = 1
        self._warn_of_jump()
        self._notify()
        try:
            while True:
                self._drop_stale()
                self._judge_finished()
                if self.buffered >= groups and not self._is_any_due():
                    return self._hand_out(self._buffer.take(groups))
                if self.failure is not None:
                    raise self.failure
                # Checked before the end of the tasks: whether that is known by now depends on timing.
                if self._buffer.exhausted and self.buffered < groups:
                    return self._take_exhausted(groups)
                if self._is_over():
                    self._failures.check_end()
                    return self._hand_out(self._buffer.take_last(groups))
                await self._wait()
        finally:
            self._wanted = 0

    async def _admit(self, tasks: GradualTasks) -> None:
        """Start groups in the order of their draws: one is drawn when it is wanted and its first member has a place."""
        while True:
            while not self._wants_group():  # at first it does not: no batch was requested yet
                await self._changed.wait()
            places = await self._places.next_group("training")
            if not self._wants_group():  # any more
                places.unreserve()
                continue
            try:
                draw = await self._draw(places)
            except StopAsyncIteration:
                self._drained = True
                return
            self._open[draw.id] = draw
            self._playing.add(draw, self._control.version)
            self._finished.expect(draw)
            tasks.start_soon(self._run_one, draw, places, counts=self._rules.group_size)
            await anyio.lowlevel.checkpoint()  # thousands at once would block the event loop

    async def _draw(self, places: GroupPlaces) -> GroupRequest:
        """The next draw; a source that has to be waited for keeps no place empty meanwhile."""
        if self._source.may_wait:
            places.unreserve()
        try:
            return await anext(self._source)
        except BaseException:
            places.unreserve()
            raise

    def _wants_group(self) -> bool:
        rules = AdmissionRules(
            needed=self._buffer.needed,
            batches=self._wanted + self._rules.ahead,
            most_draws=self._buffer.max_draws,
            in_rounds=self._filters.in_rounds,
            most_ahead=self._most_ahead(),
        )
        undecided = len(self._playing) + len(self._finished) + self._filters.waiting
        load = AdmissionLoad(undecided, self.buffered, self._buffer.judged)
        return not self._is_exhausted() and is_wanted(load, rules, self._filters.rate.now)

    def _most_ahead(self) -> int | None:
        if self._pace is None or self._rules.max_lag is None:
            return None
        return self._pace.most_ahead(self._control.version, self._rules.max_lag, is_awaited=self._wanted > 0)

    async def _run_one(self, draw: GroupRequest, places: GroupPlaces) -> None:
        with places:
            self._observer.journal.drawn(draw.id, draw.index, draw.seed, draw.tag, draw.task)
            group = await self._player.run(draw, slots=places)
        self._playing.remove(draw)
        if self._is_stale(group):
            self._finished.skip(draw)
            self._end_stale(group)
        else:
            self._finished.put(draw, group)
        self._judge_finished()
        self._notify()

    def _judge_finished(self) -> None:
        """Judge in order, but not beyond a batch and its draws, so that its contents never depend on timing.

        Once the filter fails, nothing more is judged.
        """
        if self.failure is not None:
            return
        try:
            while self._finished.has_next and not self._is_exhausted() and not self._is_served():
                self._put(self._filters.judge(self._finished.next(), self._buffer.needed))
            is_last = self.stopped.is_set() and not self._finished.has_next
            if is_last or (self._is_exhausted() and self.buffered < self._buffer.needed):
                self._put(self._filters.judge_rest())
        except Exception as failure:
            self.failure = failure
            raise

    def _is_exhausted(self) -> bool:
        """Whether a batch has used all its draws, including those that wait to be judged with others."""
        most = self._buffer.max_draws
        return most is not None and 0 < most <= self._buffer.judged + self._filters.waiting

    def _is_served(self) -> bool:
        """Whether nothing more is judged until it is requested: in start order no verdict depends on timing."""
        return self._rules.order == "start" and (not self._wanted or self.buffered >= self._buffer.needed)

    def _put(self, judged: list[Group]) -> None:
        """Report groups that were judged together, and put them into the buffer."""
        for place, group in enumerate(judged, start=1):
            self._stats.add(group)
            self._observer.judged(group, len(judged) - place)
            self._source.note_judged(group)
            self._failures.note(group, self._buffer.needed)
            for dropped in self._buffer.put(group):
                self._end(dropped, "filtered")

    def _is_any_due(self) -> bool:
        """Whether a group plays, or waits for its round, that would be too old for the batch after this one.

        The batch waits for it: otherwise new weights would cost long groups more often than short ones.
        """
        lag = self._rules.max_lag
        if not lag or self._rules.order == "start" or self.failure is not None:
            return False
        oldest = self._control.version - lag
        if self._playing.has_since(oldest):
            return True
        return not self._is_exhausted() and self._filters.has_older(oldest + 1)  # their round is completed first

    def _rank(self, group: Group) -> tuple[int, ...]:
        """By start; in finish order by weights first, so that what is left over is no longer than others."""
        index = self._open[group.id].index
        return (index,) if self._rules.order == "start" else (group.version or 0, index)

    def _is_stale(self, group: Group) -> bool:
        """Whether it is too old; one that failed has its verdict already, at any age."""
        lag = self._rules.max_lag
        return lag is not None and group.verdict is None and is_older(group, self._control.version - lag)

    def _drop_stale(self) -> None:
        """Drop finished groups that are too old, judged or not: they must not be handed out or take places."""
        if self._rules.max_lag is None or self._checked_at == self._control.version:
            return
        self._checked_at = self._control.version
        oldest = self._checked_at - self._rules.max_lag
        stale = [*self._filters.remove_older(oldest), *self._finished.remove(self._is_stale)]
        for group in (*stale, *self._buffer.remove_older(oldest)):
            self._end_stale(group)
        self._notify()

    def _end_stale(self, group: Group) -> None:
        if group.verdict is not None and not group.verdict.keep:  # it could only have filled a batch
            self._end(group, "filtered")
            return
        self._buffer.note_stale(group)
        self._stats.add_stale(group)
        self._observer.dropped_stale(group)
        self._source.note_stale(group)
        self._end(group, "stale")

    def _warn_of_jump(self) -> None:
        """Warn once if versions rise too fast, as a trainer's step count does: all that was played ahead is stale."""
        lag, before, now = self._rules.max_lag, self._version_of_last_batch, self._control.version
        if not self._has_warned and lag and before is not None and now - before > lag:
            self._has_warned = True
            log.warning(
                "versions_rise_too_fast",
                versions_per_batch=now - before,
                max_lag=lag,
                hint="everything played ahead is stale: raise the version by one for each batch, or raise max_lag",
            )

    def _take_exhausted(self, groups: int) -> TakenGroups:
        try:
            taken = self._buffer.take_exhausted(groups)
        except ExhaustedError as error:
            if (last := self._failures.last_error) is not None:
                error.add_note(f"the last failure: {type(last).__name__}: {last}")
            raise
        finally:
            for unused in self._buffer.start_next_batch():
                self._end(unused, "filtered")
            self._notify()
        return self._hand_out(taken)

    def _hand_out(self, groups: list[Group]) -> TakenGroups:
        if self._pace is not None:
            self._pace.note(self._control.version, len(groups))
        self._version_of_last_batch = self._control.version
        draws = [self._open.pop(group.id) for group in groups]
        self._notify()
        return TakenGroups(groups, draws, self._buffer.consumed_by(groups))

    def _end(self, group: Group, how: Literal["filtered", "stale"]) -> None:
        del self._open[group.id]
        self._ledger.end_group(group, how)

    def _is_over(self) -> bool:
        return self._drained and len(self._open) == len(self._buffer.kept) + len(self._buffer.rejected)

    async def _wait(self) -> None:
        """Until something changes; if nothing moves for long, an error says what is being waited for."""
        changed, moved = self._changed, self._moved
        while not changed.is_set():
            left = moved + self._rules.stall_seconds - time.monotonic()
            if left <= 0:
                raise StalledError(
                    f"nothing has moved for {self._rules.stall_seconds:g} s: {self._ledger.stuck(DRAWN)}"
                )
            with anyio.move_on_after(left):
                await changed.wait()
                return
            moved = max(self._moved, self._ledger.last_move(DRAWN), self._control.last_held())

    def _notify(self) -> None:
        self._moved = time.monotonic()
        self._changed.set()
        self._changed = anyio.Event()
