"""Where the envs of a program live: pools of every backend, and what can happen to each of them.

Another backend is one more entry of `PLACES`.
"""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.abc import TaskStatus

from asyncrollout import EnvPool, RemoteEnvPool
from asyncrollout.service.server import Caps, EnvServer
from tests.cable import Cable


class Place:
    """A pool. `losses` counts what may have cost envs their home."""

    takes_odd_values = True

    def __init__(self, name: str, pool: EnvPool, workers: EnvPool | None = None) -> None:
        self.name, self.pool = name, pool
        self.workers = pool if workers is None else workers  # whose workers can be killed
        self.losses = 0

    @property
    def made_again(self) -> int:
        """How many envs were made of the pool's own accord."""
        return sum(stats.moved + stats.restored for stats in (one.stats() for one in {self.pool, self.workers}))

    async def kill(self, number: int) -> None:
        pids = [worker.pid for worker in self.workers.stats().workers if worker.pid not in (None, os.getpid())]
        if pids:
            self.losses += 1
            with suppress(ProcessLookupError):  # it died just now
                os.kill(pids[number % len(pids)] or 0, signal.SIGKILL)


class Remote(Place):
    """A server that is reached by a cable."""

    def __init__(self, workers: EnvPool, server: "Server", cable: Cable, pool: EnvPool) -> None:
        super().__init__("remote", pool, workers)
        self._server, self._cable = server, cable

    async def cut(self, _: int) -> None:
        await self._cable.cut()

    async def lose(self, _: int) -> None:
        """The server closes the envs that have nothing to do."""
        self.losses += 1
        await self._server.now.close_idle(anyio.current_time() + 2000)

    async def restart(self, _: int) -> None:
        self.losses += 1
        await self._server.restart()


class Server:
    """A server that can be started again at its old address, with the same pool behind it."""

    def __init__(self, pool: EnvPool) -> None:
        self._pool = pool
        self._port = 0
        self._leave, self._up = anyio.Event(), anyio.Event()
        self._one_at_a_time = anyio.Lock()
        self.now: EnvServer

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        started = False
        while True:
            self._leave = anyio.Event()
            options = Caps(idle_seconds=1000)
            async with EnvServer(self._pool, port=self._port, caps=options, grace=0.01) as self.now:
                self._port = int(self.now.url.rpartition(":")[2])
                if not started:
                    task_status.started()
                    started = True
                self._up.set()
                await self._leave.wait()

    async def restart(self) -> None:
        async with self._one_at_a_time:
            self._up = anyio.Event()
            self._leave.set()
            await self._up.wait()


@asynccontextmanager
async def _inline() -> AsyncIterator[Place]:
    async with EnvPool(backend="inline") as pool:
        yield Place("inline", pool)


@asynccontextmanager
async def _process() -> AsyncIterator[Place]:
    async with EnvPool(workers=2) as pool:
        yield Place("process", pool)


@asynccontextmanager
async def _snapshots() -> AsyncIterator[Place]:
    async with EnvPool(workers=1, recover="snapshot") as pool:
        yield Place("snapshots", pool)


@asynccontextmanager
async def _remote() -> AsyncIterator[Place]:
    async with EnvPool(workers=1) as workers, anyio.create_task_group() as tasks:
        server = Server(workers)
        await tasks.start(server.run)
        async with Cable(server.now.url).laid() as cable, RemoteEnvPool(cable.url) as pool:
            yield Remote(workers, server, cable, pool)
        tasks.cancel_scope.cancel()


PLACES: dict[str, Callable[[], AbstractAsyncContextManager[Place]]] = {
    "inline": _inline,
    "process": _process,
    "snapshots": _snapshots,
    "remote": _remote,
}


@asynccontextmanager
async def opened(names: Iterable[str]) -> AsyncIterator[dict[str, Place]]:
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(PLACES[name]()) for name in sorted(names)}


async def disturb(place: Place, kind: str, number: int) -> None:
    act: Any = getattr(place, kind)
    await act(number)
