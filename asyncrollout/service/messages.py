"""What travels between a remote pool and its server: msgpack without pickles, in frames of calls and of answers."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar
from zlib import crc32

import msgspec
import numpy as np

from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.pool.binding import error_prefix
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.digest import digest
from asyncrollout.pool.wire.messages import Failure
from asyncrollout.redaction import hide_looks, known_secrets
from asyncrollout.serialization import from_plain, to_plain

T = TypeVar("T")

PATH = "/pool"
"""The endpoint for remote pools."""

CLIENT_HEADER = "X-Asyncrollout-Pool"
"""Has the id of the remote pool, by which it finds its envs again after its connection was lost."""

PROTOCOL = 3
MOST_PARTS = 1_000
"""Calls or answers in a frame; more of them are sent in several frames."""

LIVE = 100
"""The op of the first call after a reconnect: lists the live envs; the server closes the pool's others."""

PIECE = 101
"""The op of a call that brings part of what is too long for one message: where it begins, and its bytes."""

_FOLDERS = re.compile(r"(?<![\w/:.~-])(?:/[\w.+@~-]+)+/(?=[\w.+@~-]+)")
_PLAIN = 100  # a kind of msgpack extension beside those of `codec.Code`: what only `plain` can write exactly
_OVERHEAD = 64  # bytes of a part besides its values, at most
_NIL = msgspec.Raw(msgspec.msgpack.encode(None))


class Hello(msgspec.Struct, frozen=True):
    """What a server says first: its protocol, and how many bytes a message may have."""

    protocol: int
    largest: int


class RemoteCall(msgspec.Struct, frozen=True, array_like=True):
    """One call of an env; `number` grows with each call of that env, so that a repeated call is recognized."""

    env: int
    number: int
    op: int
    payload: msgspec.Raw = _NIL

    @property
    def size(self) -> int:
        return len(self.payload)


class RemoteReply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a call, with its numbers. `gone`: the server does not have the env, or no longer."""

    env: int
    number: int
    gone: bool = False
    failure: Failure | None = None
    value: msgspec.Raw = _NIL
    info: msgspec.Raw = _NIL
    digest: int | None = None
    seconds: float = 0.0

    @property
    def size(self) -> int:
        return len(self.value) + len(self.info)


class _RemoteUnpacker(codec.Unpacker):
    def _extension(self, code: int, data: memoryview) -> Any:
        if code == _PLAIN:
            return from_plain(msgspec.msgpack.decode(data))
        return super()._extension(code, data)


_unpack = _RemoteUnpacker(trusted=False).decode


def encode(value: Any, *, exact: bool = True) -> msgspec.Raw:
    """The value as bytes; `UnsendableError` if only pickle could. If not `exact`, subclasses become their base."""
    try:
        return msgspec.Raw(codec.encode_exact(value))
    except codec.INEXACT:
        pass
    try:
        plain = msgspec.msgpack.encode(to_plain(value, exact=exact))
        return msgspec.Raw(msgspec.msgpack.encode(msgspec.msgpack.Ext(_PLAIN, plain)))
    except UsageError as error:
        raise codec.UnsendableError(str(error).replace("written to a file", "sent over a network")) from error


def decode(raw: msgspec.Raw) -> Any:
    """What `encode` was given; a `UsageError` if the bytes make no sense."""
    try:
        return _unpack(raw)
    except Exception as error:  # numpy raises all sorts of errors for invalid types
        raise UsageError(f"these bytes cannot be decoded: {error}") from error


def encode_outcome(fields: list[Any]) -> tuple[msgspec.Raw, int]:
    """Observation, reward and end, and the digest that a worker would take of them."""
    room = _Inline()
    try:
        body = codec.encode_exact(fields, room.place)
    except codec.INEXACT:
        return encode(fields), digest(fields)
    return msgspec.Raw(body), digest(fields) if room.used else crc32(body)


class _Inline:
    """Leaves large arrays in the message, and notes that there are some."""

    used = False

    def place(self, _array: np.ndarray[Any, Any]) -> None:
        self.used = True


def read_frame(frame: bytes, kind: type[T]) -> list[T]:
    if _length(frame) > MOST_PARTS:  # checked before any of them is decoded
        raise UsageError(f"a frame has at most {MOST_PARTS} parts")
    try:
        return msgspec.msgpack.decode(frame, type=list[kind])  # type: ignore[valid-type]
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"this is not a valid frame: {error}") from error


def _length(frame: bytes) -> int:
    """The number of items by the first bytes of the array; 0 if it has few, or is not an array."""
    match frame[:1]:
        case b"\xdc":
            return int.from_bytes(frame[1:3], "big")
        case b"\xdd":
            return int.from_bytes(frame[1:5], "big")
    return 0  # anything but an array is refused when it is decoded


def without_folders(text: str) -> str:
    """The text without the folders of this machine: of an absolute path, the last part stays."""
    return _FOLDERS.sub("", text)


def as_failure(error: RolloutError) -> Failure:
    """An env's error as data, from which the other side rebuilds it, with its own env, seed and turn."""
    kind = getattr(error, "remote_type", None) or type(error).__name__
    place = {"seed": error.seed, "turn": error.turn, "worker": error.worker}
    text = str(error).removeprefix(error_prefix(error.env, place)).removeprefix(f"{kind}: ")
    trace = getattr(error, "remote_traceback", None) or ""
    secrets = known_secrets()
    shown, seen = (without_folders(hide_looks(one, secrets)) for one in (text, trace))
    return Failure(type(error).__name__, kind, shown, seen)


class Outbox:
    """Parts to be sent: those put at once, or while a frame is being sent, share a frame."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._parts)

    def put(self, part: RemoteCall | RemoteReply) -> None:
        self._parts.append(part)
        self._filled.set()

    async def flush(self, send: Callable[[bytes], Awaitable[None]], largest: int) -> None:
        parts, self._parts = self._parts, []
        self._filled.clear()
        for frame in _frames(parts, largest):
            await send(frame)

    async def run(self, send: Callable[[bytes], Awaitable[None]], largest: int) -> None:
        while True:
            await self._filled.wait()
            await self.flush(send, largest)


def _frames(parts: Sequence[Any], largest: int) -> Iterator[bytes]:
    start = size = 0
    for place, part in enumerate(parts):
        size += part.size + _OVERHEAD
        if (size > largest or place - start == MOST_PARTS) and place > start:
            yield msgspec.msgpack.encode(parts[start:place])
            start, size = place, part.size + _OVERHEAD
    if parts:
        yield msgspec.msgpack.encode(parts[start:])
