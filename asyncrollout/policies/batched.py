"""A model in this process: concurrent requests are gathered into batches."""

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from asyncrollout.concurrency import Background
from asyncrollout.errors import ClosedError, ProviderError, RolloutError, UsageError
from asyncrollout.policies.gate import Gate, check_rises
from asyncrollout.policies.holding import Deadline, rollout_held
from asyncrollout.policies.versions import note_version
from asyncrollout.types import Generation, PauseMode, Request, Timings

Model = Callable[[list[Request]], Sequence[Any]]


class _PendingRequest:
    """A request that waits for a batch, and then for its reply."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.held = rollout_held()
        if self.held is not None:
            self.held.begin()
        self.version = 0
        self.since = time.monotonic()
        self.begun = self.since
        self.given_up = False
        self.done = anyio.Event()
        self.reply: Generation | Exception | None = None

    def leave_queue(self) -> None:
        held, self.held = self.held, None
        if held is not None:
            held.end()


class BatchedPolicy:
    """Calls `model(requests)` in a thread with up to `max_batch` requests that arrived within `max_wait` seconds.

    The model returns one result per request, in order: a `Generation`, a text, any other action, or an exception for
    that request alone. One batch runs at a time; requests that arrive meanwhile wait for the next.

    Replies have the `version` of the weights that their batch started with. A thread cannot be stopped: for new
    weights, `pause` waits for the running batch, in mode "abort", too.
    """

    def __init__(self, model: Model, *, max_batch: int = 64, max_wait: float = 0.005) -> None:
        if max_batch < 1 or max_wait < 0:
            raise UsageError(
                f"BatchedPolicy: max_batch={max_batch!r} must be at least 1, max_wait={max_wait!r} at least 0"
            )
        self._given = model, max_batch, max_wait
        self._model = model
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._thread = anyio.CapacityLimiter(1)
        self._send: MemoryObjectSendStream[_PendingRequest] | None = None
        self._serving = Background()
        self._pending: set[_PendingRequest] = set()
        self._gate = Gate()
        self.version = self.updates = 0
        self.is_open = False

    def __reduce__(self) -> Any:
        """A copy for another process, which is not open and never hears of new weights."""
        model, max_batch, max_wait = self._given
        return partial(BatchedPolicy, max_batch=max_batch, max_wait=max_wait), (model,)

    async def __aenter__(self) -> Self:
        await self._serving.open()
        self._send, arriving = anyio.create_memory_object_stream[_PendingRequest](0)
        self._serving.start_soon(self._serve, arriving)
        self.is_open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self.is_open = False
        assert self._send is not None
        self._send.close()
        try:
            await self._serving.close(error, cancel=kind is not None or not self._gate.is_open)
        finally:
            for pending in self._pending:
                pending.done.set()

    async def generate(self, request: Request) -> Generation:
        if self._send is None or not self.is_open:
            raise ClosedError("this BatchedPolicy is not open: use it within 'async with'")
        pending = _PendingRequest(request)
        self._pending.add(pending)
        try:
            with Deadline(request.seconds, self.held_seconds) as deadline:
                await self._send.send(pending)
                await pending.done.wait()
            if deadline.expired:
                raise ProviderError(f"no response within {request.seconds} s")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise ClosedError("this BatchedPolicy was closed") from None
        finally:
            pending.given_up = True
            pending.leave_queue()
            self._pending.discard(pending)
        if pending.reply is None:
            raise ClosedError("this BatchedPolicy was closed")
        if isinstance(pending.reply, Exception):
            raise pending.reply
        now = time.monotonic()
        timings = Timings(
            queue=pending.begun - pending.since, first_byte=now - pending.begun, total=now - pending.since
        )
        note_version(pending.version)
        return msgspec.structs.replace(pending.reply, timings=timings, version=pending.version)

    async def pause(self, mode: PauseMode = "wait") -> None:
        """Hold batches back for new weights; the running one is awaited, or left alone ("continue")."""
        await self._gate.shut(mode)

    async def resume(self, version: int | None = None) -> None:
        """Let batches run again; their replies are of this version of the weights."""
        if version is not None:
            check_rises(version, self.version)
            self.version = version
            self.updates += 1
        self._gate.open()

    def held_seconds(self) -> float:
        """How long batches were held back in total."""
        return self._gate.held.seconds()

    def last_held(self) -> float:
        """Until when batches were held back, on the monotonic clock: now while they are."""
        return self._gate.held.last()

    async def _serve(self, arriving: MemoryObjectReceiveStream[_PendingRequest]) -> None:
        async with arriving:
            async for first in arriving:
                gathered = await self._gather(first, arriving)
                while not self._gate.is_open:
                    await self._gate.wait()
                    self._fill(gathered, arriving)
                batch = [pending for pending in gathered if not pending.given_up]
                if batch:
                    with self._gate.passing():
                        await self._run(batch)

    async def _gather(
        self, first: _PendingRequest, arriving: MemoryObjectReceiveStream[_PendingRequest]
    ) -> list[_PendingRequest]:
        batch = [first]
        with anyio.move_on_after(self._max_wait), suppress(anyio.EndOfStream):
            while len(batch) < self._max_batch:
                batch.append(await arriving.receive())
        self._fill(batch, arriving)
        return batch

    def _fill(self, batch: list[_PendingRequest], arriving: MemoryObjectReceiveStream[_PendingRequest]) -> None:
        """Add requests that are already waiting."""
        with suppress(anyio.WouldBlock, anyio.EndOfStream):
            while len(batch) < self._max_batch:
                batch.append(arriving.receive_nowait())

    async def _run(self, batch: list[_PendingRequest]) -> None:
        begun = time.monotonic()
        for pending in batch:
            pending.version = self.version
            pending.leave_queue()
        requests = [pending.request for pending in batch]
        try:
            results = await anyio.to_thread.run_sync(self._call, requests, limiter=self._thread)
        except Exception as error:  # noqa: BLE001 (everything that a model raises belongs to the requests of its batch)
            results = [_failed(error)] * len(batch)
        for pending, result in zip(batch, results, strict=True):
            pending.begun, pending.reply = begun, _as_reply(result)
            pending.done.set()

    def _call(self, requests: list[Request]) -> list[Any]:
        """In the thread, even if the model is a generator."""
        results = self._model(requests)
        listed = [results] if isinstance(results, str) else list(results)
        if len(listed) != len(requests) or isinstance(results, str):
            raise ProviderError(f"the model returned {len(listed)} results for {len(requests)} requests")
        return listed


def _as_reply(result: Any) -> Generation | Exception:
    if isinstance(result, Generation):
        return result
    if isinstance(result, Exception):
        return _failed(result)
    return Generation(result) if isinstance(result, str) else Generation("", action=result)


def _failed(error: Exception) -> RolloutError:
    if isinstance(error, RolloutError):
        own = copy.copy(error)  # each rollout adds its own place to it
        own.__cause__ = error.__cause__
        return own
    failed = ProviderError(f"the model raised {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
