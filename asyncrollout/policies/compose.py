"""Small policies around others."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
import numpy as np

from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.protocols import Policy
from asyncrollout.types import Generation, Request


@dataclass(frozen=True)
class Limited:
    inner: Policy
    slots: anyio.CapacityLimiter

    async def generate(self, request: Request) -> Generation:
        try:
            with anyio.fail_after(request.seconds):
                async with self.slots:
                    return await self.inner.generate(request)
        except TimeoutError:
            raise ProviderError(f"no answer within {request.seconds:g} s, the wait for a place included") from None


@dataclass(frozen=True)
class Fallback:
    policies: tuple[Policy, ...]

    async def generate(self, request: Request) -> Generation:
        """The first answer; the last policy's failure, if none has one."""
        deadline = None if request.seconds is None else anyio.current_time() + request.seconds
        *others, last = self.policies
        for policy in others:
            try:
                return await policy.generate(request)
            except ProviderError:
                if deadline is not None:
                    request = msgspec.structs.replace(request, seconds=max(deadline - anyio.current_time(), 0.001))
        return await last.generate(request)


@dataclass(frozen=True)
class Cached:
    inner: Policy
    size: int
    kept: OrderedDict[bytes, Generation] = field(default_factory=OrderedDict)
    _asking: dict[bytes, anyio.Lock] = field(default_factory=dict)

    async def generate(self, request: Request) -> Generation:
        version = getattr(self.inner, "version", 0)
        asked = [request.messages, request.prompt_ids, request.sampling, request.data, request.expert, version]
        key = msgspec.msgpack.encode(asked, order="deterministic", enc_hook=_array)
        lock = self._asking.setdefault(key, anyio.Lock())
        try:
            async with lock:  # whoever asks the same meanwhile gets the same
                if key not in self.kept:
                    self.kept[key] = await self.inner.generate(request)
                self.kept.move_to_end(key)
                generation = self.kept[key]
        finally:
            if not lock.statistics().tasks_waiting:
                self._asking.pop(key, None)
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return generation

    def forget(self) -> None:
        """Forget all replies, as of weights that are no more."""
        self.kept.clear()


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


def nested(policy: Any) -> Iterator[Any]:
    """A policy and those that it is composed of."""
    if policy is not None:
        yield policy
        for inner in (getattr(policy, "inner", None), *getattr(policy, "policies", ())):
            yield from nested(inner)


def _array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    raise UsageError(f"cached: a request with a {type(value).__name__} cannot be compared with others")
