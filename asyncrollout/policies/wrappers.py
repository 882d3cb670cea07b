"""Small policies around others."""

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
import numpy as np

from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.policies.holding import Deadline, held_back
from asyncrollout.protocols import Policy
from asyncrollout.types import Generation, Request


@dataclass(frozen=True)
class Limited:
    inner: Policy
    slots: anyio.CapacityLimiter

    async def generate(self, request: Request) -> Generation:
        if request.seconds is None:
            return await self._take_place(request)
        with Deadline(request.seconds, _held_beneath(self.inner)):
            return await self._take_place(request)
        raise ProviderError(f"no answer within {request.seconds:g} s, the wait for a place included")

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
        """The first answer; the last policy's failure, if none has one."""
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


@dataclass(frozen=True)
class Cached:
    inner: Policy
    size: int
    kept: OrderedDict[bytes, Generation] = field(default_factory=OrderedDict)
    _asking: dict[bytes, anyio.Lock] = field(default_factory=dict)
    _forgotten: list[int] = field(default_factory=lambda: [0])  # how often

    async def generate(self, request: Request) -> Generation:
        shown = [request.messages, request.prompt_ids, request.sampling, request.data, request.expert]
        asked = msgspec.msgpack.encode(shown, order="deterministic", enc_hook=_array)
        lock = self._asking.setdefault(asked, anyio.Lock())
        try:
            async with _in_turn(lock):  # whoever asks the same meanwhile gets the same
                key = self._key(asked)
                if key not in self.kept:
                    forgotten = self._forgotten[0]
                    generation = await self.inner.generate(request)
                    if forgotten != self._forgotten[0] or key != self._key(asked):
                        return generation  # perhaps of the old weights
                    self.kept[key] = generation
                self.kept.move_to_end(key)
                generation = self.kept[key]
        finally:
            if not lock.locked():  # else the next in turn has it
                self._asking.pop(asked, None)
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return generation

    def _key(self, asked: bytes) -> bytes:
        """Other for other weights, also if they were changed without our being asked to forget."""
        versions = [(getattr(part, "version", 0), getattr(part, "updates", 0)) for part in nested(self.inner)]
        return asked + msgspec.msgpack.encode(versions)

    def forget(self) -> None:
        """Forget all replies, as of weights that are no more; also those under way."""
        self._forgotten[0] += 1
        self.kept.clear()


@dataclass(frozen=True)
class Frozen:
    """A policy that does not learn: weight updates leave it alone."""

    inner: Policy

    def __getattr__(self, name: str) -> Any:
        """Whatever else an agent may want of its policy; but nobody pauses it."""
        if name.startswith("__") or name in ("inner", "policies", "pause", "resume"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def generate(self, request: Request) -> Generation:
        return msgspec.structs.replace(await self.inner.generate(request), frozen=True)


def limited(policy: Policy, most: int) -> Limited:
    """At most so many calls at a time."""
    if isinstance(most, bool) or most < 1:
        raise UsageError(f"limited: most={most!r} is not a number from 1")
    return Limited(policy, anyio.CapacityLimiter(most))


def fallback(*policies: Policy) -> Fallback:
    """The next policy where one fails."""
    if not policies:
        raise UsageError("fallback() needs at least one policy")
    return Fallback(policies)


def cached(policy: Policy, *, size: int = 1024) -> Cached:
    """The same reply to the same request, from memory; the oldest of more than `size` are forgotten.

    A request is the same if all that a policy is shown of it is: prompt, sampling with its seed, data.
    """
    if isinstance(size, bool) or size < 1:
        raise UsageError(f"cached: size={size!r} is not a number from 1")
    return Cached(policy, size)


def frozen(policy: Policy) -> Frozen:
    """A part that does not learn: not held back by weight updates, of its own version, and never stale."""
    if not hasattr(policy, "generate"):
        raise UsageError(f"frozen: {policy!r:.100} is not a policy: it has no generate()")
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
async def _in_turn(lock: anyio.Lock) -> AsyncIterator[None]:
    """What another call does meanwhile is charged to that one."""
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
    """From now on: how long calls of the parts were held back for new weights."""
    parts = [part for policy in policies for part in nested(policy) if hasattr(part, "held_seconds")]
    before = [part.held_seconds() for part in parts]
    return lambda: max((part.held_seconds() - so_far for part, so_far in zip(parts, before, strict=True)), default=0.0)


def _array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    raise UsageError(f"cached: a request with a {type(value).__name__} cannot be compared with others")
