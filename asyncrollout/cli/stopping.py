"""Ctrl-C: the first one lets replies under way come in, a second one does not wait."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from asyncrollout.cli.display import Display
from asyncrollout.rollouts.facade import Rollouts
from asyncrollout.tasks import task_group

_DRAIN_SECONDS = 2.0


class Stop:
    """Whether somebody has stopped a run, which plays in the scope."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self._draining: tuple[Rollouts, Display] | None = None

    @property
    def has_stopped(self) -> bool:
        return self.scope.cancelled_caught

    def drain(self, rollouts: Rollouts, display: Display) -> None:
        """From now on, replies may be under way, which are worth waiting for."""
        self._draining = rollouts, display

    async def wait(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with task_group() as draining:
                async for _ in signals:
                    if self._draining is None:
                        self.scope.cancel()
                    else:
                        draining.start_soon(self._drain, *self._draining)
                        self._draining = None

    async def _drain(self, rollouts: Rollouts, display: Display) -> None:
        display.say("stopping, once the replies under way are in; again to stop at once")
        await rollouts.drain(_DRAIN_SECONDS)
        self.scope.cancel()


@asynccontextmanager
async def stoppable() -> AsyncIterator[Stop]:
    """From here to the end, signals stop what is in the scope, and nothing else."""
    stop = Stop()
    async with task_group() as watching:
        watching.start_soon(stop.wait)
        await anyio.lowlevel.checkpoint()
        yield stop
        watching.cancel_scope.cancel()
