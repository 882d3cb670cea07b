"""How messages travel between pool and worker: msgpack that keeps Python's types, in length-prefixed frames."""

import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout.pool.wire import definitions
from asyncrollout.pool.wire.raised import describe, is_own, text_of
from asyncrollout.types import Observation

T = TypeVar("T")

Place = Callable[[np.ndarray[Any, Any]], msgspec.msgpack.Ext | None]
"""Puts a large array where the other side can read it, and returns its reference; None if it does not fit."""


class Code:
    """The kinds of msgpack extension; plain numbers, as msgspec wants them."""

    TUPLE = 1
    ARRAY = 2
    SCALAR = 3
    MAPPED = 4
    PICKLE = 5
    OBSERVATION = 6
    SET = 7
    FROZENSET = 8


class Undecodable(msgspec.Struct, frozen=True):
    """Stands for a value whose pickle would not load: one env's trouble, not the frame's."""

    reason: str


class OddTypeError(TypeError):
    """A value that msgpack would change; it travels as a pickle instead."""


class UnsendableError(TypeError):
    """A value that not even pickle can take to another process."""


class UnloadableError(UnsendableError):
    """A value that can be pickled, and its pickle cannot be loaded."""


LARGE_ARRAY = 64 * 1024
_HEADER = struct.Struct("<Q")
_LARGE_FRAME = 256 * 1024
PLAIN = frozenset({str, int, float, bool, type(None), bytes})
_KEYS = frozenset({str, int})
_NO_BUFFER = "MmUS"  # kinds of array without a plain buffer: dates and texts
_SCALARS = "biufcMm"
_SIMPLE = frozenset(np.dtype(code).str for code in "?bBhHiIlLqQefdFD")  # all of their bytes are their value
_LONG = "gG"  # codes of numbers that have bytes beside their value
_LONG_BYTES = 10 if np.finfo(np.longdouble).nmant == 63 else np.dtype(np.longdouble).itemsize
_DEPTH = 100
_MAIN = definitions.MAIN.encode()
_ArrayFields = tuple[str, tuple[int, ...], bytearray]

_encoder = msgspec.msgpack.Encoder()
_encode, _encode_into = _encoder.encode, _encoder.encode_into
_decode_array = msgspec.msgpack.Decoder(_ArrayFields).decode


def pack(value: Any, place: Place | None = None, depth: int = 0) -> Any:
    """The value in a form that msgpack keeps exactly; raises OddTypeError where there is none."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if depth > _DEPTH:
        raise OddTypeError("a deeply nested value")
    depth += 1
    if kind is dict:
        if not _KEYS.issuperset(map(type, value)):
            raise OddTypeError("a dict with keys that are neither text nor numbers")
        if PLAIN.issuperset(map(type, value.values())):
            return value
        return {key: pack(item, place, depth) for key, item in value.items()}
    if kind is list:
        return value if PLAIN.issuperset(map(type, value)) else [pack(item, place, depth) for item in value]
    if kind is tuple:
        return msgspec.msgpack.Ext(Code.TUPLE, _encode([pack(item, place, depth) for item in value]))
    if kind is set or kind is frozenset:  # in an order that does not depend on the process
        items = sorted(_encode(pack(item, None, depth)) for item in value)
        code = Code.SET if kind is set else Code.FROZENSET
        return msgspec.msgpack.Ext(code, _encode([msgspec.Raw(item) for item in items]))
    if kind is Observation:
        fields = (value.text, value.images, value.data, value.anchor)
        return msgspec.msgpack.Ext(Code.OBSERVATION, _encode([pack(item, place, depth) for item in fields]))
    if kind is np.ndarray:
        return _pack_array(value, place)
    if isinstance(value, np.generic) and value.dtype.kind in _SCALARS:
        return msgspec.msgpack.Ext(Code.SCALAR, _encode((value.dtype.str, without_padding(value).tobytes())))
    raise OddTypeError(kind.__qualname__)


def _pack_array(array: np.ndarray[Any, Any], place: Place | None) -> msgspec.msgpack.Ext:
    dtype = array.dtype.str
    simple = dtype in _SIMPLE
    if not (simple or _is_named(array.dtype)):
        raise OddTypeError(f"an array of {array.dtype}")
    if place is not None and (array.nbytes >= LARGE_ARRAY or not (simple or array.dtype.isnative)):
        reference = place(array)
        if reference is not None:
            return reference
    if simple:
        return msgspec.msgpack.Ext(Code.ARRAY, _encode((dtype, array.shape, np.ascontiguousarray(array).data)))
    array = without_padding(array)
    no_buffer = array.dtype.kind in _NO_BUFFER or not array.dtype.isnative
    raw = array.tobytes() if no_buffer else np.ascontiguousarray(array).data
    return msgspec.msgpack.Ext(Code.ARRAY, _encode((dtype, array.shape, raw)))


def _is_named(dtype: np.dtype[Any]) -> bool:
    """Whether the name says all, and the bytes of an array are its values."""
    if dtype.hasobject or dtype.names or not dtype.itemsize:
        return False
    try:
        return np.dtype(dtype.str) == dtype
    except TypeError:  # a type that numpy does not know
        return False


def without_padding(value: Any) -> Any:
    """An array or number whose bytes are its value alone: behind each long double there may be anything."""
    if value.dtype.char not in _LONG:
        return value
    clean: np.ndarray[Any, Any] = np.array(value, order="C")
    size = np.dtype(np.longdouble).itemsize
    padding = slice(_LONG_BYTES, size) if value.dtype.isnative else slice(0, size - _LONG_BYTES)
    clean.reshape(-1).view(np.uint8).reshape(-1, size)[:, padding] = 0
    return clean


INEXACT = (OddTypeError, OverflowError, UnicodeEncodeError)
"""What `encode_exact` raises for a value that msgpack would change or cannot hold."""


def encode_exact(value: Any, place: Place | None = None) -> bytes:
    if type(value) is list and PLAIN.issuperset(map(type, value)):  # the usual outcome: nothing to convert
        return _encode(value)
    return _encode(pack(value, place))


def encode(value: Any, place: Place | None = None, sent: definitions.SentDefinitions | None = None) -> bytes:
    """The value as msgpack, or as a pickle inside it where msgpack is not exact. `sent` is as for `to_pickle`."""
    try:
        return encode_exact(value, place)
    except INEXACT:
        return encode_pickled(value, sent)


def encode_pickled(value: Any, sent: definitions.SentDefinitions | None = None) -> bytes:
    return _encode(msgspec.msgpack.Ext(Code.PICKLE, to_pickle(value, sent)))


def to_pickle(value: Any, sent: definitions.SentDefinitions | None = None) -> bytes:
    """A pickle for the worker that has got `sent`; without it, for this process or the parent of this worker."""
    try:
        return _to_pickle(value, sent)
    except RecursionError as error:
        raise UnsendableError("a value cannot be sent to another process: it is nested too deeply") from error
    except Exception as error:  # pickle raises all sorts
        raise UnsendableError(f"a value cannot be sent to another process: {text_of(error)}") from error


def from_pickle(pickled: bytes | memoryview) -> Any:
    """A value from another process of ours; `UnloadableError` with the reason if it cannot be loaded here."""
    try:
        return pickle.loads(pickled)
    except BaseException as error:  # a user's class may raise anything while it is made
        if not is_own(error):
            raise
        raise UnloadableError(describe(error)) from error


def _to_pickle(value: Any, sent: definitions.SentDefinitions | None) -> bytes:
    """By pickle's own and quickest way, unless it refers to what the other side knows otherwise or not at all."""
    try:
        plain = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except RecursionError:
        raise
    except Exception:  # perhaps for a class or function that cannot be imported
        plain = b""
    if sent is None:
        return plain if plain and not (definitions.came_here() and _MAIN in plain) else definitions.refer(value)
    if plain and _MAIN not in plain and not sent.is_behind() and not definitions.are_asked_for():
        return plain
    from asyncrollout.pool.wire import by_value  # noqa: PLC0415 (cloudpickle takes long to load, and few need it)

    return by_value.dumps(value, sent)


def embed(value: Any, place: Place | None = None, sent: definitions.SentDefinitions | None = None) -> Any:
    """The value as part of a message: itself where that is safe, else its encoded form."""
    if value is None or (type(value) is str and value.isascii()):
        return value
    return msgspec.Raw(encode(value, place, sent))


def detach(value: Any) -> Any:
    """A copy that shares nothing mutable, equal to what would arrive from another process."""
    if type(value) in PLAIN:
        return value
    try:
        return _copy(value)
    except OddTypeError:  # as on the wire, the whole is pickled: what it shares with itself, or a cycle, stays
        pickled = to_pickle(value)
    return from_pickle(pickled)


def _copy(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    depth += 1
    if depth > _DEPTH:
        raise OddTypeError("a deeply nested value")
    if kind is dict:
        return {
            key if type(key) in PLAIN else _copy(key, depth): item if type(item) in PLAIN else _copy(item, depth)
            for key, item in value.items()
        }
    if kind is list:
        return [item if type(item) in PLAIN else _copy(item, depth) for item in value]
    if kind is tuple:
        for item in value:
            if type(item) not in PLAIN:
                return tuple([_copy(item, depth) for item in value])
        return value  # nothing in it can change
    if kind is Observation:
        text, images, data, anchor = value.text, value.images, value.data, value.anchor
        return Observation(
            text if type(text) is str else _copy(text, depth),
            _copy(images, depth),
            data if type(data) in PLAIN else _copy(data, depth),
            anchor if type(anchor) in PLAIN else _copy(anchor, depth),
        )
    if isinstance(value, np.generic) and value.dtype.kind in _SCALARS:
        return value
    if kind is set or kind is frozenset:
        return kind([_copy(item, depth) for item in value])
    raise OddTypeError(kind.__qualname__)


class Unpacker:
    """Decodes frames; `mapped` turns a large array's reference into the array. Untrusted bytes may hold no pickles."""

    def __init__(self, mapped: Callable[[bytes], Any] | None = None, *, trusted: bool = True) -> None:
        self._mapped = mapped
        self._trusted = trusted  # only our own private socket is
        self.decode = msgspec.msgpack.Decoder(ext_hook=self._extension).decode

    def decoder(self, kind: type[T]) -> Callable[[bytes | memoryview], T]:
        """Decodes frames that hold a value of this type."""
        return msgspec.msgpack.Decoder(kind, ext_hook=self._extension).decode

    def _extension(self, code: int, data: memoryview) -> Any:
        if code == Code.TUPLE:
            return tuple(self.decode(data))
        if code in (Code.SET, Code.FROZENSET):
            return set(self.decode(data)) if code == Code.SET else frozenset(self.decode(data))
        if code == Code.OBSERVATION:
            return Observation(*self.decode(data))
        if code == Code.ARRAY:
            dtype, shape, raw = _decode_array(data)
            return np.frombuffer(raw, dtype=np.dtype(dtype)).reshape(shape)
        if code == Code.SCALAR:
            dtype, raw = self.decode(data)
            return np.frombuffer(raw, dtype=np.dtype(dtype))[0]
        if code == Code.MAPPED and self._mapped is not None:
            return self._mapped(bytes(data))
        if code == Code.PICKLE and self._trusted:
            try:
                return pickle.loads(data)  # our own private socket
            except BaseException as error:  # a user's class may raise anything while it is made
                if not is_own(error):
                    raise
                reason = describe(error)
                definitions.note_trouble(reason)
                return Undecodable(reason)
        raise UsageError(f"unknown extension {code} on the wire")


def frame(messages: list[Any]) -> bytes:
    return framed(_encode(messages))


def framed(body: bytes) -> bytes:
    return _HEADER.pack(len(body)) + body


def frame_into(buffer: bytearray, messages: list[Any]) -> None:
    """The same in a buffer that is used again: memory that is new each time takes longer than what is written to it."""
    _encode_into(messages, buffer, _HEADER.size)
    _HEADER.pack_into(buffer, 0, len(buffer) - _HEADER.size)


class FrameReader:
    """Cuts a byte stream into frames; holds at most one incomplete frame.

    Room for a large one is made at once, as it says how long it is. A stranger's may have `most` bytes.
    """

    def __init__(self, most: int | None = None) -> None:
        self._held = bytearray()
        self._large = bytearray()
        self._filled = 0
        self._most = most

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        if self._large:
            part = memoryview(data)[: len(self._large) - self._filled]
            self._large[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled < len(self._large):
                return
            large, self._large = self._large, bytearray()
            yield memoryview(large)
            data = memoryview(data)[len(part) :]
        whole: bytes | bytearray | memoryview = data
        if self._held:
            self._held += data
            if not self._complete():
                return
            whole, self._held = self._held, bytearray()
        view, start, end = memoryview(whole), 0, len(whole)
        while end - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(view, start)
            stop = start + _HEADER.size + length
            if stop > end:
                break
            yield view[start + _HEADER.size : stop]
            start = stop
        rest = view[start:]
        if len(rest) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(rest)
            if self._most is not None and length > self._most:
                raise ValueError(f"a frame of {length} bytes")
            if length >= _LARGE_FRAME:
                self._large, self._filled = bytearray(length), len(rest) - _HEADER.size
                self._large[: self._filled] = rest[_HEADER.size :]
                return
        self._held += rest

    def _complete(self) -> bool:
        if len(self._held) < _HEADER.size:
            return False
        length: int = _HEADER.unpack_from(self._held)[0]
        return len(self._held) >= _HEADER.size + length
