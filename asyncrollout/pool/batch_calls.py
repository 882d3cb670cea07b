"""Calls of many envs at once: all are sent, then their replies are awaited; only what goes wrong needs a task."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncrollout.errors import RolloutError
from asyncrollout.pool.hosts import Reply
from asyncrollout.pool.wire.codec import Op
from asyncrollout.types import Outcome

if TYPE_CHECKING:
    from asyncrollout.pool.handle import EnvHandle, Phase

Result = Outcome | RolloutError


class PendingCall:
    """A reset or a step that was sent. Either one of the `outcome`s is asked for, once, or it is `abandoned`."""

    __slots__ = ("_handle", "_op", "_payload", "_phase", "_took", "reply")

    def __init__(
        self,
        handle: "EnvHandle",
        op: Op,
        payload: Any,
        sent: "tuple[Phase, Awaitable[Reply]]",
        took: Callable[[Any, Reply], Outcome],
    ) -> None:
        self._handle, self._op, self._payload, self._took = handle, op, payload, took
        self._phase, self.reply = sent

    async def outcome(self) -> Outcome:
        """What comes of it, wherever that takes the env."""
        return self._took(self._payload, await self._handle.attend(self._op, self._payload, self._phase, self.reply))

    def outcome_of(self, reply: Reply) -> Outcome:
        """What came of it, if this is the reply."""
        return self._took(self._payload, self._handle.settle(self._op, self._phase, reply))

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if isinstance(self.reply, asyncio.Future):
            if not self.reply.cancel() and not self.reply.cancelled():
                self.reply.exception()  # seen, or asyncio would tell of it
        elif inspect.iscoroutine(self.reply):
            self.reply.close()
        self._handle.abandon()


async def call_all(
    calls: Iterable[Callable[[], PendingCall]], on_result: Callable[[int, Result], None] | None = None
) -> list[Result]:
    """Begin these calls and await them all; one that fails has its error in its place.

    `on_result` is told place and result of each as soon as it is there, while others are still under way.
    """
    gathering = _PendingCalls(on_result)
    try:
        gathering.begin(calls)
        await gathering.wait()
    finally:
        gathering.abandon()
    return gathering.results


class _PendingCalls:
    """Replies that are on their way are taken as they come; a call that begins when it is awaited, or is lost, needs a
    task.
    """

    def __init__(self, on_result: Callable[[int, Result], None] | None) -> None:
        self._by_place: dict[int, Result] = {}
        self._under_way: dict[int, PendingCall] = {}
        self._on_result = on_result
        self._tasks = asyncio.TaskGroup()  # measured: a third of the cost of anyio's, and no task of it ever fails
        self._all_come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited = 0
        self._mistake: Exception | None = None  # of ours or of `on_result`: it must not leave the caller waiting

    @property
    def results(self) -> list[Result]:
        return [self._by_place[place] for place in range(len(self._by_place))]

    def begin(self, calls: Iterable[Callable[[], PendingCall]]) -> None:
        for place, begin in enumerate(calls):
            try:
                self._under_way[place] = begin()
            except RolloutError as error:
                self._take(place, error)

    async def wait(self) -> None:
        async with self._tasks:
            for place, call in self._under_way.items():
                if isinstance(call.reply, asyncio.Future):
                    self._awaited += 1
                    call.reply.add_done_callback(partial(self._on_reply, place))
                else:
                    self._tasks.create_task(self._settle(place))
            if self._awaited:
                await self._all_come
        if self._mistake is not None:
            raise self._mistake

    def abandon(self) -> None:
        """What is still under way: nothing, unless the caller was cancelled."""
        for call in self._under_way.values():
            call.abandon()
        self._under_way.clear()

    def _on_reply(self, place: int, reply: "asyncio.Future[Reply]") -> None:
        if place not in self._under_way:  # nobody waits any more
            return
        if reply.exception() is None:
            try:
                self._take(place, _outcome(self._under_way.pop(place), reply.result()))
            except Exception as error:
                self._mistake = error
        else:
            self._restore(place)
        self._awaited -= 1
        if not self._awaited and not self._all_come.done():
            self._all_come.set_result(None)

    def _restore(self, place: int) -> None:
        task = self._settle(place)
        try:
            self._tasks.create_task(task)
        except RuntimeError:  # the caller was cancelled, and takes no more
            task.close()

    async def _settle(self, place: int) -> None:
        call = self._under_way.pop(place)  # not before: a task that is cancelled at once never comes here
        try:
            result: Result = await call.outcome()
        except RolloutError as error:
            result = error
        self._take(place, result)

    def _take(self, place: int, result: Result) -> None:
        self._by_place[place] = result
        if self._on_result is not None and self._mistake is None:
            try:
                self._on_result(place, result)
            except Exception as error:
                self._mistake = error


def _outcome(call: PendingCall, reply: Reply) -> Result:
    try:
        return call.outcome_of(reply)
    except RolloutError as error:
        return error
