"""Short digests of what an env returned, the same in every process, to check a replay against the original."""

from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Protocol
from zlib import crc32

import msgspec
import numpy as np

from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.canonical import Form, checksum, form_of, native


class ArraySpace(Protocol):
    """Where the large arrays of a value go; `used` says whether there were any since `begin`."""

    used: bool

    def begin(self) -> None: ...

    def place(self, array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext | None: ...


def encode_with_digest(value: list[Any], room: ArraySpace) -> tuple[bytes, int]:
    """The wire form and the digest in one go. The digest does not depend on how the value travels."""
    room.begin()
    try:
        body = codec.encode_exact(value, room.place)
    except codec.INEXACT:
        return codec.encode_pickled(value), digest(value)
    return body, digest(value) if room.used else crc32(body)


def digest(value: Any, opaque: Sequence[Any] = ()) -> int:
    """Equal for values of equal content and types, in every process. Any one value that changed is found.

    Two names for one object, or for two equal ones, make no difference; a cycle is followed once. The objects in
    `opaque` count by their place in it only, not by their content.

    There is one digest for each value, taken in the quickest way: of its wire form, in which a short summary stands
    for each array that is large or of another byte order; or part by part, where msgpack is not exact.
    """
    if not opaque:
        try:
            return crc32(codec.encode_exact(value, _summary))
        except codec.INEXACT:
            pass
    return _Walk(opaque).digest(value)


def outcome_digest(fields: Sequence[Any]) -> int:
    """The digest of observation, reward and end; what is in `info` may depend on the clock."""
    return digest([*fields[:4]])


def _summary(given: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext:
    known = native(given)
    if known.nbytes < codec.LARGE_ARRAY:
        packed: msgspec.msgpack.Ext = codec.pack(known)
        return packed
    described = (known.dtype.str, known.shape, checksum(known))
    return msgspec.msgpack.Ext(codec.Code.MAPPED, msgspec.msgpack.encode(described))


_KINDS: dict[Any, int] = {kind: crc32(repr(kind).encode()) for kind in codec.PLAIN}
_float = Struct("<d")


def _plain_digest(value: Any) -> int:
    kind = type(value)
    if kind is str:
        content = value.encode("utf-8", "surrogatepass")
    elif kind is float:
        content = _float.pack(value)
    else:
        content = value if kind is bytes else b"" if value is None else b"%x" % value
    return crc32(content, _KINDS[kind])


def _combined(form: Form, digests: list[int]) -> int:
    return crc32(array("I", digests if form.ordered else sorted(digests)), crc32(form.head))


class _DigestPart:
    """A part of a value, on the way to its digest; `low` is the first part that leads back to it."""

    __slots__ = ("digest", "form", "links", "low", "number", "rest", "value")

    def __init__(self, value: Any, number: int) -> None:
        self.value = value  # kept alive, so that its id stays its own
        self.form = form_of(value)
        self.number = self.low = number
        self.rest: Iterator[Any] = iter(self.form.parts)
        self.links: list[int | _DigestPart] = []
        self.digest: int | None = None

    def combined(self, open_digests: dict["_DigestPart", int]) -> int:
        found = [link if isinstance(link, int) else link.digest or open_digests.get(link, 0) for link in self.links]
        return _combined(self.form, found)


class _Walk:
    """Visits each part of a value once, without recursion: Tarjan's algorithm for strongly connected components.

    A part outside of cycles has the digest of its form and of its parts' digests, so that sharing does not count.
    """

    def __init__(self, opaque: Sequence[Any]) -> None:
        self._opaque = {id(given): crc32(b"opaque", place) for place, given in enumerate(opaque)}
        self._parts: dict[int, _DigestPart] = {}
        self._open: list[_DigestPart] = []

    def digest(self, value: Any) -> int:
        known = self._known(value)
        if isinstance(known, int):
            return known
        first = self._enter(value)
        path = [first]
        while path:
            part = path[-1]
            inner = self._next_unknown(part)
            if inner is not None:
                path.append(inner)
                continue
            path.pop()
            if path:
                path[-1].low = min(path[-1].low, part.low)
            if part.low == part.number:
                self._close(part)
        assert first.digest is not None
        return first.digest

    def _known(self, value: Any) -> "int | _DigestPart | None":
        if type(value) in codec.PLAIN:
            return _plain_digest(value)
        return self._parts.get(id(value), self._opaque.get(id(value)))

    def _enter(self, value: Any) -> _DigestPart:
        part = self._parts[id(value)] = _DigestPart(value, len(self._parts))
        self._open.append(part)
        return part

    def _next_unknown(self, part: _DigestPart) -> _DigestPart | None:
        for value in part.rest:
            known = self._known(value)
            if known is None:
                inner = self._enter(value)
                part.links.append(inner)
                return inner
            part.links.append(known)
            if isinstance(known, _DigestPart) and known.digest is None:
                part.low = min(part.low, known.number)
        return None

    def _close(self, first: _DigestPart) -> None:
        """All that is open since `first` leads back to it: one part alone, or a cycle."""
        start = self._open.index(first) if self._open[-1] is not first else -1
        component = self._open[start:]
        del self._open[start:]
        if len(component) == 1 and first not in first.links:
            first.digest = first.combined({})
        else:
            _close_cycle(component)


def _close_cycle(component: list[_DigestPart]) -> None:
    """Distinguish the parts of a cycle by what they lead to, until that distinguishes no more of them.

    So the digest is that of the endless value which one would see by following the cycle, from wherever one enters it.
    """
    seen = {part: crc32(part.form.head) for part in component}
    kinds = 0
    while kinds < (kinds := len(set(seen.values()))):
        seen = {part: part.combined(seen) for part in component}
    whole = crc32(array("I", sorted(set(seen.values()))))
    for part, own in seen.items():
        part.digest = crc32(own.to_bytes(4), whole)
