"""Ctrl-C: the first one lets replies under way come in, a second one does not wait."""

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.lowlevel

from asyncrollout.cli.terminal.live import Display
from asyncrollout.concurrency import Background, task_group
from asyncrollout.rollouts.api import Rollouts

_DRAIN_SECONDS = 2.0


class Stop:
    """Signals stop whatever is in a scope of it at that time."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._draining: tuple[Rollouts, Display] | None = None

    @contextmanager
    def scope(self) -> Iterator[anyio.CancelScope]:
        """What can be stopped; one scope after the other."""
        self._draining = None
        with anyio.CancelScope() as self._scope:
            yield self._scope

    def drain(self, rollouts: Rollouts, display: Display) -> None:
        """From now on, replies may be under way, which are worth waiting for."""
        self._draining = rollouts, display

    async def wait(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with task_group() as draining:
                async for _ in signals:
                    if self._draining is None:
                        self._scope.cancel()
                    else:
                        draining.start_soon(_drain, *self._draining, self._scope)
                        self._draining = None


async def _drain(rollouts: Rollouts, display: Display, scope: anyio.CancelScope) -> None:
    display.say("stopping, once the replies under way are in; again to stop at once")
    await rollouts.drain(_DRAIN_SECONDS)
    scope.cancel()


@asynccontextmanager
async def stoppable() -> AsyncIterator[Stop]:
    """From here to the end, signals stop what is in a scope of it, and nothing else."""
    stop = Stop()
    async with Background() as watching:
        watching.start_soon(stop.wait)
        await anyio.lowlevel.checkpoint()
        yield stop
