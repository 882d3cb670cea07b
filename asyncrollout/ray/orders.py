"""What a pool and the actors of its workers say to each other, beside the steps."""

import msgspec

from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.main_module import MainModule
from asyncrollout.pool.wire.network import NetworkAddress

PROBE = "probe"
"""The name of a file in a pool's private directory; whoever can read its secret shares the pool's file system."""


class WorkerOrder(msgspec.Struct, frozen=True):
    """One life of a worker: what its actor needs to start and to watch it.

    `shared` are the pool's private directory and the secret in it, and `folder` is where this life may have its files
    there. Without a `network` address, all that is said travels by calls of the actor. A worker that is stopped, as by
    SIGSTOP, for longer than `frozen_limit` seconds is replaced.
    """

    rank: int
    main: MainModule
    version: str
    environ: dict[str, str]
    send_snapshots: bool
    memory_limit: int | None
    log_dir: str | None
    shared: tuple[str, bytes]
    folder: str
    working_directory: str | None
    token: bytes
    network: NetworkAddress | None
    frozen_limit: float


class WorkerEnd(msgspec.Struct, frozen=True):
    """How a worker ended: its exit status, the calls that it was at, and the end of its log.

    `frozen` is for how many seconds it was stopped, if it was killed for that.
    """

    code: int | None
    running: list[int]
    was_given_up: bool
    log: str
    frozen: float = 0.0


class ActorHello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message: the node, and the time of its clock."""

    node: str
    now: float


class WorkerReport(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """What a worker is at: calls that have been at work for long, with their starts by the clock of its node."""

    running: list[tuple[int, float]]
    main: tuple[int, float]
    begun: int
    memory: int
    state: str
    cpu: float


class NotBegun(msgspec.Struct, frozen=True, array_like=True, tag="not begun"):
    """Of calls that were withdrawn, those that the worker will skip."""

    calls: list[int]


class Withdraw(msgspec.Struct, frozen=True, array_like=True, tag="withdraw"):
    calls: list[int]


class WithdrawAll(msgspec.Struct, frozen=True, array_like=True, tag="withdraw all"):
    """Have every call skipped that was not begun."""


class ForgetWithdrawn(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """The worker has answered all calls that were withdrawn."""


class KillWorker(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    """By our own hand: `given_up` if it is of no use any more, though nothing is known to be wrong with its envs."""

    given_up: bool


Said = ActorHello | WorkerReport | NotBegun
"""By an actor."""

Told = Withdraw | WithdrawAll | ForgetWithdrawn | KillWorker
"""To an actor."""

read_said = msgspec.msgpack.Decoder(Said).decode
read_told = msgspec.msgpack.Decoder(Told).decode
_encode = msgspec.msgpack.Encoder().encode


def to_frame(message: Said | Told) -> bytes:
    return codec.framed(_encode(message))
