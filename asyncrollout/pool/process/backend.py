"""All worker ranks of a pool, and the watchdog that reads their pages; the backend of processes on this machine."""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from asyncrollout.errors import ClosedError, PoolError, UsageError
from asyncrollout.pool.hosts import SOON, DurationWindow, EnvHost, PoolLimits
from asyncrollout.pool.process.directory import private_directory
from asyncrollout.pool.process.rebalancing import plan_moves, plan_recalls
from asyncrollout.pool.process.supervisor import Supervisor
from asyncrollout.pool.process.watchdog import WatchContext
from asyncrollout.pool.process.worker_host import WorkerHost
from asyncrollout.types import Durations, WorkerStats

WorkerEnv = Callable[[int], Mapping[str, str]]
"""The environment variables of the worker of a rank."""

_STOP_GRACE = 3.0  # seconds for the call at work when the pool is closed, and for the end of an interpreter
_STOP_LOOK = 0.1  # seconds
_WATCH_EVERY = 0.1
_LOOK_AFTER = 0.002  # seconds in which whoever got the last reply may make the next call


class WorkerRank(Protocol):
    """Keeps one worker alive until it is stopped. `host` is its process while that serves.

    `failure` is why there is none, if there is nothing to wait for.
    """

    rank: int
    restarts: int
    clock: DurationWindow
    failure: PoolError | None
    ended: bool
    stopping: bool

    @property
    def host(self) -> WorkerHost | None: ...

    @property
    def node(self) -> str | None: ...

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    def is_overdue(self, grace: float) -> bool: ...

    def stop_now(self) -> None: ...

    def watch(self, now: float) -> None: ...


class WorkersBackend:
    """Worker processes, one task for each rank."""

    def __init__(self, workers: int, limits: PoolLimits, worker_env: WorkerEnv | None) -> None:
        self._environs = [_environ(worker_env, rank) for rank in range(workers)]
        self._limits = limits
        self._changed = anyio.Event()
        self._looks_soon = False
        self._idle: anyio.Event | None = None  # for whoever waits for a worker that has nothing to do
        self._ranks: Sequence[WorkerRank] = []
        self._usable: Sequence[WorkerHost] | None = None
        self._is_stopping = False
        self._directory = private_directory()
        self._is_started = False
        self._watch = WatchContext()

    async def _make_ranks(self, root: Path) -> Sequence[WorkerRank]:
        """The ranks, whose files lie below this directory."""
        raise NotImplementedError

    async def _release(self) -> None:
        """All ranks have ended."""

    @property
    def hosts(self) -> Sequence[WorkerHost]:
        """The same list until something changes: each placement asks for it."""
        if self._usable is None:
            self._usable = [rank.host for rank in self._ranks if rank.host is not None and rank.host.usable]
        return self._usable

    @property
    def ranks(self) -> Collection[int]:
        return [rank.rank for rank in self._ranks if rank.failure is None]

    async def start(self, tasks: TaskGroup) -> None:
        root = await self._directory.__aenter__()
        self._is_started = True
        self._ranks = await self._make_ranks(root)
        for rank in self._ranks:
            tasks.start_soon(rank.run)
        while not all(rank.host or rank.failure for rank in self._ranks):
            await self._changed.wait()
        for rank in self._ranks:
            if rank.failure:
                raise rank.failure
        tasks.start_soon(self._keep_watch)

    async def stop(self) -> None:
        """Let the workers close their envs; kill those that do not come to an end."""
        self._is_stopping = True
        for rank in self._ranks:
            rank.stop()
        self._on_change()
        while not all(rank.ended for rank in self._ranks):
            with anyio.move_on_after(_STOP_LOOK):
                await self._all_ended()
            self._watch.tick()
            for rank in self._ranks:
                if rank.is_overdue(_STOP_GRACE):
                    rank.stop_now()
        if self._is_started:
            self._is_started = False
            try:
                await self._release()
            finally:
                await self._directory.__aexit__(None, None, None)

    async def wait_usable(self, rank: int | None, avoided: Collection[int] = ()) -> Sequence[EnvHost]:
        while True:
            if rank is None and not avoided and not self._is_stopping and self.hosts:
                return self.hosts
            wanted = self._ranks if rank is None else [self._ranks[rank]]
            wanted = [one for one in wanted if one.rank not in avoided and one.failure is None] or wanted
            if any(one.stopping for one in wanted):
                raise ClosedError("the pool is closed")
            hosts = [one.host for one in wanted if one.host is not None and one.host.usable]
            if hosts:
                return hosts
            failures = [one.failure for one in wanted if one.failure]
            if len(failures) == len(wanted):
                raise failures[0]
            await self._changed.wait()

    def stats(self) -> list[WorkerStats]:
        return [
            WorkerStats(
                rank=rank.rank,
                pid=rank.host.pid if rank.host else None,
                envs=rank.host.envs if rank.host else 0,
                queued=len(rank.host.pending) if rank.host else 0,
                calls=rank.clock.calls,
                restarts=rank.restarts,
                seconds=Durations.of(rank.clock.recent()),
                node=rank.node,
            )
            for rank in self._ranks
        ]

    def recent_seconds(self) -> list[float]:
        return [seconds for rank in self._ranks for seconds in rank.clock.recent()]

    async def _all_ended(self) -> None:
        while not all(rank.ended for rank in self._ranks):
            await self._changed.wait()

    async def _keep_watch(self) -> None:
        while True:
            await anyio.sleep(_WATCH_EVERY)
            now = self._watch.tick()
            for rank in self._ranks:
                rank.watch(now)
            self._relieve(now)

    async def wait_idle(self) -> None:
        self._idle = self._idle or anyio.Event()
        await self._idle.wait()

    def _on_idle(self) -> None:
        """A worker has nothing to do: of use if an env waits to be built or to be reset, which is seldom."""
        if self._looks_soon or (self._idle is None and not self._has_slow_startups()):
            return
        self._looks_soon = True
        asyncio.get_running_loop().call_later(_LOOK_AFTER, self._look)

    def _has_slow_startups(self) -> bool:
        return bool(self._watch.starting)

    def _look(self) -> None:
        self._looks_soon = False
        self._relieve(time.monotonic())
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    def _relieve(self, now: float) -> None:
        """Have calls that wait behind slow ones made elsewhere, if that is sooner."""
        hosts = self.hosts
        if len(hosts) > 1 and any(host.wait() > SOON for host in hosts):
            for host, call in plan_recalls(hosts, now):
                host.withdraw([call], "recalled")
            for host, calls in list(plan_moves(hosts, now, self._limits.soft)):
                host.withdraw(calls)

    def _on_change(self) -> None:
        self._usable = None
        self._changed.set()
        self._changed = anyio.Event()


class ProcessBackend(WorkersBackend):
    """`workers` processes of this machine, hosted through `anyio.to_process`."""

    def __init__(
        self,
        workers: int,
        *,
        limits: PoolLimits,
        worker_env: WorkerEnv | None,
        log_dir: Path | None,
        send_snapshots: bool,
    ) -> None:
        super().__init__(workers, limits, worker_env)
        self._log_dir = _writable(log_dir) if log_dir is not None else None
        self._send_snapshots = send_snapshots

    async def _make_ranks(self, root: Path) -> Sequence[WorkerRank]:
        return [
            Supervisor(
                rank,
                root,
                limits=self._limits,
                environ=environ,
                log_dir=self._log_dir,
                send_snapshots=self._send_snapshots,
                watch=self._watch,
                on_change=self._on_change,
                on_idle=self._on_idle,
            )
            for rank, environ in enumerate(self._environs)
        ]


def _writable(log_dir: Path) -> Path:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"log_dir={str(log_dir)!r} cannot be made: {error}") from error
    if not os.access(log_dir, os.W_OK):
        raise UsageError(f"log_dir={str(log_dir)!r} cannot be written to")
    return log_dir


def _environ(worker_env: WorkerEnv | None, rank: int) -> dict[str, str]:
    if worker_env is not None and not callable(worker_env):
        raise UsageError(f"worker_env is a function of the rank, not a {type(worker_env).__name__}")
    environ = worker_env(rank) if worker_env else {}
    if not isinstance(environ, Mapping):
        raise UsageError(f"worker_env({rank}) gives a dict of environment variables, not {environ!r}")
    for name, value in environ.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise UsageError(f"worker_env({rank}): {name!r}={value!r} is not text: environment variables are")
    return dict(environ)
