"""All shards of a run: started and replaced, added and removed, and held back together while weights change."""

import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

import anyio
import msgspec

from asyncrollout.concurrency import Background, task_group
from asyncrollout.errors import ClosedError, PoolError, RolloutError, UsageError
from asyncrollout.journal.events import ShardPlace
from asyncrollout.journal.run import NullJournal
from asyncrollout.logs import get_logger
from asyncrollout.policies.control import PolicyControl
from asyncrollout.rollouts.shards.least_loaded import LeastLoaded
from asyncrollout.rollouts.shards.shard_channel import ShardChannel
from asyncrollout.rollouts.shards.shard_link import ShardLink
from asyncrollout.rollouts.shards.shard_messages import PausePolicies, ResumePolicies
from asyncrollout.rollouts.shards.shard_setup import ShardSetup, pickled_setup
from asyncrollout.types import PauseMode, PoolStats

log = get_logger(__name__)

_READY_SECONDS = 120.0  # to import what the user's code needs, and to open pool and policies
_HEAR_SECONDS = 30.0  # until a pause is heard: no event loop is blocked for longer
_PAUSE_SECONDS = 60.0  # until calls in flight are aborted, or left alone
_END_SECONDS = 10.0
_MOST_FAILED_STARTS = 3  # in a row, of one shard
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds between starts
_SHORT_LIFE = 5.0  # seconds


class ShardProcess(Protocol):
    """A process that runs a `ShardServer`, and the channel to it."""

    @property
    def node(self) -> str: ...

    @property
    def channel(self) -> ShardChannel: ...

    async def kill(self) -> None:
        """End it, if it has not ended, and free what it held; bounded."""


class ShardLauncher(Protocol):
    """Starts processes of shards where there is room."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def start(self, name: str, on_silent: Callable[[str], None]) -> ShardProcess:
        """A process that is connected; `PoolError` with the reason if there can be none.

        `on_silent` is called with the reason if it does not answer any more, although nothing has closed.
        """


class ShardBackend(Protocol):
    """What `Rollouts(shards=)` takes: how many shards, and how they are started."""

    @property
    def count(self) -> int: ...

    @property
    def workers(self) -> int | None:
        """How many worker processes a shard's pool has, unless `Rollouts` says so."""

    def launcher(self) -> ShardLauncher: ...


class ShardStats(msgspec.Struct, frozen=True):
    """One shard: where it runs, what it plays, how many groups it has played, and how often it was replaced."""

    name: str
    node: str
    state: str
    groups: int
    rollouts: int
    played: int
    restarts: int


class _KeptShard:
    """One of the shards, whatever process is it at the moment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.link: ShardLink | None = None
        self.played = 0  # by earlier processes
        self.starts = 0
        self.failure: Exception | None = None
        """Why it is not started any more."""
        self.is_removed = self.has_ended = False
        self.scope = anyio.CancelScope()


class ShardSet:
    """Keeps so many shards alive. `place` gives the least loaded one; `pause` and `resume` reach all of them."""

    def __init__(
        self, backend: ShardBackend, setup: ShardSetup, control: PolicyControl, journal: Callable[[], NullJournal]
    ) -> None:
        self._backend = backend
        self._setup = setup
        self._control = control
        self._journal = journal
        self._has_new_weights = False  # since the policy was made, as far as is known
        self._paused: PauseMode | None = None
        self._pauses = 0
        self._kept: list[_KeptShard] = []
        self._links: dict[ShardLink, None] = {}  # that have got their setup
        self._ready: LeastLoaded[ShardLink] = LeastLoaded()
        self._names = 0
        self._changed = anyio.Event()
        self._background = Background()
        self._parts = AsyncExitStack()
        self._launcher: ShardLauncher | None = None
        self._is_open = False

    async def open(self) -> None:
        """Start all shards; raise what the first one fails of."""
        self._has_new_weights = self._journal().past.weights is not None
        async with AsyncExitStack() as parts:
            self._launcher = await parts.enter_async_context(self._backend.launcher())
            await self._background.open()
            parts.push_async_exit(self._close)
            self._is_open = True
            await self.scale(self._backend.count)
            self._parts = parts.pop_all()

    async def close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all shards; nothing plays on them any more."""
        await self._parts.__aexit__(kind, error, trace)

    async def _close(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._is_open = False
        self._notify()
        try:
            with anyio.move_on_after(_END_SECONDS, shield=True):
                for kept in [*self._kept]:
                    self._remove(kept)
                while not all(kept.has_ended for kept in self._kept):
                    await self._changed.wait()
        finally:
            await self._background.close(error)

    async def scale(self, count: int, *, drain: bool = True) -> None:
        """Have so many shards; return once those that are added are ready, and those that are removed are gone.

        With `drain`, a shard that is removed plays its groups to their end; else they continue elsewhere.
        """
        self._check_open()
        present = [kept for kept in self._kept if not kept.is_removed and kept.failure is None]
        removed = sorted(present, key=_rollouts)[: max(len(present) - count, 0)]
        added = [self._add() for _ in range(count - len(present))]
        for kept in removed:
            kept.is_removed = True
            if kept.link is not None and drain and kept.link.plays:
                kept.link.is_draining = True
                self._ready.discard(kept.link)
            else:
                self._remove(kept)
        while True:
            for kept in added:
                if kept.failure is not None:
                    self._kept.remove(kept)
                    raise kept.failure
            self._check_open()
            if all(kept.has_ended for kept in removed) and all(map(_is_ready, added)):
                return
            await self._changed.wait()

    async def place(self) -> ShardLink:
        """The shard with the fewest rollouts in flight; waits while none is ready."""
        while (link := self._ready.first()) is None:
            self._check_open()
            failures = [kept.failure for kept in self._kept if kept.failure is not None]
            if len(failures) == len(self._kept):
                raise failures[-1] if failures else PoolError("there are no shards: call rollouts.scale(shards=n)")
            await self._changed.wait()
        return link

    def note_load(self, link: ShardLink, change: int) -> None:
        """Rollouts begin or end there."""
        self._ready.change(link, change)
        if link.is_draining and not link.plays:
            link.finish()

    # Weights.

    async def pause(self, mode: PauseMode) -> None:
        """Hold the policies of all shards back; a shard that does not hear of it in time is given up.

        One that is not ready yet plays nothing before it has read this order.
        """
        self._paused = mode
        self._pauses += 1
        for link in self._links:
            link.send(PausePolicies(self._pauses, mode))
        async with task_group() as pausing:
            for link in [link for link in self._links if link.is_ready]:
                pausing.start_soon(self._await_pause, link, self._pauses, mode)

    def resume(self, version: int | None) -> None:
        """Let calls through again; a shard that is not ready yet does so once it is."""
        self._paused = None
        self._has_new_weights |= version is not None
        for link in self._links:
            link.send(ResumePolicies(version))

    async def _await_pause(self, link: ShardLink, number: int, mode: PauseMode) -> None:
        with anyio.move_on_after(_HEAR_SECONDS):
            await link.until(lambda: link.heard_pause >= number)
        if link.heard_pause >= number:
            with anyio.move_on_after(math.inf if mode == "wait" else _PAUSE_SECONDS):  # replies may take their time
                await link.until(lambda: link.paused >= number)
        if link.paused < number and link.lost is None:
            self.fence(link, "it did not pause for new weights in time")

    def fence(self, link: ShardLink, reason: str) -> None:
        """Give a shard up that may still be running: nothing that it says counts any more, and it is killed."""
        if link.lost is None:
            log.warning("shard_fenced", shard=link.place.shard, node=link.place.node, reason=reason)
        link.end(reason)

    # Life.

    def stats(self) -> tuple[ShardStats, ...]:
        return tuple(map(_stats_of, self._kept))

    def pool_stats(self, own: PoolStats) -> PoolStats:
        """The counts of all shards' pools, in place of those of a pool that nobody uses."""
        pools = [link.pool for link in self._links]
        return msgspec.structs.replace(
            own,
            envs=sum(pool.envs for pool in pools),
            queued=sum(pool.queued for pool in pools),
            restarts=sum(pool.restarts for pool in pools),
        )

    def _add(self) -> _KeptShard:
        kept = _KeptShard(str(self._names))
        self._names += 1
        self._kept.append(kept)
        self._background.start_soon(self._keep, kept)
        return kept

    def _remove(self, kept: _KeptShard) -> None:
        """End it now."""
        kept.is_removed = True
        if kept.link is not None and kept.link.lost is None and kept.link.is_ready:
            self._ready.discard(kept.link)
            for group in [*kept.link.plays.values()]:
                group.lose("its shard was removed", is_blamed=False)
            kept.link.finish()
        else:
            kept.scope.cancel()

    async def _keep(self, kept: _KeptShard) -> None:
        """Keep one shard alive until it is removed; the first start must succeed, and later ones now and then."""
        failed = 0
        try:
            with kept.scope:
                while not kept.is_removed:
                    began = anyio.current_time()
                    try:
                        await self._live(kept)
                        failed = 0
                        if not kept.is_removed and anyio.current_time() - began < _SHORT_LIFE:
                            await anyio.sleep(_FIRST_WAIT)
                    except RolloutError as error:
                        failed += 1
                        if kept.starts == 1 or failed >= _MOST_FAILED_STARTS or isinstance(error, UsageError):
                            kept.failure = error
                            return
                        log.warning("shard_not_started", shard=kept.name, error=f"{type(error).__name__}: {error}")
                        await anyio.sleep(min(_FIRST_WAIT * 2.0**failed, _LONGEST_WAIT))
        finally:
            kept.has_ended = True
            if kept.failure is None:
                self._kept.remove(kept)
            self._notify()

    async def _live(self, kept: _KeptShard) -> None:
        """One process from its start to its end; an error if it never was ready."""
        assert self._launcher is not None
        kept.starts += 1
        link: ShardLink | None = None

        def on_silent(reason: str) -> None:
            if link is not None:
                self.fence(link, reason)

        process = await self._launcher.start(kept.name, on_silent)
        try:
            link = kept.link = ShardLink(
                ShardPlace(kept.name, process.node),
                process.channel,
                on_read=self._hold_reading,
                on_end=self._ready.discard,  # at once: the groups that it had are placed next
            )
            link.open(pickled_setup(self._setup_now(), link.sent))
            self._links[link] = None
            with anyio.move_on_after(_READY_SECONDS):
                await link.until(lambda ready=link: ready.is_ready)  # type: ignore[misc]
            if link.failure is not None:
                raise link.failure
            if not link.is_ready:
                raise PoolError(f"shard {kept.name} on {process.node} was not ready within {_READY_SECONDS:g} s")
            if link.lost is None and not kept.is_removed:
                self._ready.add(link)
                self._notify()
            elif link.lost is None:
                link.finish()
            await link.until(lambda: link is not None and link.is_ending)
            with anyio.move_on_after(_END_SECONDS):
                await link.until(lambda: False)
            if not kept.is_removed:
                log.warning("shard_lost", shard=kept.name, node=process.node, reason=link.lost)
        finally:
            if link is not None:
                kept.played += link.played
                self._links.pop(link, None)
                self._ready.discard(link)
                link.end("it was ended")
                kept.link = None
            with anyio.CancelScope(shield=True):
                await process.kill()

    def _setup_now(self) -> ShardSetup:
        return replace(
            self._setup,
            version=self._control.version,
            has_new_weights=self._has_new_weights,
            paused=self._paused,
        )

    def _hold_reading(self, link: ShardLink) -> None:
        if self._journal().is_full:
            link.hold(is_held=True)
            self._background.start_soon(self._read_on, link)

    async def _read_on(self, link: ShardLink) -> None:
        """Once the disk has caught up; what it failed of is raised to those who play."""
        try:
            await self._journal().room()
        except RolloutError:
            pass
        finally:
            link.hold(is_held=False)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError("these Rollouts were closed")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _rollouts(kept: _KeptShard) -> int:
    return 0 if kept.link is None else kept.link.rollouts


def _is_ready(kept: _KeptShard) -> bool:
    return kept.has_ended or (kept.link is not None and kept.link.is_ready)


def _stats_of(kept: _KeptShard) -> ShardStats:
    link = kept.link
    if link is None or not link.is_ready:
        state = "failed" if kept.failure is not None else "starting"
        return ShardStats(kept.name, "" if link is None else link.place.node, state, 0, 0, kept.played, kept.starts - 1)
    state = "leaving" if kept.is_removed else "ready"
    played = kept.played + link.played
    return ShardStats(kept.name, link.place.node, state, len(link.plays), link.rollouts, played, kept.starts - 1)
