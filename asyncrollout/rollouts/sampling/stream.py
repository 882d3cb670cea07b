"""The stream of groups: started under admission, judged in order, and handed out to whoever awaits them."""

import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from asyncrollout.concurrency import task_group
from asyncrollout.errors import ClosedError, ExhaustedError, RolloutError, StalledError, UsageError, like
from asyncrollout.logs import get_logger
from asyncrollout.rollouts.sampling.admission import AdmissionLoad, AdmissionRules, may_start
from asyncrollout.rollouts.sampling.batch_buffer import BatchBuffer, OnExhausted
from asyncrollout.rollouts.sampling.filtering import FilterRunner, error_of, is_older
from asyncrollout.rollouts.sampling.ledger import Ledger
from asyncrollout.rollouts.sampling.pace import Pace
from asyncrollout.rollouts.sampling.task_source import GroupRequest, TaskSource
from asyncrollout.trajectories import DRAWN, Group

Order = Literal["finish", "start"]
Play = Callable[[GroupRequest], Awaitable[Group]]

_FEWEST_FAILURES = 8

log = get_logger(__name__)


class TakenGroups(NamedTuple):
    """Kept groups with their draws, in order, and the ids of groups that were dropped on the way to them."""

    groups: list[Group]
    draws: list[GroupRequest]
    dropped: list[str]


class StreamRules(msgspec.Struct, frozen=True):
    """How a stream goes about it.

    `ahead` is how many batches may be begun while nobody waits for one; `max_lag` is how old, in versions of the
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
    """Plays groups while `run` runs; `take` gives those that were kept. For one consumer at a time."""

    def __init__(
        self,
        source: TaskSource,
        play: Play,
        *,
        filters: FilterRunner,
        ledger: Ledger,
        rules: StreamRules,
        version: Callable[[], int],
        judged: Callable[[Group, int], None],
        dropped_stale: Callable[[Group], None],
        last_held: Callable[[], float] = lambda: -math.inf,
        had_valid: bool = False,
    ) -> None:
        self._source = source
        self._play = play
        self._filters = filters
        self._ledger = ledger
        self._rules = rules
        self._version = version
        self._judged = judged
        self._dropped_stale = dropped_stale
        self._last_held = last_held
        ranked = rules.order == "start" or bool(rules.max_lag)
        self._buffer = BatchBuffer(rules.max_num_gen_batches, rules.on_exhausted, self._rank if ranked else None)
        self._open: dict[str, GroupRequest] = {}  # all that was drawn, until it is delivered or dropped
        self._playing: dict[int, int] = {}  # with the version of the weights at their start
        self._playing_since: Counter[int] = Counter()  # how many of them began with each version
        self._started: deque[int] = deque()  # in start order: those whose turn has not come
        self._early: dict[int, Group] = {}  # in start order: those that are over before their turn
        self._finished: deque[Group] = deque()
        self._failed_in_a_row = 0
        self._wanted = 0
        self._pace: Pace | None = None
        self._version_of_last_batch: int | None = None
        self._has_warned = False
        self._checked_at: int | None = version()  # what is over was looked through for stale groups at this version
        self._drained = False
        self.failure: Exception | None = None
        self._last_error: RolloutError | None = None
        self._had_valid = had_valid
        self._moved = time.monotonic()
        self._changed = anyio.Event()
        self.stopped = anyio.Event()

    @property
    def playing(self) -> int:
        return len(self._playing)

    @property
    def buffered(self) -> int:
        return len(self._buffer.kept)

    async def run(self) -> None:
        """Play until the tasks end; a failure is kept for the one who takes."""
        try:
            async with task_group() as tasks:
                await self._admit(tasks)
        except Exception as failure:  # noqa: BLE001 (raised where groups are awaited)
            self.failure = self.failure or failure
        finally:
            if self.failure is None and (self._playing or not self._drained):
                self.failure = ClosedError("these Rollouts were closed")
            self.stopped.set()
            self._notify()

    def adopt(self, taken: TakenGroups) -> None:
        """Groups that were kept before, and that nobody has had."""
        if not taken.groups and not taken.dropped:
            return
        self._open.update((draw.id, draw) for draw in taken.draws)
        self._buffer.adopt(taken.groups, taken.dropped)
        self._checked_at = None

    def close(self) -> tuple[list[str], TakenGroups]:
        """Account for all that plays or waits for a verdict: its ids, to be drawn again; and what was kept so far."""
        for group in self._buffer.rejected:
            self._end(group, "filtered")
        kept = [*self._buffer.kept]
        left_over = TakenGroups(kept, [self._open.pop(group.id) for group in kept], self._buffer.consumed())
        given_up = [*self._open]
        for draw in self._open.values():
            self._ledger.cancel(draw.id, self._rules.group_size)
        self._source.give_back(self._open.values())
        self._open.clear()
        return given_up, left_over

    async def take(self, groups: int, *, needed: int | None = None) -> TakenGroups:
        """The next groups that are kept; fewer at the end of the tasks, or as `on_exhausted` says.

        `needed` is how many the stream works towards at a time, for somebody who takes groups one by one.
        """
        if self._wanted:
            raise UsageError("somebody else awaits groups of this stream: one consumer at a time")
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
                if (
                    self._buffer.exhausted and self.buffered < groups
                ):  # before the end of the tasks, of which it is a matter of timing who hears
                    return self._take_exhausted(groups)
                if self._is_over():
                    self._check_alive()
                    return self._hand_out(self._buffer.take_last(groups))
                await self._wait()
        finally:
            self._wanted = 0

    async def _admit(self, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            while not self._has_room():  # at first there is none: nobody has asked yet
                await self._changed.wait()
            try:
                draw = await anext(self._source)
            except StopAsyncIteration:
                self._drained = True
                return
            self._open[draw.id] = draw
            self._note_start(draw.index)
            if self._rules.order == "start":
                self._started.append(draw.index)
            tasks.start_soon(self._run_one, draw)
            await anyio.lowlevel.checkpoint()  # thousands at once would hold everybody up

    def _note_start(self, index: int) -> None:
        self._playing[index] = began = self._version()
        self._playing_since[began] += 1

    def _note_end(self, index: int) -> None:
        began = self._playing.pop(index)
        self._playing_since[began] -= 1
        if not self._playing_since[began]:
            del self._playing_since[began]

    def _has_room(self) -> bool:
        undecided = len(self._playing) + len(self._early) + len(self._finished) + self._filters.waiting
        rules = AdmissionRules(
            needed=self._buffer.needed,
            batches=self._wanted + self._rules.ahead,
            most_playing=max(self._rules.max_in_flight // self._rules.group_size, 1),
            most_draws=self._buffer.max_draws,
            in_rounds=self._filters.in_rounds,
            most_ahead=self._most_ahead(),
        )
        load = AdmissionLoad(len(self._playing), undecided, self.buffered, self._buffer.judged)
        return not self._is_exhausted() and may_start(load, rules, self._filters.rate.now)

    def _most_ahead(self) -> int | None:
        if self._pace is None or self._rules.max_lag is None:
            return None
        return self._pace.most_ahead(self._version(), self._rules.max_lag, is_awaited=self._wanted > 0)

    async def _run_one(self, draw: GroupRequest) -> None:
        group = await self._play(draw)
        self._note_end(draw.index)
        if self._is_stale(group):
            if self._rules.order == "start":
                self._started.remove(draw.index)
            self._end_stale(group)
        elif self._rules.order == "finish":
            self._finished.append(group)
        else:
            self._early[draw.index] = group
        self._queue_in_start_order()
        self._judge_finished()
        self._notify()

    def _queue_in_start_order(self) -> None:
        while self._started and self._started[0] in self._early:
            self._finished.append(self._early.pop(self._started.popleft()))

    def _judge_finished(self) -> None:
        """Judge in order, but not beyond a batch and its draws, so that what is in it never depends on timing."""
        while self._finished and not self._is_exhausted() and not self._is_served():
            self._put(self._filters.judge, self._finished.popleft(), self._buffer.needed)
        is_last = self.stopped.is_set() and not self._finished
        if is_last or (self._is_exhausted() and self.buffered < self._buffer.needed):
            self._put(self._filters.judge_rest)

    def _is_exhausted(self) -> bool:
        """Whether a batch has had all its draws, those included that wait to be judged with others."""
        most = self._buffer.max_draws
        return most is not None and 0 < most <= self._buffer.judged + self._filters.waiting

    def _is_served(self) -> bool:
        """Whether nothing more is judged until it is asked for: in start order no verdict depends on timing."""
        return self._rules.order == "start" and (not self._wanted or self.buffered >= self._buffer.needed)

    def _put(self, judge: Callable[..., list[Group]], *judged: Any) -> None:
        """Count what a judgement gives; if it fails, nothing is judged any more."""
        if self.failure is not None:
            return
        try:
            together = judge(*judged)
            for place, group in enumerate(together, start=1):
                self._judged(group, len(together) - place)
                self._count_failures(group)
                for dropped in self._buffer.put(group):
                    self._end(dropped, "filtered")
        except Exception as failure:
            self.failure = failure
            raise

    def _count_failures(self, group: Group) -> None:
        self._failed_in_a_row = 0 if group.completed else self._failed_in_a_row + 1
        self._had_valid |= bool(group.completed)
        self._last_error = error_of(group) or self._last_error
        if self._failed_in_a_row >= self._most_failures():
            raise self._dead(f"all rollouts of {self._failed_in_a_row} groups in a row failed")

    def _most_failures(self) -> int:
        """How many groups may fail in a row; fewer if nothing has worked yet, since then it is hardly bad luck."""
        if self._had_valid:
            return max(_FEWEST_FAILURES, self._buffer.needed)
        return max(math.ceil(_FEWEST_FAILURES / self._rules.group_size), 2)

    def _check_alive(self) -> None:
        """Tasks of which none could be played have not simply come to their end."""
        if self._failed_in_a_row and not self._had_valid:
            raise self._dead(f"all {self._failed_in_a_row} groups failed")

    def _dead(self, what: str) -> RolloutError:
        error = self._last_error
        assert error is not None, "a group without a valid member has an error"
        return like(error, f"{what}; the last one: {type(error).__name__}: {error}")

    def _is_any_due(self) -> bool:
        """Whether a group plays, or waits for its round, that would be too old for the batch after this one.

        It is waited for: else long groups would be lost to new weights more often than short ones.
        """
        lag = self._rules.max_lag
        if not lag or self._rules.order == "start" or self.failure is not None:
            return False
        oldest = self._version() - lag
        if any(began <= oldest for began in self._playing_since):
            return True
        return not self._is_exhausted() and self._filters.has_older(oldest + 1)  # their round is completed first

    def _rank(self, group: Group) -> tuple[int, ...]:
        """By start; in finish order by weights first, so that what is left over is no longer than others."""
        index = self._open[group.id].index
        return (index,) if self._rules.order == "start" else (group.version or 0, index)

    def _is_stale(self, group: Group) -> bool:
        """Whether it is too old; one that failed has its verdict already, whatever its age."""
        lag = self._rules.max_lag
        return lag is not None and group.verdict is None and is_older(group, self._version() - lag)

    def _drop_stale(self) -> None:
        """Drop whatever is over and too old, judged or not: it must neither be handed out nor take others' places."""
        if self._rules.max_lag is None or self._checked_at == self._version():
            return
        self._checked_at = self._version()
        oldest = self._checked_at - self._rules.max_lag
        stale = self._filters.remove_older(oldest)
        stale += filter(self._is_stale, self._finished)
        early = {index: group for index, group in self._early.items() if self._is_stale(group)}
        if early:
            self._early = {index: group for index, group in self._early.items() if index not in early}
            self._started = deque(index for index in self._started if index not in early)
            stale += early.values()
        gone = {group.id for group in stale}
        self._finished = deque(group for group in self._finished if group.id not in gone)
        self._queue_in_start_order()
        for group in (*stale, *self._buffer.remove_older(oldest)):
            self._end_stale(group)
        self._notify()

    def _end_stale(self, group: Group) -> None:
        if group.verdict is not None and not group.verdict.keep:  # it could only have filled a batch
            self._end(group, "filtered")
            return
        self._buffer.note_stale(group)
        self._dropped_stale(group)
        self._end(group, "stale")

    def _warn_of_jump(self) -> None:
        """Versions that count a trainer's steps make everything stale that was played ahead; that is never meant."""
        lag, before, now = self._rules.max_lag, self._version_of_last_batch, self._version()
        if not self._has_warned and lag and before is not None and now - before > lag:
            self._has_warned = True
            log.warning(
                "versions_rise_too_fast",
                versions_per_batch=now - before,
                max_lag=lag,
                hint="whatever was played ahead is stale: raise the version by one for each batch, or raise max_lag",
            )

    def _take_exhausted(self, groups: int) -> TakenGroups:
        try:
            taken = self._buffer.take_exhausted(groups)
        except ExhaustedError as error:
            if self._last_error is not None:
                error.add_note(f"the last failure: {type(self._last_error).__name__}: {self._last_error}")
            raise
        finally:
            for unused in self._buffer.start_next_batch():
                self._end(unused, "filtered")
            self._notify()
        return self._hand_out(taken)

    def _hand_out(self, groups: list[Group]) -> TakenGroups:
        if self._pace is not None:
            self._pace.note(self._version(), len(groups))
        self._version_of_last_batch = self._version()
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
            moved = max(self._moved, self._ledger.last_move(DRAWN), self._last_held())

    def _notify(self) -> None:
        self._moved = time.monotonic()
        self._changed.set()
        self._changed = anyio.Event()
