"""The pool's end of a worker's socket: calls go out in frames, replies resolve their futures.

A system call and a wake-up of the other process cost more than a light step does. So the calls of one loop iteration
leave together, and a worker sends the replies of quick steps together. A frame is cut after 16, so that one side works
on the first ones while the other prepares the next.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from asyncrollout.pool.hosts import LONG, SOON, Caller, DurationWindow, HostLost
from asyncrollout.pool.process.observed_time import CpuUsage, usage
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.definitions import SentDefinitions
from asyncrollout.pool.wire.messages import NOT_LOADED, CallReply, Op, WorkerHello
from asyncrollout.pool.wire.shared_arrays import ArrayReader
from asyncrollout.pool.wire.status_page import NO_PAGE, WatchedPage
from asyncrollout.pool.worker.guards import resident_bytes

_MOST_CALLS = 16  # calls; the worker plays them while the next ones are prepared
_STEP = Op.STEP  # an enum's attribute is slow to find

_read_hello = msgspec.msgpack.Decoder(WorkerHello).decode


SentCall = tuple["asyncio.Future[CallReply]", Op, Caller | None, float]
"""A call in flight: its future, its op, its env, and the seconds of work that it is expected to take.

A tuple, always unpacked: to make a struct of it costs a fiftieth of a light step.
"""


class WorkerHost(asyncio.Protocol):
    """The host of one worker process's envs. Calls of one loop iteration travel in few frames; each costs a future."""

    def __init__(
        self,
        rank: int,
        *,
        token: bytes,
        arrays: ArrayReader,
        page: WatchedPage,
        clock: DurationWindow,
        on_hello: Callable[["WorkerHost"], None],
        on_idle: Callable[[], None],
        on_lost: Callable[["WorkerHost"], None],
        starting: set[int] | None = None,
    ) -> None:
        self.rank = rank
        self.load = 0.0
        self.envs = 0
        self.pid = 0
        self.bare_memory = 0  # bytes that it uses without envs
        self.pending: dict[int, SentCall] = {}
        self.page: WatchedPage = page
        self.backlog = 0.0  # seconds of work that the calls in `pending` are expected to take
        self.startup = 0.0  # ... other than steps
        self._withdrawn: set[int] = set()  # and not yet skipped by the worker, as far as is known
        self._reason = "moved"  # why calls are skipped
        self._ended: HostLost | None = None
        self._token = token
        self._arrays = arrays
        self._clock = clock
        self._on_hello = on_hello
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._starting: set[int] = set() if starting is None else starting  # ranks with such work, of the whole pool
        self._sent = SentDefinitions()
        self._came_with: dict[int, tuple[list[str], list[str]]] = {}  # names and classes, by the call's id
        self._frames = codec.FrameReader()
        self._decode = codec.Unpacker(arrays.read).decoder(list[CallReply])
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outbox: list[tuple[int, int, int, Any]] = []
        self._last_id = 0

    @property
    def usable(self) -> bool:
        return self._ended is None

    @property
    def is_idle(self) -> bool:
        return not self.pending

    @property
    def is_held_up(self) -> bool:
        call_id, start = self.page.main_call()
        return call_id in self.pending and time.monotonic() - start > LONG

    def usage(self) -> CpuUsage:
        return usage(self.pid)

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    def wait(self) -> float:
        queued = self.backlog
        at_work = self.pending.get(self.page.main_call()[0])
        if at_work is not None:
            _, _, _, work = at_work
            queued -= work
        return max(queued, 0.0) + self.remaining(time.monotonic())

    def remaining(self, now: float) -> float:
        """Seconds that the call at work may still take; one that is overdue, for all we know, as long again.

        It is never taken for almost done just because it has run for as long as expected.
        """
        call_id, start = self.page.main_call()
        at_work = self.pending.get(call_id)
        if at_work is None:
            return 0.0
        _, op, caller, _ = at_work
        work = 0.0 if caller is None else caller.work(op)
        return max(abs(now - start - work), work / 4)

    def call(self, env_id: int, op: Op, payload: Any, *, caller: Caller | None = None) -> "asyncio.Future[CallReply]":
        future: asyncio.Future[CallReply] = self._loop.create_future()
        if self._ended is not None:
            future.set_exception(self._ended)
            return future
        message = codec.embed(payload, None, self._sent)
        self._last_id = call_id = self._last_id + 1
        if self._sent.latest is not None:
            self._came_with[call_id], self._sent.latest = self._sent.latest, None
        work = 0.0
        if caller is not None:
            if op is _STEP:
                work = caller.step_work
            else:
                work = caller.work(op)
                self.startup += work
                if self.startup > SOON:
                    self._starting.add(self.rank)
            if work:
                self.backlog += work
        self.pending[call_id] = future, op, caller, work
        outbox = self._outbox
        if not outbox:
            self._loop.call_soon(self._flush)
        outbox.append((call_id, env_id, op, message))
        if len(outbox) >= _MOST_CALLS:
            self._flush()
        return future

    def drop(self, env_id: int) -> None:
        if self._ended is not None:
            return
        if self.backlog or self.wait() > SOON:  # among what waits may be calls of envs that nobody awaits any more
            self.withdraw(
                [call for call, (future, _, caller, _) in self.pending.items() if caller and future.cancelled()]
            )
        self._last_id += 1
        closing: asyncio.Future[CallReply] = self._loop.create_future()
        closing.cancel()
        self.pending[self._last_id] = closing, Op.CLOSE, None, 0.0  # nobody awaits it, but it may take long
        self._outbox.append((self._last_id, env_id, Op.CLOSE, None))
        self._flush()

    def stop(self) -> None:
        """Ask the worker to close its envs and end, after the call that it is at."""
        self._reason = "closed"
        self._withdrawn.update(self.pending)
        self.page.withdraw_all()
        self._outbox.append((0, 0, Op.STOP, None))
        self._flush()

    def withdraw(self, call_ids: list[int], reason: str = "moved") -> None:
        """Have the worker skip these calls, if it has not begun them; whoever awaits them makes them elsewhere."""
        call_ids = self._have_skipped(call_ids)
        begun, in_threads = self.page.last_begun(), {call for call, _ in self.page.running()}
        moved = [
            call for call in call_ids if call > begun and call not in in_threads
        ]  # the reply says what became of the others
        self.give_up(moved, lambda _: HostLost(reason))

    def _have_skipped(self, call_ids: list[int]) -> list[int]:
        """As many as there is room for."""
        call_ids = [call for call in call_ids if call not in self._withdrawn][: self.page.room]
        self._withdrawn.update(call_ids)
        self.page.withdraw(call_ids)
        return call_ids

    def give_up(self, call_ids: Iterable[int], lost: Callable[[int], HostLost]) -> None:
        for call_id in call_ids:
            future, op, _, work = self.pending.pop(call_id)
            self._subtract(op, work)
            if not future.done():
                future.set_exception(lost(call_id))

    def end(self, later: HostLost, lost: Callable[[int], HostLost]) -> None:
        """The worker is gone: give up all calls, and those to come."""
        self._ended = later
        self._starting.discard(self.rank)
        self.give_up(list(self.pending), lost)
        self.page = NO_PAGE  # what refers to this host may live on, and must not keep the file open
        self._arrays.close()
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        calls, self._outbox = self._outbox, []
        if calls and self._transport is not None and not self._transport.is_closing():
            self._transport.write(codec.frame(calls))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, of the same shape

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            if not self.pid:
                self._greet(_read_hello(frame))
                continue
            replies = self._decode(frame)
            waiting = self.pending
            for reply in replies:
                sent = waiting.pop(reply.call_id, None)
                if self._withdrawn:
                    self._note_skipped(reply, None if sent is None else sent[0])
                if self._came_with:
                    self._note_loaded(reply)
                if sent is None:  # it was moved meanwhile
                    continue
                future, op, _, work = sent
                if work:
                    self._subtract(op, work)
                if not future.done():  # else it was cancelled
                    future.set_result(reply)
            self._clock.extend([reply.seconds for reply in replies])
            if not waiting:
                self.backlog = self.startup = 0.0  # of differences of floats, something may be left
                self._starting.discard(self.rank)
                self._on_idle()

    def _subtract(self, op: Op, work: float) -> None:
        self.backlog -= work
        if op is not _STEP:
            self.startup -= work
            if self.startup <= SOON:
                self._starting.discard(self.rank)

    def _note_skipped(self, reply: CallReply, future: "asyncio.Future[CallReply] | None") -> None:
        """A worker answers a withdrawn call, too: with nothing if it was skipped, else as usual."""
        self._withdrawn.discard(reply.call_id)
        if not self._withdrawn and self._reason == "moved":
            self.page.forget_withdrawn()
        if reply.skipped and future is not None and not future.done():
            future.set_exception(HostLost(self._reason))

    def _note_loaded(self, reply: CallReply) -> None:
        came_with = self._came_with.pop(reply.call_id, None)
        if came_with is not None and reply.failure and reply.value == NOT_LOADED:
            self._sent.take_back(*came_with)

    def _greet(self, hello: WorkerHello) -> None:
        if hmac.compare_digest(hello.token, self._token):
            self.pid, self.bare_memory = hello.pid, hello.memory
            self._on_hello(self)
        else:
            self.refuse()

    def refuse(self) -> None:
        """Close the connection: this is not a worker of ours, or not any more."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.pid:
            self._on_lost(self)
