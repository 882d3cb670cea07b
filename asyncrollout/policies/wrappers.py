"""Policies around others: limited, with a fallback, cached, frozen."""

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio
import msgspec
import numpy as np

from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.policies.holding import Deadline, held_back
from asyncrollout.policies.versions import NotedVersions, Unnoted, note_version
from asyncrollout.protocols import Policy
from asyncrollout.types import Generation, Request

# A reply does not depend on these; a field that is added to `Request` counts unless it is added here.
_NOT_COMPARED = frozenset({"session", "turn", "seconds", "tokens_left"})
_COMPARED = tuple(name for name in Request.__struct_fields__ if name not in _NOT_COMPARED)


@dataclass(frozen=True)
class Limited:
    inner: Policy
    slots: anyio.CapacityLimiter

    def __reduce__(self) -> Any:
        """In another process, calls have places of their own."""
        return limited, (self.inner, int(self.slots.total_tokens))

    async def generate(self, request: Request) -> Generation:
        if request.seconds is None:
            return await self._take_place(request)
        with Deadline(request.seconds, _held_beneath(self.inner)):
            return await self._take_place(request)
        raise ProviderError(f"no response within {request.seconds:g} s, queueing included")

    async def _take_place(self, request: Request) -> Generation:
        try:
            self.slots.acquire_nowait()
        except anyio.WouldBlock:
            with held_back():
                await self.slots.acquire()
        try:
            return await self.inner.generate(request)
        finally:
            self.slots.release()


@dataclass(frozen=True)
class Fallback:
    policies: tuple[Policy, ...]

    async def generate(self, request: Request) -> Generation:
        """The first reply; the last policy's failure if none has one."""
        seconds, began = request.seconds, time.monotonic()
        held = _held_beneath(*(() if seconds is None else self.policies))
        *others, last = self.policies
        for policy in others:
            try:
                return await policy.generate(request)
            except ProviderError:
                if seconds is not None:
                    left = seconds - (time.monotonic() - began - held())
                    request = msgspec.structs.replace(request, seconds=max(left, 0.001))
        return await last.generate(request)


class CachedReply(NamedTuple):
    """A reply, and the oldest version of the weights that it depends on, if any of them learn."""

    generation: Generation
    oldest_version: int | None


@dataclass(frozen=True)
class Cached:
    inner: Policy
    size: int
    kept: OrderedDict[bytes, CachedReply] = field(default_factory=OrderedDict)
    _asking: dict[bytes, anyio.Lock] = field(default_factory=dict)
    _forgotten: list[int] = field(default_factory=lambda: [0])  # how often

    def __reduce__(self) -> Any:
        """In another process, nothing is kept yet."""
        return _cached, (self.inner, self.size)

    async def generate(self, request: Request) -> Generation:
        shown = [getattr(request, name) for name in _COMPARED]
        asked = msgspec.msgpack.encode(shown, order="deterministic", enc_hook=_array)
        lock = self._asking.setdefault(asked, anyio.Lock())
        try:
            async with _uncharged(lock):  # concurrent equal requests get the same reply
                key = self._key(asked)
                if key not in self.kept:
                    forgotten = self._forgotten[0]
                    with NotedVersions() as versions:
                        generation = await self.inner.generate(request)
                    if forgotten != self._forgotten[0] or key != self._key(asked):
                        return generation  # possibly of the old weights
                    self.kept[key] = CachedReply(generation, min(versions, default=None))
                else:
                    generation, oldest = self.kept[key]
                    note_version(oldest)
                self.kept.move_to_end(key)
        finally:
            if not lock.locked():  # else the next waiter has it
                self._asking.pop(asked, None)
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return generation

    def _key(self, asked: bytes) -> bytes:
        """Differs by weights, even if they were changed without a call of `forget`."""
        versions = [(getattr(part, "version", 0), getattr(part, "updates", 0)) for part in nested(self.inner)]
        return asked + msgspec.msgpack.encode(versions)

    def forget(self) -> None:
        """Drop all replies, those in flight included: they are of old weights."""
        self._forgotten[0] += 1
        self.kept.clear()


@dataclass(frozen=True)
class Frozen:
    """A policy that does not learn: weight updates leave it alone."""

    inner: Policy

    def __getattr__(self, name: str) -> Any:
        """Other attributes of the policy, but without `pause` and `resume`."""
        if name.startswith("__") or name in ("inner", "policies", "pause", "resume"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def generate(self, request: Request) -> Generation:
        with Unnoted():
            generation = await self.inner.generate(request)
        return msgspec.structs.replace(generation, frozen=True)


def limited(policy: Policy, most: int) -> Limited:
    """A policy with at most `most` concurrent calls."""
    if isinstance(most, bool) or most < 1:
        raise UsageError(f"limited: most={most!r} must be at least 1")
    return Limited(policy, anyio.CapacityLimiter(most))


def fallback(*policies: Policy) -> Fallback:
    """Use the next policy where one fails."""
    if not policies:
        raise UsageError("fallback() needs at least one policy")
    return Fallback(policies)


def cached(policy: Policy, *, size: int = 1024) -> Cached:
    """Give the same reply to the same request, from memory; beyond `size`, the least recently used are dropped.

    Requests are the same if prompt, sampling (with its seed), data and expert are equal.
    """
    if isinstance(size, bool) or size < 1:
        raise UsageError(f"cached: size={size!r} must be at least 1")
    return Cached(policy, size)


def _cached(policy: Policy, size: int) -> Cached:
    return cached(policy, size=size)


def frozen(policy: Policy) -> Frozen:
    """A part that does not learn: weight updates do not hold it back, and its replies are never stale."""
    if not hasattr(policy, "generate"):
        raise UsageError(f"frozen: {policy!r:.100} is not a policy (no generate method)")
    return Frozen(policy)


def composed_of(policy: Any) -> list[Any]:
    """The policies directly inside one."""
    several = getattr(policy, "policies", ())
    inside = [getattr(policy, "inner", None), *(several if isinstance(several, list | tuple) else ())]
    return [part for part in inside if hasattr(part, "generate")]


def nested(policy: Any) -> Iterator[Any]:
    """A policy and those that it is composed of."""
    if policy is not None:
        yield policy
        for part in composed_of(policy):
            yield from nested(part)


@asynccontextmanager
async def _uncharged(lock: anyio.Lock) -> AsyncIterator[None]:
    """Waiting for the same reply is not charged to the rollout."""
    try:
        lock.acquire_nowait()
    except anyio.WouldBlock:
        with held_back():
            await lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _held_beneath(*policies: Policy) -> Callable[[], float]:
    """A clock from now on: how long calls of the parts were held back for new weights."""
    parts = [part for policy in policies for part in nested(policy) if hasattr(part, "held_seconds")]
    before = [part.held_seconds() for part in parts]
    return lambda: max((part.held_seconds() - so_far for part, so_far in zip(parts, before, strict=True)), default=0.0)


def _array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    raise UsageError(f"cached: requests cannot be compared: they contain a value of type {type(value).__name__}")
