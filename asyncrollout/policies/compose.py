"""Small policies around others."""

from collections import OrderedDict
from dataclasses import dataclass, field

import anyio
import msgspec

from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.protocols import Policy
from asyncrollout.types import Generation, Request


@dataclass(frozen=True)
class Limited:
    inner: Policy
    slots: anyio.CapacityLimiter

    async def generate(self, request: Request) -> Generation:
        async with self.slots:
            return await self.inner.generate(request)


@dataclass(frozen=True)
class Fallback:
    policies: tuple[Policy, ...]

    async def generate(self, request: Request) -> Generation:
        """The first answer; the last policy's failure, if none has one."""
        *others, last = self.policies
        for policy in others:
            try:
                return await policy.generate(request)
            except ProviderError:
                continue
        return await last.generate(request)


@dataclass(frozen=True)
class Cached:
    inner: Policy
    size: int
    kept: OrderedDict[bytes, Generation] = field(default_factory=OrderedDict)

    async def generate(self, request: Request) -> Generation:
        key = msgspec.msgpack.encode([request.messages, request.prompt_ids, request.sampling], order="deterministic")
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        generation = await self.inner.generate(request)
        self.kept[key] = generation
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return generation


def limited(policy: Policy, most: int) -> Limited:
    """At most so many calls at a time."""
    return Limited(policy, anyio.CapacityLimiter(most))


def fallback(*policies: Policy) -> Fallback:
    """The next policy where one fails."""
    if not policies:
        raise UsageError("fallback() needs at least one policy")
    return Fallback(policies)


def cached(policy: Policy, *, size: int = 1024) -> Cached:
    """The same reply to the same prompt and sampling, from memory; the oldest of more than `size` are forgotten."""
    return Cached(policy, size)
