"""The event loop's own host: light envs in its thread, async envs on it, blocking `io` envs in threads beside it."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup

from asyncrollout.logs import get_logger
from asyncrollout.pool.hosts import CLOSE_GRACE, Caller, DurationWindow, HostLost, PoolLimits
from asyncrollout.pool.time_limit import TimeLimit
from asyncrollout.pool.wire.codec import PLAIN, Undecodable, UnloadableError, detach
from asyncrollout.pool.wire.digest import outcome_digest
from asyncrollout.pool.wire.failure import failure
from asyncrollout.pool.wire.messages import OUTCOMES, CallReply, Failure, Op, OpenRequest
from asyncrollout.pool.wire.raised import EnvRaised, ignored, is_own
from asyncrollout.pool.worker.env_runner import EnvRunner, is_async, run_now
from asyncrollout.pool.worker.thread import EnvThread
from asyncrollout.types import Durations, WorkerStats

T = TypeVar("T")

log = get_logger(__name__)

_YIELD_AFTER = 0.001  # seconds of work after which other tasks get their turn
_LEAVING_CHECK = 0.01  # seconds between looks at threads that are ending
_OPEN, _STEP, _CLOSE, _END_VIDEO = Op.OPEN, Op.STEP, Op.CLOSE, Op.END_VIDEO  # an enum's attribute is slow to find


class InlineHost:
    """Rank -1. Gives the same replies as a worker process; what it returns is a copy, as there.

    An env in the loop's thread cannot be interrupted: only those that wait have a deadline here.
    """

    rank = -1
    usable = True
    is_idle = True
    is_held_up = False

    def __init__(self, limits: PoolLimits) -> None:
        self.load = 0.0
        self.envs = 0
        self.clock = DurationWindow()
        self._limits = limits
        self._hosted: dict[int, EnvRunner] = {}
        self._threads: dict[int, EnvThread] = {}
        self._leaving: list[EnvThread] = []  # whose env was let go, and is being closed
        self._awaited: dict[int, _AsyncCall] = {}
        self._tasks: TaskGroup | None = None
        self._closing = 0
        self._all_closed = anyio.Event()
        self._worked = 0.0

    def open(self, tasks: TaskGroup) -> None:
        """Envs that nobody waits for are closed in these tasks."""
        self._tasks = tasks

    def wait(self) -> float:
        return 0.0

    async def call(self, env_id: int, op: Op, payload: Any, *, caller: Caller | None = None) -> CallReply:  # noqa: ARG002
        if self._worked > _YIELD_AFTER or self._is_behind(env_id):
            await self._wait_first(env_id)
        if op is not _OPEN:
            payload = detach(payload)
        start = time.monotonic()
        value = info = digest = None
        trouble: Failure | None = None
        hosted = self._hosted.get(env_id)
        try:
            if op is _OPEN:
                await self._open(env_id, payload)
            elif hosted is None:
                raise HostLost("closed")  # meanwhile, by its user or with the pool
            elif op is _END_VIDEO:
                value = await self._end_video(env_id, hosted)
            elif hosted.is_io:
                value, info = _split(op, await self._wait(env_id, hosted, op, payload))
            elif op is _STEP:
                observation, reward, terminated, truncated, raw_info = hosted.step_now(payload)
                value = detach(observation), reward, terminated, truncated
                info = detach(raw_info) if raw_info else None
            else:
                value, info = _split(op, run_now(hosted.perform(op, payload)))
            if op in OUTCOMES and value is not None and type(value[0]) not in PLAIN:
                digest = outcome_digest(value)  # now, since the caller may change what is not plain
        except HostLost:
            raise
        except BaseException as error:
            value, trouble = _attribute(error, op, is_async=hosted is None or hosted.is_io)
        if op is _CLOSE:
            self._forget(env_id)
        seconds = time.monotonic() - start
        self._worked += seconds
        self.clock.extend((seconds,))
        return CallReply(0, trouble, value, info, digest, seconds, None)

    def _is_behind(self, env_id: int) -> bool:
        hosted = self._hosted.get(env_id)
        return hosted is not None and hosted.camera is not None and hosted.camera.is_behind

    async def _wait_first(self, env_id: int) -> None:
        """For what comes before a call: other tasks, this env's camera."""
        if self._worked > _YIELD_AFTER:
            self._worked = 0.0
            await anyio.lowlevel.checkpoint()
        hosted = self._hosted.get(env_id)
        if hosted is not None and hosted.camera is not None and hosted.camera.is_behind:
            await anyio.to_thread.run_sync(hosted.camera.catch_up, abandon_on_cancel=True)

    def drop(self, env_id: int) -> None:
        if env_id in self._threads:
            self._leaving = [*(other for other in self._leaving if not other.ended.is_set()), self._threads[env_id]]
        self._let_go(env_id)

    def _let_go(self, env_id: int) -> None:
        hosted, thread = self._hosted.pop(env_id, None), self._threads.pop(env_id, None)
        if thread is not None:
            thread.submit(partial(_close_made_in, thread))  # also what is only now being made there
            thread.end()
        elif hosted is not None and hosted.is_async:
            assert self._tasks is not None  # an env was opened
            self._closing += 1
            self._tasks.start_soon(self._close_dropped, hosted, self._awaited.get(env_id))
        elif hosted is not None:
            _close_now(hosted)

    def _forget(self, env_id: int) -> None:
        self._hosted.pop(env_id, None)
        if env_id in self._threads:
            self._threads.pop(env_id).end()

    async def _close_dropped(self, hosted: EnvRunner, awaited: "_AsyncCall | None") -> None:
        """An async env that was let go where nobody could wait for its end; no call of it is under way then."""
        try:
            with anyio.move_on_after(CLOSE_GRACE, shield=True), ignored(is_async=True):
                if awaited is not None:
                    await awaited.give_up()
                await hosted.close()
        finally:
            self._closing -= 1
            if not self._closing:
                self._all_closed.set()

    async def close(self) -> None:
        """Close all envs at once. None of them is waited for longer than it may take to close one."""
        for env_id in self._threads.keys() - self._hosted.keys():  # it is only now being made
            self.drop(env_id)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_wait_for, self._leaving)
            for env_id in [*self._hosted]:
                tasks.start_soon(self._close, env_id)
        while self._closing:
            self._all_closed = anyio.Event()
            await self._all_closed.wait()

    async def _close(self, env_id: int) -> None:
        hosted = self._hosted.get(env_id)
        if hosted is None:  # its user was quicker
            return
        with anyio.move_on_after(CLOSE_GRACE), suppress(HostLost):
            awaited = self._awaited.get(env_id)
            if awaited is not None:
                await awaited.give_up()
            trouble = (await self.call(env_id, _CLOSE, None)).failure
            if trouble is not None:
                log.warning("env_close_failed", env=hosted.opening.spec.name, error=trouble.text)

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

    async def _open(self, env_id: int, opening: OpenRequest) -> None:
        if opening.spec.runs != "io" or is_async(opening.spec):
            try:
                self._hosted[env_id] = EnvRunner(opening)
            except StopIteration as error:  # which no coroutine can raise
                raise EnvRaised(error) from error
            return
        thread = self._threads[env_id] = EnvThread()
        with TimeLimit(self._limits.of(Op.OPEN)) as watch:
            self._hosted[env_id] = await _in_thread(thread, partial(_make_in, thread, opening))
        if watch.is_over:
            self._leave_hanging(env_id)

    async def _end_video(self, env_id: int, hosted: EnvRunner) -> Any:
        """It has no limit of its own and costs no env; behind a slow call it comes to its end even if nobody waits."""
        ending = hosted.perform(_END_VIDEO, None)
        if env_id not in self._threads:
            return run_now(ending)
        return await asyncio.shield(asyncio.wrap_future(_submit(self._threads[env_id], lambda: run_now(ending))))

    async def _wait(self, env_id: int, hosted: EnvRunner, op: Op, payload: Any) -> Any:
        loop = asyncio.get_running_loop()
        result = None

        def allow_from_thread() -> None:
            loop.call_soon_threadsafe(watch.start)

        with TimeLimit(self._limits.of(op)) as watch:
            awaited = self._awaited[env_id] = _AsyncCall(watch.scope)
            try:
                if hosted.is_async:
                    result = await _attributed(hosted.perform(op, payload, watch.start))
                elif op is _STEP:
                    result = await _in_thread(self._threads[env_id], partial(hosted.step_now, payload))
                else:
                    result = await _in_thread(
                        self._threads[env_id], lambda: run_now(hosted.perform(op, payload, allow_from_thread))
                    )
            finally:
                del self._awaited[env_id]
                awaited.ended.set()
                if op is _CLOSE:  # also if nobody waits for it any longer: no env is closed twice
                    self._forget(env_id)
        if awaited.is_given_up:
            raise HostLost("closed")
        if watch.is_over:
            self._leave_hanging(env_id)
        return result

    def _leave_hanging(self, env_id: int) -> NoReturn:
        """It took too long, so nobody waits for its end either."""
        self._let_go(env_id)
        raise HostLost("timeout", suspects=1)


class _AsyncCall:
    """A call of an env that waits."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.ended = anyio.Event()
        self.is_given_up = False
        self._scope = scope

    async def give_up(self) -> None:
        """Cancel it, and wait until it is over."""
        self.is_given_up = True
        self._scope.cancel()
        await self.ended.wait()


def _attribute(error: BaseException, op: Op, *, is_async: bool) -> tuple[Undecodable | None, Failure | None]:
    """What a worker's reply would hold: value and failure. Raises what the env did not raise."""
    if type(error) is UnloadableError:
        return Undecodable(str(error)), None
    if type(error) is EnvRaised:
        error = error.error
    elif not is_own(error, is_async=is_async):
        raise error
    return None, failure(error, op)


async def _attributed(steps: Coroutine[Any, Any, T]) -> T:
    """What an env raises by itself must not look like what happens to its caller."""
    try:
        return await steps
    except BaseException as error:
        if not is_own(error, is_async=True):
            raise
        if type(error) is asyncio.CancelledError:
            error.add_note("It was raised, though nobody cancelled the call.")
        raise EnvRaised(error) from error


def _make_in(thread: EnvThread, opening: OpenRequest) -> EnvRunner:
    thread.hosted = EnvRunner(opening)
    return thread.hosted


def _close_made_in(thread: EnvThread) -> None:
    if thread.hosted is not None:
        _close_now(thread.hosted)


async def _wait_for(threads: Sequence[EnvThread]) -> None:
    """Without a thread: from Python 3.12 on, none can be started once the program is ending."""
    with anyio.move_on_after(CLOSE_GRACE):
        while not all(thread.ended.is_set() for thread in threads):  # noqa: ASYNC110 (set by other threads)
            await anyio.sleep(_LEAVING_CHECK)


def _close_now(hosted: EnvRunner) -> None:
    with ignored():
        run_now(hosted.close())


def _split(op: Op, result: Any) -> tuple[Any, Any]:
    if op in OUTCOMES and result is not None:
        return detach(result[:4]), detach(result[4])
    return detach(result), None


async def _in_thread(thread: EnvThread, work: Callable[[], T]) -> T:
    return await asyncio.wrap_future(_submit(thread, work))


def _submit(thread: EnvThread, work: Callable[[], T]) -> "Future[T]":
    outcome: Future[T] = Future()

    def run() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(work())
            except BaseException as error:  # of any kind; in the loop's thread some kinds mean something else
                outcome.set_exception(EnvRaised(error))

    thread.submit(run)
    return outcome
