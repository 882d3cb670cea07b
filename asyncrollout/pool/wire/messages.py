"""What pool and workers say to each other: calls, replies, and the data they carry. `codec` is how it is said.

A worker makes its replies, and the pool its calls, as plain tuples in the order of these fields: making and encoding
a struct takes twice as long. The side that receives decodes them into structs, which costs no more than lists.
"""

from enum import IntEnum
from typing import Any

import msgspec

from asyncrollout.registry import EnvSpec
from asyncrollout.types import TextOptions


class Op(IntEnum):
    OPEN = 0
    RESET = 1
    STEP = 2
    RENDER = 3
    CALL = 4
    SNAPSHOT = 5
    REPLAY = 6
    CLOSE = 7
    STOP = 8
    END_VIDEO = 9


OUTCOMES = (Op.STEP, Op.RESET, Op.REPLAY)
"""Ops that change an env's state and have an outcome."""

WITHOUT_EPISODE = (Op.OPEN, Op.RESET, Op.REPLAY)
"""Ops that need no earlier state; they may build a whole env."""

NOT_LOADED = 1
"""The value of a failed call whose payload could not be loaded."""


class OpenRequest(msgspec.Struct, frozen=True):
    """All that is needed to make an env somewhere; `camera` is the import path of what records it, and its options."""

    spec: EnvSpec
    text: bool
    expert: bool
    options: TextOptions
    camera: tuple[str, Any] | None = None


class WorkerHello(msgspec.Struct, frozen=True, array_like=True):
    """A worker's first message; `memory` is what it uses without envs, in bytes."""

    token: bytes
    pid: int
    memory: int = 0


class WorkerCall(msgspec.Struct, frozen=True, array_like=True):
    """One call, as a worker gets it; ids of calls grow."""

    call_id: int
    env_id: int
    op: int
    payload: Any


class Failure(msgspec.Struct, frozen=True):
    """What an env raised; `raises` names the error of ours to raise for it."""

    raises: str
    kind: str
    text: str
    trace: str


class CallReply(msgspec.Struct, frozen=True, array_like=True, gc=False):  # nothing in it can refer to it
    """What came of a call. An outcome's `value` is its first four fields, and `info` the fifth.

    `digest` is that of an outcome where one was taken, `seconds` the time at work, `state` the env's own snapshot where
    the pool wants one with each outcome. `skipped`: the call was withdrawn before it was begun.
    """

    call_id: int
    failure: Failure | None
    value: Any
    info: Any
    digest: int | None
    seconds: float
    state: bytes | None
    skipped: bool = False
