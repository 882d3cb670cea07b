"""When a worker is to be killed: a call or its memory is past its limit, or it begins nothing that it was sent."""

import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from asyncrollout.pool.hosts import DurationWindow, HostLost, PoolLimits
from asyncrollout.pool.process.observed_time import CpuUsage, ObservedTime
from asyncrollout.pool.process.worker_host import WorkerHost
from asyncrollout.pool.wire.status_page import CLOSING, WatchedPage

_STARVED = 0.1  # of a CPU; a worker that gets less, though it could use more, is not what takes the time
_MOST_PATIENCE = 3.0  # times its limit that a call may take on a worker that is starved
_ANYBODYS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What operators, schedulers and the kernel send; other signals come of what an env does."""


class WatchContext:
    """What the supervisors of a pool have in common: how time passes, and what happens to the others."""

    def __init__(self) -> None:
        self.time = ObservedTime(time.monotonic(), time.process_time())
        self.starting: set[int] = set()  # ranks of workers that build or reset envs for longer than a moment
        self.idle_kills = 0  # deaths from outside of workers at which no call was under way

    def tick(self) -> float:
        now = time.monotonic()
        self.time.tick(now, time.process_time())
        return now


class KillReason(NamedTuple):
    """Why a worker dies, and the calls to blame."""

    kind: str
    blamed: set[int]
    cause: str = ""
    from_outside: bool = False

    def losses(self, log: str, idle_kills: int) -> tuple[HostLost, Callable[[int], HostLost]]:
        """What later calls raise, and what each call in flight does."""

        def lost(call: int) -> HostLost:
            return HostLost(
                self.kind,
                suspects=len(self.blamed) if call in self.blamed else 0,
                cause=self.cause,
                log=log,
                from_outside=self.from_outside,
                idle_kills=idle_kills,
            )

        return lost(0), lost


class Watchdog:
    """Watches one worker process."""

    def __init__(self, limits: PoolLimits, watch: WatchContext, clock: DurationWindow) -> None:
        self._limits = limits
        self._time = watch.time
        self._clock = clock
        self._calls = clock.calls
        self._active = time.monotonic()  # when a call was last begun or answered
        self._seen: dict[tuple[int, float], tuple[float, float] | None] = {}  # seconds and CPU, late in a call

    def look(self, host: WorkerHost, page: WatchedPage, now: float) -> KillReason | None:
        running = page.running()
        seen, self._seen = self._seen, {}
        for entry in running:
            call, start = entry
            limit = self._limits.longest
            if call in host.pending:
                _, op, _, _ = host.pending[call]
                limit = self._limits.of(op)
            elapsed = self._time.since(start, now)
            late = seen.get(entry)
            if elapsed > limit and entry in seen:  # seen twice: not just being written
                if host.usage().is_stopped:
                    return _stopped(limit, {call for call, _ in running})
                if late is None or not _is_starved(host.usage(), elapsed, limit, *late):
                    return KillReason("timeout", {call})
            if late is None and elapsed > limit / 2:
                late = elapsed, host.usage().cpu
            self._seen[entry] = late
        is_at_work = any(call in host.pending or call == CLOSING for call, _ in running)  # not only past an answer
        if is_at_work or not host.pending or self._clock.calls != self._calls:
            self._calls, self._active = self._clock.calls, now
        elif (stuck := self._stuck(host, now)) is not None:
            return stuck
        if self._limits.memory is not None and host.resident_bytes() > self._limits.memory:
            return KillReason("memory", {call for call, _ in running})
        return None

    def _stuck(self, host: WorkerHost, now: float) -> KillReason | None:
        """A process that has calls and begins none ends, and the env of no call is to blame.

        What it does outside of calls, such as importing what an env is made of, may take as long as a reset.
        """
        idle = self._time.since(self._active, now)
        if idle > self._limits.step and host.usage().is_stopped:
            return _stopped(self._limits.step, set())
        if idle > max(self._limits.step, *(self._limits.of(op) for _, op, _, _ in host.pending.values())):
            return KillReason("timeout", set())
        return None


def crash(running: set[int], code: int | None, *, was_given_up: bool) -> KillReason:
    """The end of a worker that nobody here has killed. `code` is its exit status, negative for a signal."""
    from_outside = (code is None or may_be_killed(code)) and not was_given_up
    return KillReason("crash", running, from_outside=from_outside)


def may_be_killed(code: int | None) -> bool:
    """Whether a process with this exit status ended by a signal that anybody may have sent."""
    return code is not None and -code in _ANYBODYS


def _stopped(limit: float, calls: set[int]) -> KillReason:
    return KillReason("crash", calls, f"it was stopped, as by SIGSTOP, for longer than {limit:g} s", from_outside=True)


def _is_starved(now: CpuUsage, elapsed: float, limit: float, late: float, cpu: float) -> bool:
    """Whether a worker could continue its call, and others use its CPU: the call does not take long, it waits."""
    return now.is_runnable and elapsed < _MOST_PATIENCE * limit and now.cpu - cpu < _STARVED * (elapsed - late)
