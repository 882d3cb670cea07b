"""The event loop's own home: light envs in its thread, async envs on it, blocking `io` envs in threads beside it."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from asyncrollout.errors import EnvError
from asyncrollout.pool.failure import Failure, failure
from asyncrollout.pool.home import Clock, Limits, Lost, Reply
from asyncrollout.pool.hosted import HostedEnv, Opening, is_async, outcome_digest, run_now
from asyncrollout.pool.thread import EnvThread
from asyncrollout.pool.wire import OUTCOMES, PLAIN, Op, detach
from asyncrollout.types import Durations, WorkerStats

T = TypeVar("T")

_YIELD_AFTER = 0.001  # seconds of work after which other tasks get their turn
_OPEN, _STEP, _CLOSE = Op.OPEN, Op.STEP, Op.CLOSE  # an enum's attribute is slow to find


class LoopHome:
    """Rank -1. Gives the same replies as a worker process; what it returns is a copy, as there.

    An env in the loop's thread cannot be interrupted: only those that wait have a deadline here.
    """

    rank = -1
    usable = True
    stuck = False

    def __init__(self, limits: Limits) -> None:
        self.load = 0.0
        self.envs = 0
        self.clock = Clock()
        self._limits = limits
        self._hosted: dict[int, HostedEnv] = {}
        self._threads: dict[int, EnvThread] = {}
        self._dropped: list[HostedEnv] = []
        self._worked = 0.0

    async def call(self, env_id: int, op: Op, payload: Any, *, movable: bool = False) -> Reply:  # noqa: ARG002
        if self._dropped or self._worked > _YIELD_AFTER or self._is_behind(env_id):
            await self._wait_first(env_id)
        if op is not _OPEN:
            payload = detach(payload)
        start = time.monotonic()
        value = info = digest = None
        trouble: Failure | None = None
        try:
            hosted = self._hosted.get(env_id)
            if op is _OPEN:
                await self._open(env_id, payload)
            elif hosted is None:
                raise EnvError("it is not here any more")
            elif hosted.waits:
                value, info = _split(op, await self._wait(env_id, hosted, op, payload))
            elif op is _STEP:
                observation, reward, terminated, truncated, told = hosted.step_now(payload)
                value = detach(observation), reward, terminated, truncated
                info = detach(told) if told else None
            else:
                value, info = _split(op, run_now(hosted.perform(op, payload)))
        except Lost:
            raise
        except (Exception, SystemExit) as error:
            trouble = failure(error, op)
        if op is _CLOSE:
            self._forget(env_id)
        if op in OUTCOMES and value is not None and type(value[0]) not in PLAIN:
            digest = outcome_digest(value)  # now, since the caller may change what is not plain
        seconds = time.monotonic() - start
        self._worked += seconds
        self.clock.extend((seconds,))
        return 0, trouble, value, info, digest, seconds, None

    def _is_behind(self, env_id: int) -> bool:
        hosted = self._hosted.get(env_id)
        return hosted is not None and hosted.camera is not None and hosted.camera.is_behind

    async def _wait_first(self, env_id: int) -> None:
        """For what comes before a call: the end of other envs, other tasks, this env's camera."""
        if self._dropped:
            await self._close_dropped()
        if self._worked > _YIELD_AFTER:
            self._worked = 0.0
            await anyio.lowlevel.checkpoint()
        hosted = self._hosted.get(env_id)
        if hosted is not None and hosted.camera is not None and hosted.camera.is_behind:
            await anyio.to_thread.run_sync(hosted.camera.catch_up, abandon_on_cancel=True)

    def drop(self, env_id: int) -> None:
        hosted, thread = self._hosted.pop(env_id, None), self._threads.pop(env_id, None)
        if thread is not None:
            if hosted is not None:
                thread.submit(lambda: _close_now(hosted))
            thread.end()
        elif hosted is not None and hosted.awaits:
            self._dropped.append(hosted)
        elif hosted is not None:
            _close_now(hosted)

    def _forget(self, env_id: int) -> None:
        self._hosted.pop(env_id, None)
        if env_id in self._threads:
            self._threads.pop(env_id).end()

    async def _close_dropped(self) -> None:
        """Async envs that were let go where nobody could wait for their end."""
        dropped, self._dropped = self._dropped, []
        for hosted in dropped:
            with anyio.move_on_after(self._limits.step), suppress(Exception):  # nobody is left to tell
                await hosted.close()

    async def close(self) -> None:
        await self._close_dropped()

    def stats(self) -> WorkerStats:
        return WorkerStats(
            rank=self.rank,
            pid=os.getpid(),
            envs=self.envs,
            queued=0,
            calls=self.clock.calls,
            restarts=0,
            seconds=Durations.of(self.clock.recent()),
        )

    async def _open(self, env_id: int, opening: Opening) -> None:
        if opening.spec.runs != "io" or is_async(opening.spec):
            self._hosted[env_id] = HostedEnv(opening)
            return
        thread = self._threads[env_id] = EnvThread()
        with anyio.move_on_after(self._limits.of(Op.OPEN)) as scope:
            self._hosted[env_id] = await _in_thread(thread, lambda: HostedEnv(opening))
        if scope.cancelled_caught:
            self.drop(env_id)
            raise Lost("timeout", suspects=1)

    async def _wait(self, env_id: int, hosted: HostedEnv, op: Op, payload: Any) -> Any:
        result = None
        with anyio.move_on_after(self._limits.of(op)) as scope:
            if hosted.awaits:
                result = await hosted.perform(op, payload)
            else:
                result = await _in_thread(self._threads[env_id], lambda: run_now(hosted.perform(op, payload)))
        if scope.cancelled_caught:
            self.drop(env_id)
            raise Lost("timeout", suspects=1)
        return result


def _close_now(hosted: HostedEnv) -> None:
    with suppress(Exception):  # nobody is left to tell
        run_now(hosted.close())


def _split(op: Op, result: Any) -> tuple[Any, Any]:
    if op in OUTCOMES and result is not None:
        return detach(result[:4]), detach(result[4])
    return detach(result), None


async def _in_thread(thread: EnvThread, work: Callable[[], T]) -> T:
    outcome: Future[T] = Future()

    def run() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(work())
            except BaseException as error:  # it is raised again in the loop's thread
                outcome.set_exception(error)

    thread.submit(run)
    return await asyncio.wrap_future(outcome)
