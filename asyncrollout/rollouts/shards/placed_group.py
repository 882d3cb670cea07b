"""A group that plays on a shard: what it has brought so far, which is enough to continue it on another one."""

import pickle
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from asyncrollout.errors import EnvCrashed, PoolError, RolloutError
from asyncrollout.journal.events import Replied, ShardPlace, decode
from asyncrollout.journal.history import RecordedReply, recorded_reply
from asyncrollout.pool.wire.codec import UnloadableError, from_pickle
from asyncrollout.rollouts.episode.group import Slots
from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.rollouts.observers import RunObserver
from asyncrollout.rollouts.sampling.places import GroupPlaces
from asyncrollout.rollouts.sampling.task_source import GroupRequest
from asyncrollout.rollouts.shards.shard_messages import (
    GrantSlot,
    MemberDispatched,
    MemberFinished,
    MemberReport,
    MemberRetried,
    MemberWaits,
    ReplyRecorded,
    ReplySampled,
    SlotReturned,
    SlotWanted,
    TurnPlayed,
)
from asyncrollout.trajectories import Group, StopReason, Trajectory, Turn, member_uid
from asyncrollout.types import Generation, Usage

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
class _Member:
    place: int
    uid: str
    finished: Trajectory | None = None
    lines: list[bytes] = field(default_factory=list)  # replies that this process has recorded
    replies: list[RecordedReply] = field(default_factory=list)  # those of an earlier process
    was_interrupted: bool = False
    progress: Progress | None = None  # while the ledger has it
    turns: int = 0  # that were counted
    wants_slot: bool = False
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
        self._wanting: deque[_Member] = deque()
        self._is_wanted = anyio.Event()
        self._acquiring = anyio.CancelScope()
        for member in self._members:
            member.finished = observer.recall(member.uid)
            if member.finished is None:
                member.was_interrupted = observer.was_interrupted(member.uid)
                member.replies = observer.recorded_replies(member.uid)
        if isinstance(slots, GroupPlaces):
            slots.expect(sum(member.finished is None for member in self._members))

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

    def begin(self, play: int, place: ShardPlace, send: Callable[[GrantSlot], None]) -> None:
        """A stay on a shard begins."""
        self.play, self._place, self._send = play, place, send
        self.over, self.loss, self._has_moved_on = anyio.Event(), None, False
        self._wanting.clear()

    def end(self) -> None:
        """The stay is over, however it ended: give all slots back."""
        self.play, self._send = 0, None
        for member in self._members:
            self._return_slot(member)

    @property
    def takes_slots(self) -> bool:
        return self._slots is not None

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

    async def grant_slots(self) -> None:
        """Wait for slots on behalf of those who want one, in turn, while the group is on a shard."""
        assert self._slots is not None
        while True:
            while not self._wanting:
                self._is_wanted = anyio.Event()
                await self._is_wanted.wait()
            member = self._wanting[0]
            with anyio.CancelScope() as self._acquiring:
                await self._slots.acquire_on_behalf_of(member.uid)
                if member.wants_slot:
                    self._grant(member)
                else:  # given up meanwhile
                    self._slots.release_on_behalf_of(member.uid)
            self._wanting.popleft()

    def _want_slot(self, member: _Member, _report: SlotWanted) -> None:
        member.wants_slot = True
        if not self._wanting and (self._slots is None or _acquire_now(self._slots, member.uid)):
            self._grant(member)
            return
        self._wanting.append(member)
        self._is_wanted.set()

    def _grant(self, member: _Member) -> None:
        assert self._send is not None
        member.wants_slot, member.has_slot = False, True
        self._send(GrantSlot(self.play, member.place))

    def _take_slot_back(self, member: _Member, _report: SlotReturned) -> None:
        self._return_slot(member)

    def _return_slot(self, member: _Member) -> None:
        if member.wants_slot:
            member.wants_slot = False
            if self._wanting[0] is member:
                self._acquiring.cancel()
            else:
                self._wanting.remove(member)
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
        member.progress.played(Turn(None, env_seconds=report.env_seconds))

    def _count_reply(self, member: _Member, report: ReplySampled) -> None:
        if member.progress is not None:
            member.progress.replied(Generation("", usage=Usage(completion=report.tokens)), report.seconds)

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
    ReplySampled: PlacedGroup._count_reply,  # noqa: SLF001
    TurnPlayed: PlacedGroup._count_turn,  # noqa: SLF001
    MemberRetried: PlacedGroup._retry,  # noqa: SLF001
    MemberFinished: PlacedGroup._finish,  # noqa: SLF001
}


def _acquire_now(slots: Slots, borrower: str) -> bool:
    """Whether a slot was free; those that cannot be asked are waited for."""
    acquire = getattr(slots, "acquire_on_behalf_of_nowait", None)
    if acquire is None:
        return False
    try:
        acquire(borrower)
    except anyio.WouldBlock:
        return False
    return True


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
