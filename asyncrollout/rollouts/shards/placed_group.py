"""A group that plays on a shard: what it has brought so far, which is enough to continue it on another one."""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from asyncrollout.errors import EnvCrashed, PoolError, RolloutError
from asyncrollout.journal.events import Replied, ShardPlace, decode
from asyncrollout.journal.history import RecordedReply, recorded_reply
from asyncrollout.pool.wire.codec import UnloadableError, from_pickle
from asyncrollout.rollouts.episode.group import Slots
from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.rollouts.observers import RunObserver
from asyncrollout.rollouts.sampling.task_source import GroupRequest
from asyncrollout.rollouts.shards.shard_messages import (
    GrantSlot,
    MemberDispatched,
    MemberFinished,
    MemberReport,
    MemberRetried,
    MemberWaits,
    ReplyRecorded,
    SlotReturned,
    SlotWanted,
    TurnPlayed,
)
from asyncrollout.trajectories import Group, StopReason, Trajectory, Turn, member_uid
from asyncrollout.types import Usage

_MOST_LOSSES = 5
"""In a row, each without a step forward: then the group itself is to blame, or nothing can play it."""


@dataclass(frozen=True, kw_only=True)
class GroupAssignment:
    """All that a shard needs to know to play a group, or to continue it."""

    request: GroupRequest
    size: int
    env_kwargs: Mapping[str, Any] | None
    sampling_base: int | None
    finished: Mapping[str, Trajectory]
    replies: Mapping[str, list[RecordedReply]]
    interrupted: frozenset[str]
    retries_used: int


@dataclass(eq=False)
class _SlotWait:
    """Reports arrive outside of tasks, where no cancel scope can be made: the task that waits makes it."""

    scope: anyio.CancelScope | None = None
    is_over: bool = False

    def give_up(self) -> None:
        self.is_over = True
        if self.scope is not None:
            self.scope.cancel()


@dataclass(eq=False)
class _Member:
    place: int
    uid: str
    finished: Trajectory | None = None
    lines: list[bytes] = field(default_factory=list)  # replies that this process has recorded
    replies: list[RecordedReply] = field(default_factory=list)  # those of an earlier process
    was_interrupted: bool = False
    progress: Progress | None = None  # while the ledger has it
    turns: int = 0  # that were counted
    waiting: "_SlotWait | None" = None
    has_slot: bool = False


class PlacedGroup:
    """One group from its draw to its result, wherever it plays meanwhile.

    The ledger and the journal hear of each event once: what a shard repeats of an earlier stay is not reported again.
    """

    def __init__(
        self,
        request: GroupRequest,
        size: int,
        *,
        env_kwargs: Mapping[str, Any] | None,
        sampling_base: int | None,
        slots: Slots | None,
        observer: RunObserver,
    ) -> None:
        self.request = request
        self.size = size
        self.play = 0
        self.failure: Exception | None = None
        self.loss: str | None = None
        """Why its shard was lost, if it was."""
        self.over = anyio.Event()
        self._env_kwargs = env_kwargs
        self._sampling_base = sampling_base
        self._slots = slots
        self._observer = observer
        self._members = [_Member(member, member_uid(request.id, member)) for member in range(size)]
        self._retries = observer.retries_used(request.id)
        self._losses = 0
        self._has_moved_on = False
        self._place = ShardPlace("", "")
        self._send: Callable[[GrantSlot], None] | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        for member in self._members:
            member.finished = observer.recall(member.uid)
            if member.finished is None:
                member.was_interrupted = observer.was_interrupted(member.uid)
                member.replies = observer.recorded_replies(member.uid)

    @property
    def is_finished(self) -> bool:
        return all(member.finished is not None for member in self._members)

    def assignment(self) -> GroupAssignment:
        """For the next shard, with what is recorded by now."""
        playing = [member for member in self._members if member.finished is None]
        return GroupAssignment(
            request=self.request,
            size=self.size,
            env_kwargs=self._env_kwargs,
            sampling_base=self._sampling_base,
            finished={member.uid: member.finished for member in self._members if member.finished is not None},
            replies={member.uid: _replies(member) for member in playing if member.replies or member.lines},
            interrupted=frozenset(member.uid for member in playing if member.was_interrupted or member.lines),
            retries_used=self._retries,
        )

    def begin(
        self, play: int, place: ShardPlace, send: Callable[[GrantSlot], None], tasks: anyio.abc.TaskGroup
    ) -> None:
        """A stay on a shard begins; those who wait for slots do so in `tasks`."""
        self.play, self._place, self._send, self._tasks = play, place, send, tasks
        self.over, self.loss, self._has_moved_on = anyio.Event(), None, False

    def end(self) -> None:
        """The stay is over, however it ended: give all slots back."""
        self.play, self._send = 0, None
        for member in self._members:
            self._return_slot(member)

    def lose(self, reason: str, *, is_blamed: bool = True) -> None:
        """Its shard is gone."""
        if self.loss is not None:
            return
        self.loss = reason
        if is_blamed:
            self._losses = 0 if self._has_moved_on else self._losses + 1
        self.over.set()

    def fail(self, failure: Exception) -> None:
        self.failure = self.failure or failure
        self.over.set()

    def hear(self, report: MemberReport) -> None:
        """What happened to one of its members; a failure of the journal is the group's."""
        try:
            _HEARD[type(report)](self, self._members[report.member], report)
        except Exception as failure:  # noqa: BLE001 (raised where the group is awaited)
            self.fail(failure)

    def result(self) -> Group:
        members = [member.finished for member in self._members if member.finished is not None]
        return Group(self.request.id, members, self.request.tag)

    def give_up(self, env: str) -> None:
        """Fail all members that are not finished, if the group has lost one shard after the other."""
        if self._losses < _MOST_LOSSES:
            return
        said = f"group {self.request.id} lost {self._losses} shards in a row, without a turn in between: {self.loss}"
        for member in self._members:
            if member.finished is None:
                if member.progress is None:
                    member.progress = self._observer.dispatched(member.uid)
                member.progress.begins("")
                error = EnvCrashed.at(said, env=env, seed=self.request.seed, turn=member.turns)
                failed = Trajectory(
                    member.uid,
                    env,
                    self.request.seed,
                    [],
                    0.0,
                    StopReason.ENV_ERROR,
                    error,
                    member.place,
                    self.request.task,
                )
                member.finished = self._observer.ended(self.request.tag, failed, b"", self._place)

    def _want_slot(self, member: _Member, _report: SlotWanted) -> None:
        if self._slots is None:
            self._grant(member)
            return
        try:
            acquire_nowait = getattr(self._slots, "acquire_on_behalf_of_nowait", None)
            if acquire_nowait is not None:
                acquire_nowait(member.uid)
                self._grant(member)
                return
        except anyio.WouldBlock:
            pass
        assert self._tasks is not None
        member.waiting = _SlotWait()
        self._tasks.start_soon(self._wait_for_slot, member, member.waiting, self._slots)

    async def _wait_for_slot(self, member: _Member, wait: _SlotWait, slots: Slots) -> None:
        if wait.is_over:
            return
        with anyio.CancelScope() as wait.scope:
            await slots.acquire_on_behalf_of(member.uid)
            if wait.is_over:  # given up meanwhile
                slots.release_on_behalf_of(member.uid)
            else:
                self._grant(member)

    def _grant(self, member: _Member) -> None:
        assert self._send is not None
        member.waiting, member.has_slot = None, True
        self._send(GrantSlot(self.play, member.place))

    def _take_slot_back(self, member: _Member, _report: SlotReturned) -> None:
        self._return_slot(member)

    def _return_slot(self, member: _Member) -> None:
        if member.waiting is not None:
            member.waiting.give_up()
            member.waiting = None
        if member.has_slot:
            member.has_slot = False
            if self._slots is not None:
                self._slots.release_on_behalf_of(member.uid)

    def _dispatch(self, member: _Member, _report: MemberDispatched) -> None:
        if member.progress is None:  # else it continues
            member.progress = self._observer.dispatched(member.uid)

    def _wait(self, member: _Member, report: MemberWaits) -> None:
        if member.progress is not None:
            member.progress.begins(report.doing)

    def _record_reply(self, member: _Member, report: ReplyRecorded) -> None:
        self._has_moved_on = True
        member.lines.append(report.line)
        self._observer.replied(report.line)

    def _count_turn(self, member: _Member, report: TurnPlayed) -> None:
        if report.number < member.turns or member.progress is None:  # it was replayed
            return
        self._has_moved_on = True
        member.turns += 1
        usage = Usage(completion=report.tokens)
        waited, stepped = report.policy_seconds, report.env_seconds
        member.progress.played(Turn(None, valid=report.valid, usage=usage, policy_seconds=waited, env_seconds=stepped))

    def _retry(self, member: _Member, report: MemberRetried) -> None:
        self._has_moved_on = True
        self._retries += 1
        member.lines.clear()
        member.replies.clear()
        member.was_interrupted, member.progress, member.turns = False, None, 0
        self._observer.failed(_trajectory(report.trajectory))

    def _finish(self, member: _Member, report: MemberFinished) -> None:
        self._has_moved_on = True
        member.lines.clear()
        member.replies.clear()
        trajectory = _trajectory(report.trajectory)
        member.finished = self._observer.ended(self.request.tag, trajectory, report.record, self._place)


_HEARD: dict[type[MemberReport], Callable[[PlacedGroup, _Member, Any], None]] = {
    SlotWanted: PlacedGroup._want_slot,  # noqa: SLF001
    SlotReturned: PlacedGroup._take_slot_back,  # noqa: SLF001
    MemberDispatched: PlacedGroup._dispatch,  # noqa: SLF001
    MemberWaits: PlacedGroup._wait,  # noqa: SLF001
    ReplyRecorded: PlacedGroup._record_reply,  # noqa: SLF001
    TurnPlayed: PlacedGroup._count_turn,  # noqa: SLF001
    MemberRetried: PlacedGroup._retry,  # noqa: SLF001
    MemberFinished: PlacedGroup._finish,  # noqa: SLF001
}


def _replies(member: _Member) -> list[RecordedReply]:
    events = (decode(line) for line in member.lines)
    return [*member.replies, *(recorded_reply(event) for event in events if isinstance(event, Replied))]


def _trajectory(pickled: bytes) -> Trajectory:
    try:
        trajectory = from_pickle(pickled)
    except UnloadableError as error:
        raise PoolError(f"a trajectory from a shard cannot be loaded here: {error}") from error
    assert isinstance(trajectory, Trajectory)
    return trajectory


def error_from(pickled: bytes) -> Exception:
    """An exception that a shard raised."""
    try:
        error = from_pickle(pickled)
    except (UnloadableError, pickle.PickleError) as unloadable:
        return RolloutError(f"a shard raised an error that cannot be loaded here: {unloadable}")
    return error if isinstance(error, Exception) else RolloutError(f"a shard raised {error!r:.500}")
