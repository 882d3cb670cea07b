"""Response bodies: decompressed up to a cap, large ones in a thread.

Sessions are opened with `auto_decompress=False`: aiohttp would decompress everything, without a cap and on the event
loop, so that a small gzip bomb could stop all other calls.
"""

import io
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp
import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from asyncrollout.errors import ProviderError

T = TypeVar("T")

MOST_BYTES = 16 * 2**20
"""The largest body that is read, decompressed: a reply of 128,000 tokens with their logprobs takes 13 MB."""

LARGE = 2**19
"""Bytes from which on a response is decoded in a thread: on the event loop, this many take some milliseconds."""

MOST_OF_AN_ERROR = 64 * 2**10
"""What is read of a response that only says what went wrong; the rest is left."""

ENCODINGS = "gzip, deflate"
"""The encodings that servers are asked for; others are refused, even if a package that reads them is installed."""

_GZIP, _ZLIB, _DEFLATE = 31, 15, -15  # windows of zlib, for a stream with the header of each
_READ_WHOLE = 2**20  # bytes; aiohttp keeps a list of pieces, which for a large body may be of one byte each
_AT_ONCE = 2**18  # bytes decompressed on the event loop, in less than a millisecond
_STEP = 2**20
_INPUT = 2**16  # zlib copies what it has not consumed yet, in each step
_SHOWN = 100
_THREADS = 2  # bounds the memory of many large responses at a time

_threads: RunVar[anyio.CapacityLimiter] = RunVar("unpacking_threads")


async def read_raw(response: aiohttp.ClientResponse, most: int = MOST_BYTES) -> bytes:
    """The body as it was sent; `ProviderError` if it is larger."""
    length = response.content_length
    if length is not None and length <= min(most, _READ_WHOLE):
        return await response.read()
    raw = io.BytesIO()  # gives its buffer away without a copy
    async for chunk in response.content.iter_any():
        raw.write(chunk)
        if raw.tell() > most:
            raise _too_large(most)
    return raw.getvalue()


async def read_start(response: aiohttp.ClientResponse, most: int = MOST_OF_AN_ERROR) -> bytes:
    """The first bytes of a body, decompressed; empty if that fails."""
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) >= most:
            break
    start, encoding = bytes(raw[:most]), response.headers.get("Content-Encoding")
    if encoding is None or not start:
        return start
    try:
        return _unpacker(start, encoding).decompress(start, most)
    except (zlib.error, ProviderError):
        return b""


async def unpack(raw: bytes, encoding: str | None, most: int = MOST_BYTES) -> bytes:
    """Decompress a whole body; `ProviderError` if the result is larger than `most`, or the body is broken."""
    if encoding is None or not raw or encoding.strip().lower() == "identity":
        return raw
    unpacker = _unpacker(raw, encoding)
    try:
        first = unpacker.decompress(raw[:_INPUT], min(_AT_ONCE, most + 1))
        if unpacker.eof and len(raw) <= _INPUT and len(first) <= most:
            _check_end(unpacker, b"", encoding)
            return first
        return await in_thread(_unpack_rest, unpacker, first, raw, encoding, most)
    except zlib.error as error:
        raise ProviderError(f"malformed response: its Content-Encoding is {encoding!r}, but: {error}") from None


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Work on a large response. Cancelling does not wait for its end, which takes a second at most."""
    return await anyio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True, limiter=_limiter())


def _unpack_rest(unpacker: "zlib._Decompress", first: bytes, raw: bytes, encoding: str, most: int) -> bytes:
    unpacked = io.BytesIO()
    unpacked.write(first)
    pending, place, came = unpacker.unconsumed_tail, _INPUT, len(first)
    while unpacked.tell() <= most and not unpacker.eof and (pending or place < len(raw) or came):
        if not pending:  # at the end, empty: zlib may hold back output without an unconsumed tail
            pending, place = raw[place : place + _INPUT], place + _INPUT
        came = unpacked.write(unpacker.decompress(pending, min(_STEP, most + 1 - unpacked.tell())))
        pending = unpacker.unconsumed_tail
    if unpacked.tell() > most:
        raise _too_large(most)
    _check_end(unpacker, raw[place:], encoding)
    return unpacked.getvalue()


def _check_end(unpacker: "zlib._Decompress", rest: bytes, encoding: str) -> None:
    if not unpacker.eof:
        raise ProviderError(f"malformed response: its {encoding} stream is truncated")
    if unpacker.unused_data or rest:
        raise ProviderError(f"malformed response: it has bytes after the end of its {encoding} stream")


def _unpacker(raw: bytes, encoding: str) -> "zlib._Decompress":
    match encoding.strip().lower():
        case "gzip" | "x-gzip":
            return zlib.decompressobj(_GZIP)
        case "deflate":  # by the standard in zlib's format, but some servers leave its header out
            has_header = raw[0] & 15 == 8 and int.from_bytes(raw[:2], "big") % 31 == 0
            return zlib.decompressobj(_ZLIB if has_header else _DEFLATE)
    # shown whole or not at all: a cut may split a key
    shown = repr(encoding) if len(encoding) <= _SHOWN else f"a text of {len(encoding)} characters"
    raise ProviderError(f"malformed response: its Content-Encoding is {shown}, but only {ENCODINGS} were accepted")


def _too_large(most: int) -> ProviderError:
    return ProviderError(f"malformed response: it has more than {most} bytes, decompressed, which is the maximum")


def _limiter() -> anyio.CapacityLimiter:
    try:
        return _threads.get()
    except LookupError:
        _threads.set(limiter := anyio.CapacityLimiter(_THREADS))
        return limiter
