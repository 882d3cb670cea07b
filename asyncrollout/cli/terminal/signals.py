"""Ctrl-C: the first one waits for replies in flight, the second one stops at once."""

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
    """Signals cancel the current scope."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._draining: tuple[Rollouts, Display] | None = None

    @contextmanager
    def scope(self) -> Iterator[anyio.CancelScope]:
        """Work that a signal stops; one scope at a time."""
        self._draining = None
        with anyio.CancelScope() as self._scope:
            yield self._scope

    def drain(self, rollouts: Rollouts, display: Display) -> None:
        """From now on, a first signal waits for replies in flight."""
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
    display.say("stopping once replies in flight have arrived; press Ctrl-C again to stop at once")
    await rollouts.drain(_DRAIN_SECONDS)
    scope.cancel()


@asynccontextmanager
async def stoppable() -> AsyncIterator[Stop]:
    """Until the end, signals cancel what runs in the `scope()` of this, and nothing else."""
    stop = Stop()
    async with Background() as watching:
        watching.start_soon(stop.wait)
        await anyio.lowlevel.checkpoint()
        yield stop
