"""One worker rank on a cluster: its actor is created, runs one worker after another, and is replaced when it is lost.

The actor's `run` takes as long as a worker lives, so that Ray reports the end of either. A node that stands still, or
cannot be reached, ends nothing: then the actor's reports stay out, and the pool gives both up. Their connections are
closed first, so that nothing of them is heard any more.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from asyncrollout import __version__
from asyncrollout.concurrency import task_group
from asyncrollout.errors import PoolError
from asyncrollout.logs import get_logger
from asyncrollout.pool.hosts import CLOSE_GRACE, DurationWindow, PoolLimits
from asyncrollout.pool.process.supervisor import cause_of_death
from asyncrollout.pool.process.watchdog import KillReason, WatchContext, Watchdog, crash
from asyncrollout.pool.wire import network
from asyncrollout.pool.wire.main_module import MainModule
from asyncrollout.pool.wire.shared_arrays import ArrayReader
from asyncrollout.pool.wire.status_page import CLOSING
from asyncrollout.ray import orders
from asyncrollout.ray.actor_host import ActorHost, ActorLink, ReportedPage
from asyncrollout.ray.call_transport import FrameCalls
from asyncrollout.ray.listener import WorkerListener

log = get_logger(__name__)

SILENCE_LIMIT = 5.0
"""Seconds without a report after which an actor is given up; and for which a worker may be stopped."""

_START_LIMIT = 60.0  # seconds from the moment when there is room for it
_START_TRIES = 3
_CALL_LIMIT = 20.0  # seconds that the cluster may take to answer
_SWEEP_AFTER = 2.0  # seconds in which the end of a worker whose connection is closed is reported
_TOKEN = b"worker"  # nothing secret: who connects has proved more, and over a socket file nobody else can


class ClusterCalls(NamedTuple):
    """What a rank asks of Ray; each call may block."""

    create: Callable[[], Any]
    """A new actor."""
    kill: Callable[[Any], None]
    lacks_room: Callable[[], str]
    """What the cluster lacks to hold all ranks; empty if nothing."""


class LifeSettings(NamedTuple):
    """What all workers of a pool have in common."""

    root: Path
    probe: bytes
    limits: PoolLimits
    send_snapshots: bool
    log_dir: str | None
    working_directory: str | None
    wait: float


class _Life:
    """One worker, from its order to its end."""

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.page = ReportedPage()
        self.link: ActorLink | None = None
        self.host: ActorHost | None = None
        self.reason: KillReason | None = None
        self.served = anyio.Event()
        self.over = anyio.CancelScope()


class ActorRank:
    """Keeps one rank alive until it is stopped. While the cluster has no room for it, that is its `failure`."""

    def __init__(
        self,
        rank: int,
        calls: ClusterCalls,
        listener: WorkerListener | None,
        settings: LifeSettings,
        *,
        environ: Mapping[str, str],
        watch: WatchContext,
        on_change: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.rank = rank
        self.restarts = 0
        self.clock = DurationWindow()
        self.failure: PoolError | None = None
        self.ended = False
        self.stopping = False
        self._calls = calls
        self._listener = listener
        self._settings = settings
        self._environ = dict(environ)
        self._watch = watch
        self._on_change = on_change
        self._on_idle = on_idle
        self._lives = 0
        self._failed_starts = 0
        self._is_refused = False  # its worker, which uses too much memory even without envs
        self._actor: Any = None
        self._life: _Life | None = None
        self._serving: ActorHost | None = None
        self._watchdog = Watchdog(settings.limits, watch, self.clock)
        self._progress = 0.0  # when a worker that was asked to end was last seen to do so
        self._seen_closing: list[tuple[int, float]] = []
        self._until_stopped = anyio.CancelScope(shield=True)  # ends by stop() alone, so that envs are closed in order

    @property
    def host(self) -> ActorHost | None:
        return self._serving

    @property
    def node(self) -> str | None:
        return None if self._serving is None else self._serving.node

    async def run(self) -> None:
        """Give up after some starts in a row that failed; the very first must succeed."""
        try:
            with self._until_stopped:
                while not self.stopping:
                    error = await self._live()
                    self._failed_starts = self._failed_starts + 1 if error else 0
                    if self._is_refused:
                        break
                    if error and (self._lives == 1 or self._failed_starts >= _START_TRIES):
                        self.failure = error
                        break
                    self.restarts += not self.stopping
        finally:
            with anyio.CancelScope(shield=True):
                await self._give_up_actor()
            self.ended = True
            self._on_change()

    def stop(self) -> None:
        self.stopping = True
        self._progress = time.monotonic()
        if self._serving is not None:
            self._serving.stop()
        else:  # nothing that could be closed in order
            self._until_stopped.cancel()

    def is_overdue(self, grace: float) -> bool:
        """Whether a worker that was asked to end has been at one thing, or at nothing, for too long."""
        now = time.monotonic()
        busy = [] if self._serving is None else self._serving.page.running()
        if busy != self._seen_closing:
            self._seen_closing, self._progress = busy, now
        limit = CLOSE_GRACE if any(call == CLOSING for call, _ in busy) else grace
        return self._watch.time.since(self._progress, now) > limit

    def stop_now(self) -> None:
        self._until_stopped.cancel()

    async def _live(self) -> PoolError | None:
        """One worker from its start to its end; an error if it never got as far as to serve."""
        self._lives += 1
        error: BaseException | None = None
        end: orders.WorkerEnd | None = None
        life = self._life = _Life(_TOKEN)
        address = None if self._listener is None else self._listener.expect(partial(self._admit, life))
        try:
            with life.over:
                end = await self._run_worker(life, address)
        except Exception as broken:  # noqa: BLE001 (Ray raises all sorts)
            error = broken
        finally:
            if self._listener is not None and address is not None:
                self._listener.forget(address)
            served = self._on_exit(life, end, error)
        if error is not None or life.over.cancelled_caught:
            with anyio.CancelScope(shield=True):
                await self._give_up_actor()
        if served or self.stopping:
            return None
        return _start_error(self.rank, end, error)

    async def _run_worker(self, life: _Life, address: network.NetworkAddress | None) -> orders.WorkerEnd:
        if self._actor is None:
            with anyio.fail_after(_CALL_LIMIT):
                self._actor = await anyio.to_thread.run_sync(self._calls.create, abandon_on_cancel=True)
        order = self._order(life, address)
        async with task_group() as tasks:
            tasks.start_soon(self._watch_start, life)
            ended: Awaitable[orders.WorkerEnd] = self._actor.run.remote(order)
            if address is None:
                link, host = self._make_link(life), self._make_host(life)
                tasks.start_soon(FrameCalls(self._actor, host, link).run)
            end = await ended
            tasks.cancel_scope.cancel()
        return end

    def _order(self, life: _Life, address: network.NetworkAddress | None) -> orders.WorkerOrder:
        settings = self._settings
        return orders.WorkerOrder(
            rank=self.rank,
            main=MainModule.of_this_process(),
            version=__version__,
            environ=self._environ,
            send_snapshots=settings.send_snapshots,
            memory_limit=settings.limits.memory,
            log_dir=settings.log_dir,
            shared=(str(settings.root), settings.probe),
            folder=self._folder,
            working_directory=settings.working_directory,
            token=life.token,
            network=address,
            frozen_limit=SILENCE_LIMIT,
        )

    @property
    def _folder(self) -> str:
        return f"{self.rank}.{self._lives}"

    async def _watch_start(self, life: _Life) -> None:
        """While the cluster has no room, the rank waits, and whoever needs just this one gets an error."""
        with anyio.move_on_after(self._settings.wait):
            await life.served.wait()
        lack = ""
        if not life.served.is_set():
            lack = await self._lack_of_room()
        if lack:
            self.failure = PoolError.at(f"worker {self.rank} cannot start: {lack}", worker=self.rank)
            log.warning("worker_waits_for_room", worker=self.rank, cause=lack)
            self._on_change()
            await life.served.wait()
        with anyio.move_on_after(_START_LIMIT):
            await life.served.wait()
        if not life.served.is_set():
            raise TimeoutError

    async def _lack_of_room(self) -> str:
        lack: str | None = None
        with anyio.move_on_after(_CALL_LIMIT):
            lack = await anyio.to_thread.run_sync(self._calls.lacks_room, abandon_on_cancel=True)
        if lack is not None:
            return lack
        return f"the Ray cluster has not answered for {_CALL_LIMIT:g} s; is its head node gone?"

    def _admit(self, life: _Life, role: str) -> asyncio.Protocol | None:
        """What a connection that proved to be of this life continues as; each may come once."""
        if life is not self._life:
            return None
        if role == network.CONTROL and life.link is None:
            return self._make_link(life)
        if role == network.STEPS and life.link is not None and life.host is None:
            return self._make_host(life)
        return None

    def _make_link(self, life: _Life) -> ActorLink:
        life.link = ActorLink(life.page, partial(self._on_said, life))
        return life.link

    def _make_host(self, life: _Life) -> ActorHost:
        life.host = ActorHost(
            self.rank,
            token=life.token,
            arrays=ArrayReader(self._settings.root / self._folder),
            clock=self.clock,
            on_hello=partial(self._on_hello, life),
            on_idle=self._on_idle,
            starting=self._watch.starting,
            on_lost=partial(self._on_disconnect, life),
            reported=life.page,
            node="",
        )
        return life.host

    def _on_said(self, life: _Life, message: orders.Said) -> None:
        if isinstance(message, orders.NotBegun) and life.host is not None:
            life.host.give_up_withdrawn(message.calls)

    def _on_hello(self, life: _Life, host: Any) -> None:
        if life is not self._life or life.link is None:
            host.refuse()
            return
        host.node = life.link.node or ""
        limit = self._settings.limits.memory
        if limit is not None and host.bare_memory > limit:
            uses = f"a worker without envs uses, {host.bare_memory} bytes"
            self.failure, self._is_refused = PoolError(f"memory_limit={limit} is less than {uses}"), True
            life.over.cancel()
            return
        self._serving, self.failure = host, None
        self._watchdog = Watchdog(self._settings.limits, self._watch, self.clock)
        life.served.set()
        if self.stopping:
            host.stop()
        self._on_change()

    def _on_disconnect(self, life: _Life, _host: Any) -> None:
        """The worker is about to end; one that lives on without its connection is of no use."""
        if life is self._life and life.link is not None:
            kill = partial(life.link.send, orders.KillWorker(given_up=True))
            asyncio.get_running_loop().call_later(_SWEEP_AFTER, kill)

    def _on_exit(self, life: _Life, end: orders.WorkerEnd | None, error: BaseException | None) -> bool:
        """The worker is gone, or given up: fail the calls in flight with what it died of."""
        host = self._serving
        self._serving = self._life = None
        if life.link is not None:
            life.link.close()
        if life.host is not None and host is None:
            life.host.refuse()
        if host is None:
            return False
        reason = KillReason("closed", set()) if self.stopping else life.reason or _ended(host, end, error)
        if end is not None and not reason.cause:
            reason = reason._replace(cause=cause_of_death(end.code))
        if not self.stopping:
            log.warning(
                "worker_died",
                worker=self.rank,
                node=host.node,
                reason=reason.kind,
                cause=reason.cause,
                calls=len(host.pending),
            )
        self._watch.idle_kills += reason.from_outside and not reason.blamed
        host.end(*reason.losses("" if end is None else end.log, self._watch.idle_kills))
        self._on_change()
        return True

    def watch(self, now: float) -> None:
        """Have a worker killed whose call or memory is past its limit; give up an actor that is silent."""
        host, life = self._serving, self._life
        if host is None or life is None or life.link is None:
            return
        if self._watch.time.since(life.link.heard, now) > SILENCE_LIMIT:
            cause = f"nothing was heard of its actor on node {host.node} for {SILENCE_LIMIT:g} s"
            life.reason = life.reason or KillReason("crash", _at_work(host), cause, from_outside=True)
            life.over.cancel()
        elif life.reason is None:
            life.reason = self._watchdog.look(host, life.page, now)
            if life.reason is not None:
                life.link.send(orders.KillWorker(given_up=False))

    async def _give_up_actor(self) -> None:
        actor, self._actor = self._actor, None
        if actor is None:
            return
        with anyio.move_on_after(_CALL_LIMIT):
            try:
                await anyio.to_thread.run_sync(self._calls.kill, actor, abandon_on_cancel=True)
            except Exception as error:  # noqa: BLE001 (Ray raises all sorts; nothing more can be done)
                log.warning("actor_not_killed", worker=self.rank, error=f"{type(error).__name__}: {error}")


def _ended(host: ActorHost, end: orders.WorkerEnd | None, error: BaseException | None) -> KillReason:
    """What a worker died of that nobody here has killed."""
    if end is None:
        return KillReason("crash", _at_work(host), f"its actor on node {host.node} died: {_first_line(error)}", True)
    if end.frozen:
        cause = f"it was stopped, as by SIGSTOP, for longer than {end.frozen:g} s"
        return KillReason("crash", set(end.running), cause, from_outside=True)
    return crash(set(end.running), end.code, was_given_up=end.was_given_up)


def _at_work(host: ActorHost) -> set[int]:
    """The calls that a worker was at, as far as it is known without its page."""
    reported = {call for call, _ in host.page.running() if call in host.pending}
    return reported or set(list(host.pending)[:1])


def _first_line(error: BaseException | None) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _start_error(rank: int, end: orders.WorkerEnd | None, error: BaseException | None) -> PoolError:
    text = str(error)
    notes = text if error is not None else "" if end is None else end.log
    last = next((line.strip() for line in reversed(notes.splitlines()) if line.strip()), "")
    if isinstance(error, PoolError):
        return error
    if isinstance(error, TimeoutError):
        why, notes = f"it did not answer within {_START_LIMIT:g} s", ""
    elif "No module named 'asyncrollout" in text:
        why = (
            "asyncrollout is not installed on its node: install the same version there, or name it in "
            "RayOptions(runtime_env={'pip': [...]})"
        )
    elif error is not None:
        why = f"{type(error).__name__}: {last}"
    else:
        why = f"its process ended before it answered. The last line of its output: {last}"
    return PoolError.at(f"worker {rank} did not start: {why}", worker=rank, notes=notes)
