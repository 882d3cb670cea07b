"""Many environments that are reset and stepped together, in workers or on the loop; what fails is data."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskStatus

from asyncrollout.concurrency import Background, task_group
from asyncrollout.dropin.ragen.settings import EnvPlan
from asyncrollout.errors import ClosedError, PoolError, RolloutError, UsageError
from asyncrollout.pool.batch_calls import Result, call_all
from asyncrollout.pool.env_calls import PendingCall
from asyncrollout.pool.handle import EnvHandle, calls_of
from asyncrollout.pool.pool import EnvPool
from asyncrollout.types import PoolStats

logger = logging.getLogger(__name__)


class EnvBatch:
    """An async context manager. Envs are opened at the first reset, and keep their places.

    With `parallel`, which can be changed at any time, envs that are not light live in `workers` processes, else all of
    them on the event loop, as with no workers at all. Where no worker can be started, or an env cannot be sent to one,
    `falls_back` runs it on the loop; else that is an error.
    """

    def __init__(
        self,
        plans: Sequence[EnvPlan],
        host: str,
        *,
        workers: int | None,
        parallel: bool,
        falls_back: bool,
        step_timeout: float = 60.0,
        reset_timeout: float = 120.0,
    ) -> None:
        self.parallel = parallel
        self._specs = [plan.spec(host) for plan in plans]
        self._handles: list[EnvHandle | None] = [None] * len(plans)
        self._lost: dict[int, RolloutError] = {}  # envs that did not survive a move
        self._workers = workers
        self._falls_back = falls_back
        self._timeouts: dict[str, Any] = {"step_timeout": step_timeout, "reset_timeout": reset_timeout}
        self._loop_pool = EnvPool(backend="inline")  # where no limit of time could be kept
        self._pool: EnvPool | None = None
        self._pools = Background()
        self._is_open = False
        self._is_alone = workers == 0  # else: no workers could be started
        if self._is_alone and parallel:
            logger.warning("max_workers is 0: environments run one after the other, without worker processes")
        self._settled_as: tuple[bool, bool] | None = None  # by these two, envs are where they should be

    async def __aenter__(self) -> Self:
        await self._loop_pool.__aenter__()
        await self._pools.open()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        try:
            await self._pools.close(error)
        finally:
            await self._loop_pool.__aexit__(kind, error, trace)

    async def reset(self, seeds: Sequence[int], members: Sequence[int]) -> list[Result]:
        """Start an episode in each env; an env that failed is made anew, one that cannot be made is raised."""
        await self._settle()
        self._lost.clear()
        firsts = [index for index, member in enumerate(members) if member == 0]
        for indices in (firsts, range(len(members))):  # the others go where the first of their group is
            async with task_group() as tasks:
                for index in indices:
                    if self._handles[index] is None:
                        tasks.start_soon(self._open, index, self._handles[index - members[index]])
        handles = [handle for handle in self._handles if handle is not None]
        each = zip(handles, seeds, members, strict=True)
        return await call_all(
            partial(calls_of(handle).begin_reset, seed=seed, member=member) for handle, seed, member in each
        )

    async def step(
        self, actions: Mapping[int, Any], on_result: Callable[[int, Result], None] | None = None
    ) -> list[Result]:
        """Step some envs; results are in the order of the actions, and `on_result` receives each when it comes."""
        await self._settle()
        return await call_all((partial(self._begin_step, *one) for one in actions.items()), on_result)

    async def render(self, indices: Iterable[int]) -> list[Any]:
        """Pictures, one after the other."""
        return [await self._handle(index).render() for index in indices]

    def stats(self) -> PoolStats:
        """Of the workers, if there are any, else of the loop."""
        return (self._pool or self._loop_pool).stats()

    def _begin_step(self, index: int, action: Any) -> PendingCall:
        return calls_of(self._handle(index)).begin_step(action)

    def _handle(self, index: int) -> EnvHandle:
        handle = self._handles[index]
        if handle is None:
            raise self._lost.get(index) or UsageError(f"env {index} was not reset: call reset() first")
        return handle

    def _wants_worker(self, index: int) -> bool:
        return self.parallel and not self._is_alone and self._specs[index].runs != "light"

    async def _settle(self) -> None:
        """Start the workers if any are wanted by now, and move envs to where they should be."""
        if not self._is_open:
            raise ClosedError("these environments are closed: make others")
        if self._settled_as == (self.parallel, self._is_alone):
            return
        indices = range(len(self._specs))
        if self._pool is None and any(map(self._wants_worker, indices)):
            await self._start_workers()
        for index in indices:
            handle = self._handles[index]
            if handle is not None and calls_of(handle).binding.on_loop == self._wants_worker(index):
                await self._move(index, handle)
        self._settled_as = self.parallel, self._is_alone

    async def _start_workers(self) -> None:
        try:
            self._pool = await self._pools.start(self._hold_workers)
        except PoolError as error:
            if not self._falls_back:
                raise
            logger.warning("Failed to start worker processes: %s. Falling back to sequential processing", error)
            self._is_alone = True

    async def _hold_workers(self, *, task_status: TaskStatus[EnvPool]) -> None:
        async with EnvPool(self._workers, **self._timeouts) as pool:
            task_status.started(pool)
            await anyio.sleep_forever()

    async def _open(self, index: int, beside: EnvHandle | None) -> None:
        spec, pool = self._specs[index], self._home(index)
        try:
            opening = pool.open(spec, beside=beside)
        except UsageError as error:  # it cannot be sent
            if not self._falls_back or pool is self._loop_pool:
                raise
            logger.warning("%s. It runs on the event loop instead", error)
            spec = self._specs[index] = replace(spec, runs="light")
            opening = self._loop_pool.open(spec)
        self._handles[index] = await opening

    def _home(self, index: int) -> EnvPool:
        return self._pool if self._pool is not None and self._wants_worker(index) else self._loop_pool

    async def _move(self, index: int, handle: EnvHandle) -> None:
        """Continue an env elsewhere, in the same state; one without an episode is simply opened there later."""
        self._handles[index] = None
        try:
            if handle.has_episode:
                self._handles[index] = await handle.fork(self._home(index))
        except RolloutError as error:
            self._lost[index] = error
        finally:
            await handle.close()
