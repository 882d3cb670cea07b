"""A shard: a pool and policies of its own, which play groups as the trainer orders."""

import os
import traceback
from collections import deque
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

from asyncrollout.concurrency import task_group
from asyncrollout.errors import RolloutError
from asyncrollout.logs import get_logger
from asyncrollout.policies.control import PolicyControl, hold_back
from asyncrollout.policies.wrappers import nested
from asyncrollout.pool.pool import EnvPool
from asyncrollout.pool.wire.codec import UnsendableError, from_pickle, to_pickle
from asyncrollout.protocols import policies_of
from asyncrollout.rollouts.episode.group import GroupRunner
from asyncrollout.rollouts.episode.scoring import Scorer
from asyncrollout.rollouts.resume import with_journal
from asyncrollout.rollouts.shards.placed_group import GroupAssignment
from asyncrollout.rollouts.shards.shard_channel import ShardChannel, ShardOutbox
from asyncrollout.rollouts.shards.shard_messages import (
    CancelGroup,
    EndShard,
    GrantSlot,
    GroupEnded,
    PauseHeard,
    PausePolicies,
    PlayGroup,
    PoliciesPaused,
    PoolCounts,
    ResumePolicies,
    ShardFailed,
    ShardOrder,
    ShardReady,
    decode_orders,
)
from asyncrollout.rollouts.shards.shard_reporting import ShardReporter
from asyncrollout.rollouts.shards.shard_setup import ShardSetup
from asyncrollout.types import PauseMode

log = get_logger(__name__)


class ShardServer:
    """Plays groups until it is told to end, or until the trainer is gone."""

    def __init__(self, channel: ShardChannel) -> None:
        self._channel = channel
        self._outbox = ShardOutbox(channel)
        self._frames: deque[bytes] = deque()  # no more than groups in flight ask for
        self._arrived = anyio.Event()
        self._is_closed = False
        self._plays: dict[int, anyio.CancelScope] = {}
        self._counts = PoolCounts(0, 0, 0)
        self._pausing: anyio.CancelScope | None = None
        self._paused = anyio.Event()  # whether no pause is on its way
        self._paused.set()

    async def run(self) -> None:
        """Serve; the first frame is the pickled `ShardSetup`."""
        self._channel.open(self._on_frame, self._on_closed)
        try:
            async with AsyncExitStack() as parts:
                frame = await self._next_frame()
                if frame is None:
                    return
                setup = from_pickle(frame)
                assert isinstance(setup, ShardSetup)
                await self._open(setup, parts)
                self._outbox.put(ShardReady(os.getpid()))
                async with task_group() as tasks:
                    await self._serve(tasks)
                    tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 (the trainer raises it)
            self._outbox.put(ShardFailed(pickled_error(error)))
        finally:
            self._outbox.flush()
            self._channel.close()

    async def _open(self, setup: ShardSetup, parts: AsyncExitStack) -> None:
        agent, self._control = hold_back(setup.agent)
        self._pool = await parts.enter_async_context(EnvPool(setup.workers, setup.backend))
        inside = {id(part): part for policy in policies_of(agent) for part in nested(policy)}
        for policy in inside.values():
            if hasattr(policy, "__aenter__") and not getattr(policy, "is_open", False):
                await parts.enter_async_context(policy)
        if setup.has_new_weights or setup.version != self._control.version:
            await self._control.start_at(setup.version)
        if setup.paused is not None:
            await self._pause(self._control, setup.paused)
        self._reporter = ShardReporter(self._outbox, records=setup.records)
        self._runner = GroupRunner(
            pool=self._pool,
            envs=setup.envs,
            env_kwargs=setup.env_kwargs,
            agent=with_journal(agent, self._reporter, self._reporter.replies),
            size=setup.size,
            seed=setup.seed,
            limits=setup.limits,
            failures=setup.failures,
            scorer=None if setup.score is None else Scorer(setup.score),
            slots=self._reporter,
            observer=self._reporter,
        )

    async def _serve(self, tasks: anyio.abc.TaskGroup) -> None:
        while (frame := await self._next_frame()) is not None:
            for order in decode_orders(frame):
                if isinstance(order, EndShard):
                    return
                await self._follow(order, tasks)

    async def _follow(self, order: ShardOrder, tasks: anyio.abc.TaskGroup) -> None:
        match order:
            case PlayGroup():
                tasks.start_soon(self._play, order)
            case CancelGroup(play=play):
                if play in self._plays:
                    self._plays[play].cancel()
                else:
                    tasks.start_soon(self._cancel_late, play)
            case GrantSlot(play=play, member=member):
                self._reporter.grant(play, member)
            case PausePolicies():
                tasks.start_soon(self._pause_in_turn, order)
                await anyio.lowlevel.checkpoint()  # gates are shut before anything that was ordered later begins
                await anyio.lowlevel.checkpoint()
                self._outbox.put(PauseHeard(order.number))
            case ResumePolicies(version=version):
                await self._resume(version)

    async def _cancel_late(self, play: int) -> None:
        """The order to play it came in the same iteration of the loop."""
        await anyio.lowlevel.checkpoint()
        if play in self._plays:
            self._plays[play].cancel()

    async def _play(self, order: PlayGroup) -> None:
        error = b""
        with anyio.CancelScope() as scope:
            self._plays[order.play] = scope
            try:
                await self._play_group(order)
            except Exception as failure:  # noqa: BLE001 (the trainer raises it)
                error = pickled_error(failure)
        del self._plays[order.play]
        self._report_pool()
        self._outbox.put(GroupEnded(order.play, error))

    async def _play_group(self, order: PlayGroup) -> None:
        assignment = from_pickle(order.assignment)
        assert isinstance(assignment, GroupAssignment)
        self._reporter.begin(order.play, assignment)
        try:
            await self._runner.run(
                assignment.request,
                size=assignment.size,
                env_kwargs=assignment.env_kwargs,
                sampling_base=assignment.sampling_base,
            )
        finally:
            self._reporter.end(assignment)

    async def _pause_in_turn(self, order: PausePolicies) -> None:
        with anyio.CancelScope() as self._pausing:
            await self._pause(self._control, order.mode)
            self._outbox.put(PoliciesPaused(order.number))

    async def _pause(self, control: PolicyControl, mode: PauseMode) -> None:
        self._paused = paused = anyio.Event()
        try:
            if control.can_update:
                await control.pause(mode)
        finally:
            paused.set()

    async def _resume(self, version: int | None) -> None:
        """A pause that is not complete is given up: whoever waited for it has given up, too."""
        if version is None and self._pausing is not None:
            self._pausing.cancel()
        await self._paused.wait()
        if self._control.can_update:
            await self._control.resume(version)

    def _report_pool(self) -> None:
        stats = self._pool.stats()
        counts = PoolCounts(stats.envs, stats.queued, stats.restarts)
        if counts != self._counts:
            self._outbox.put(counts)
            self._counts = counts

    async def _next_frame(self) -> bytes | None:
        """The next one; None once the trainer is gone."""
        while not self._frames:
            if self._is_closed:
                return None
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._frames.popleft()

    def _on_frame(self, frame: bytes | memoryview) -> None:
        self._frames.append(bytes(frame))
        self._arrived.set()

    def _on_closed(self) -> None:
        self._is_closed = True
        self._frames.clear()
        self._arrived.set()


def pickled_error(error: Exception) -> bytes:
    """An exception for the trainer, with its traceback as a note."""
    error.add_note("".join(traceback.format_exception(error)))
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        pickled = to_pickle(error)
        from_pickle(pickled)  # some can be pickled, and not loaded
    except UnsendableError:
        shown: Any = RolloutError(f"{type(error).__name__}: {error}")
        shown.__notes__ = error.__notes__
        return to_pickle(shown)
    return pickled
