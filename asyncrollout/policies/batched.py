"""A model in this process: concurrent requests, gathered into batches."""

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from asyncrollout.errors import ClosedError, ProviderError, RolloutError, UsageError
from asyncrollout.tasks import Background
from asyncrollout.types import Generation, Request, Timings

Model = Callable[[list[Request]], Sequence[Any]]


class _Asked:
    """A request that waits for its place in a batch, and for its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.since = time.monotonic()
        self.begun = self.since
        self.given_up = False
        self.answered = anyio.Event()
        self.answer: Generation | Exception | None = None


class BatchedPolicy:
    """Calls `model(requests)` in a thread with up to `max_batch` requests that came within `max_wait` seconds.

    The model gives one result for each request, in order: a `Generation`, a text, any other action, or an exception for
    that request alone. One batch runs at a time; what comes meanwhile waits for the next.
    """

    def __init__(self, model: Model, *, max_batch: int = 64, max_wait: float = 0.005) -> None:
        if max_batch < 1 or max_wait < 0:
            raise UsageError(
                f"BatchedPolicy: max_batch={max_batch!r} must be 1 or more, max_wait={max_wait!r} 0 or more"
            )
        self._model = model
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._thread = anyio.CapacityLimiter(1)
        self._send: MemoryObjectSendStream[_Asked] | None = None
        self._serving = Background()
        self._asked: set[_Asked] = set()
        self.is_open = False

    async def __aenter__(self) -> Self:
        await self._serving.open()
        self._send, asked = anyio.create_memory_object_stream[_Asked](0)
        self._serving.start_soon(self._serve, asked)
        self.is_open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.is_open = False
        assert self._send is not None
        self._send.close()
        try:
            await self._serving.close(cancel=kind is not None)
        finally:
            for asked in self._asked:
                asked.answered.set()

    async def generate(self, request: Request) -> Generation:
        if self._send is None or not self.is_open:
            raise ClosedError("this BatchedPolicy is not open: use it within 'async with'")
        asked = _Asked(request)
        self._asked.add(asked)
        try:
            with anyio.fail_after(request.seconds):
                await self._send.send(asked)
                await asked.answered.wait()
        except TimeoutError:
            raise ProviderError(f"no answer within {request.seconds} s") from None
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise ClosedError("this BatchedPolicy was closed") from None
        finally:
            asked.given_up = True
            self._asked.discard(asked)
        if asked.answer is None:
            raise ClosedError("this BatchedPolicy was closed")
        if isinstance(asked.answer, Exception):
            raise asked.answer
        now = time.monotonic()
        timings = Timings(queue=asked.begun - asked.since, first_byte=now - asked.begun, total=now - asked.since)
        return msgspec.structs.replace(asked.answer, timings=timings)

    async def _serve(self, arriving: MemoryObjectReceiveStream[_Asked]) -> None:
        async with arriving:
            async for first in arriving:
                batch = [asked for asked in await self._gather(first, arriving) if not asked.given_up]
                if batch:
                    await self._run(batch)

    async def _gather(self, first: _Asked, arriving: MemoryObjectReceiveStream[_Asked]) -> list[_Asked]:
        batch = [first]
        with anyio.move_on_after(self._max_wait), suppress(anyio.EndOfStream):
            while len(batch) < self._max_batch:
                batch.append(await arriving.receive())
        with suppress(anyio.WouldBlock, anyio.EndOfStream):  # whoever stands in line by now need not wait for the next
            while len(batch) < self._max_batch:
                batch.append(arriving.receive_nowait())
        return batch

    async def _run(self, batch: list[_Asked]) -> None:
        begun = time.monotonic()
        requests = [asked.request for asked in batch]
        try:
            results = await anyio.to_thread.run_sync(self._call, requests, limiter=self._thread)
        except Exception as error:  # noqa: BLE001 (whatever a model raises belongs to those who asked it)
            results = [_failed(error)] * len(batch)
        for asked, result in zip(batch, results, strict=True):
            asked.begun, asked.answer = begun, _as_answer(result)
            asked.answered.set()

    def _call(self, requests: list[Request]) -> list[Any]:
        """In the thread, also if the results are made one by one."""
        results = self._model(requests)
        listed = [results] if isinstance(results, str) else list(results)
        if len(listed) != len(requests) or isinstance(results, str):
            raise ProviderError(f"the model gave {len(listed)} results for {len(requests)} requests")
        return listed


def _as_answer(result: Any) -> Generation | Exception:
    if isinstance(result, Generation):
        return result
    if isinstance(result, Exception):
        return _failed(result)
    return Generation(result) if isinstance(result, str) else Generation("", action=result)


def _failed(error: Exception) -> RolloutError:
    if isinstance(error, RolloutError):
        own = copy.copy(error)  # each rollout notes its own place on it
        own.__cause__ = error.__cause__
        return own
    failed = ProviderError(f"the model raised {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
