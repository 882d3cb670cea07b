"""What the trainer and its shards say to each other: orders to a shard, and its reports; `shard_channel` is how.

A `play` is the number of a group's stay on one shard: what comes late of an earlier stay is known by it. `member` is
the place of a rollout within its group. Orders and reports of one loop iteration travel as one frame.
"""

from typing import Any

import msgspec

from asyncrollout.types import PauseMode


class _ShardMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One order or report."""


class PlayGroup(_ShardMessage, frozen=True, tag=0):
    """Play a group; `assignment` is a pickled `GroupAssignment`."""

    play: int
    assignment: bytes


class CancelGroup(_ShardMessage, frozen=True, tag=1):
    play: int


class GrantSlot(_ShardMessage, frozen=True, tag=2):
    """A rollout may be in flight from now on."""

    play: int
    member: int


class PausePolicies(_ShardMessage, frozen=True, tag=3):
    number: int
    mode: PauseMode


class ResumePolicies(_ShardMessage, frozen=True, tag=4):
    """Let calls through again; None if the weights have not changed."""

    version: int | None


class EndShard(_ShardMessage, frozen=True, tag=5):
    """Cancel what plays, close everything, and end."""


class ShardReady(_ShardMessage, frozen=True, tag=0):
    """Groups may come."""

    pid: int


class ShardFailed(_ShardMessage, frozen=True, tag=1):
    """It cannot start, or cannot continue."""

    error: bytes


class PauseHeard(_ShardMessage, frozen=True, tag=2):
    """No new call begins; those in flight may still be awaited."""

    number: int


class PoliciesPaused(_ShardMessage, frozen=True, tag=3):
    number: int


class SlotWanted(_ShardMessage, frozen=True, tag=4):
    play: int
    member: int


class SlotReturned(_ShardMessage, frozen=True, tag=5):
    """It is not in flight any more, or does not wait for a slot any more."""

    play: int
    member: int


class MemberDispatched(_ShardMessage, frozen=True, tag=6):
    play: int
    member: int


class MemberWaits(_ShardMessage, frozen=True, tag=7):
    """What it waits for from now on, "" if it is over."""

    play: int
    member: int
    doing: str


class ReplyRecorded(_ShardMessage, frozen=True, tag=8):
    """A policy's reply, as a line of the journal."""

    play: int
    member: int
    line: bytes


class TurnPlayed(_ShardMessage, frozen=True, tag=9):
    """What the figures of a live run need to know about a turn; `number` counts from 0."""

    play: int
    member: int
    number: int
    env_seconds: float


class MemberRetried(_ShardMessage, frozen=True, tag=10):
    """It failed, and is played again from its beginning."""

    play: int
    member: int
    trajectory: bytes


class MemberFinished(_ShardMessage, frozen=True, tag=11):
    """It has ended; `record` is its line in the file of trajectories, or empty if the journal is to write one."""

    play: int
    member: int
    trajectory: bytes
    record: bytes


class GroupEnded(_ShardMessage, frozen=True, tag=12):
    """Nothing of it plays any more; `error` is pickled, and empty if all members have finished or it was cancelled."""

    play: int
    error: bytes


class PoolCounts(_ShardMessage, frozen=True, tag=13):
    """The state of the shard's pool, whenever it has changed."""

    envs: int
    queued: int
    restarts: int


class ReplySampled(_ShardMessage, frozen=True, tag=14):
    """What they need to know about a reply that is not from the record."""

    play: int
    member: int
    tokens: int
    seconds: float


ShardOrder = PlayGroup | CancelGroup | GrantSlot | PausePolicies | ResumePolicies | EndShard
MemberReport = (
    SlotWanted | SlotReturned | MemberDispatched | MemberWaits | ReplyRecorded | ReplySampled | TurnPlayed
    | MemberRetried | MemberFinished
)  # fmt: skip
ShardReport = ShardReady | ShardFailed | PauseHeard | PoliciesPaused | GroupEnded | PoolCounts | MemberReport

encode_messages = msgspec.msgpack.Encoder().encode
_order_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[ShardOrder])
_report_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[ShardReport])


def decode_orders(frame: bytes | memoryview) -> list[ShardOrder]:
    orders: list[ShardOrder] = _order_decoder.decode(frame)
    return orders


def decode_reports(frame: bytes | memoryview) -> list[ShardReport]:
    reports: list[ShardReport] = _report_decoder.decode(frame)
    return reports
