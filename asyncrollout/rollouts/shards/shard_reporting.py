"""In a shard: what happens to its groups, reported to the one ledger and journal."""

from collections import defaultdict
from typing import Any

import anyio

from asyncrollout.batches.batch_json import encode_record
from asyncrollout.errors import UsageError
from asyncrollout.journal.events import Replied, encode
from asyncrollout.journal.history import RecordedReply
from asyncrollout.journal.run import unwritable
from asyncrollout.pool.wire.codec import UnsendableError, to_pickle
from asyncrollout.rollouts.episode.observer import RolloutObserver
from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.rollouts.shards.placed_group import GroupAssignment
from asyncrollout.rollouts.shards.shard_channel import ShardOutbox
from asyncrollout.rollouts.shards.shard_messages import (
    MemberDispatched,
    MemberFinished,
    MemberRetried,
    MemberWaits,
    ReplyRecorded,
    ReplySampled,
    SlotReturned,
    SlotWanted,
    TurnPlayed,
)
from asyncrollout.trajectories import Trajectory, Turn, group_of
from asyncrollout.types import Generation


class _Stay:
    """A group while it is here."""

    def __init__(self, play: int, assignment: GroupAssignment) -> None:
        self.play = play
        self.assignment = assignment
        self.dispatched: set[str] = set()


class RemoteProgress(Progress):
    """Reports what a rollout waits for, and each turn that it has played."""

    __slots__ = ("_member", "_outbox", "_play")

    def __init__(self, uid: str, outbox: ShardOutbox, play: int, member: int) -> None:
        super().__init__(uid)
        self._outbox = outbox
        self._play = play
        self._member = member

    def begins(self, doing: str) -> float:
        if doing != self.doing:
            self._outbox.put(MemberWaits(self._play, self._member, doing))
        return super().begins(doing)

    def replied(self, reply: Generation, seconds: float) -> None:
        self._outbox.put(ReplySampled(self._play, self._member, reply.sampled_tokens, seconds))

    def played(self, turn: Turn) -> None:
        self._outbox.put(TurnPlayed(self._play, self._member, self.turn, float(turn.env_seconds)))
        super().played(turn)


class ShardReporter(RolloutObserver):
    """The observer of the groups that a shard plays; also what records replies, and the slots of its rollouts."""

    def __init__(self, outbox: ShardOutbox, *, records: bool) -> None:
        self.replies: defaultdict[str, list[RecordedReply]] = defaultdict(list)
        self._outbox = outbox
        self._records = records
        self._stays: dict[str, _Stay] = {}
        self._granted: dict[tuple[int, int], anyio.Event] = {}

    def begin(self, play: int, assignment: GroupAssignment) -> None:
        self._stays[assignment.request.id] = _Stay(play, assignment)
        self.replies.update({uid: [*replies] for uid, replies in assignment.replies.items()})

    def end(self, assignment: GroupAssignment) -> None:
        del self._stays[assignment.request.id]
        for uid in assignment.replies:
            self.replies.pop(uid, None)

    # What a group reports and asks.

    def recall(self, uid: str) -> Trajectory | None:
        return self._stay(uid).assignment.finished.get(uid)

    def retries_used(self, group: str) -> int:
        return self._stays[group].assignment.retries_used

    def was_interrupted(self, uid: str) -> bool:
        stay = self._stay(uid)
        return uid in stay.assignment.interrupted and uid not in stay.dispatched

    def dispatched(self, uid: str) -> Progress:
        stay, member = self._stay(uid), _member(uid)
        stay.dispatched.add(uid)
        self._outbox.put(MemberDispatched(stay.play, member))
        return RemoteProgress(uid, self._outbox, stay.play, member)

    def failed(self, trajectory: Trajectory) -> None:
        uid = trajectory.uid
        self.replies.pop(uid, None)
        self._outbox.put(MemberRetried(self._stay(uid).play, _member(uid), _pickled(trajectory)[0]))

    async def finished(self, tag: str, trajectory: Trajectory) -> Trajectory:
        uid = trajectory.uid
        await self._outbox.room()
        pickled, trajectory = _pickled(trajectory)
        record = self._record(tag, trajectory) if self._records else b""
        self._outbox.put(MemberFinished(self._stay(uid).play, _member(uid), pickled, record))
        return trajectory

    def _record(self, tag: str, trajectory: Trajectory) -> bytes:
        """Its line; errors may hold secrets that only the trainer knows, and what cannot be written is its business."""
        if trajectory.error is not None:
            return b""
        try:
            return encode_record(group_of(trajectory.uid), tag, trajectory) + b"\n"
        except UsageError:
            return b""

    # What the journal of a policy asks.

    @property
    def is_full(self) -> bool:
        return self._outbox.is_full

    async def room(self) -> None:
        await self._outbox.room()

    def put(self, event: Replied) -> None:
        stay = self._stays.get(group_of(event.uid))
        if stay is not None:  # else it was asked by something else than a rollout
            self._outbox.put(ReplyRecorded(stay.play, _member(event.uid), encode(event)))

    # Slots.

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        uid = str(borrower)
        stay, member = self._stay(uid), _member(uid)
        granted = self._granted[stay.play, member] = anyio.Event()
        self._outbox.put(SlotWanted(stay.play, member))
        try:
            await granted.wait()
        except BaseException:
            self._return(stay.play, member)
            raise

    def release_on_behalf_of(self, borrower: object) -> None:
        uid = str(borrower)
        self._return(self._stay(uid).play, _member(uid))

    def grant(self, play: int, member: int) -> None:
        if (granted := self._granted.get((play, member))) is not None:
            granted.set()

    def _return(self, play: int, member: int) -> None:
        del self._granted[play, member]
        self._outbox.put(SlotReturned(play, member))

    def _stay(self, uid: str) -> _Stay:
        return self._stays[group_of(uid)]


def _member(uid: str) -> int:
    return int(uid.rpartition(".")[2])


def _pickled(trajectory: Trajectory) -> tuple[bytes, Trajectory]:
    """The trajectory for the trainer; one that cannot be sent has failed."""
    try:
        return to_pickle(trajectory), trajectory
    except UnsendableError as error:
        failed: Any = unwritable(trajectory, UsageError(f"its trajectory cannot leave the shard: {error.__cause__}"))
        return to_pickle(failed), failed
