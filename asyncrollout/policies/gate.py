"""Calls that are held back while weights change."""

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_args

import anyio
import anyio.lowlevel
import msgspec

from asyncrollout import validation
from asyncrollout.errors import UsageError
from asyncrollout.policies.holding import HeldTime, charged, held_back, rollout_held
from asyncrollout.policies.versions import Unnoted, note_version
from asyncrollout.protocols import Policy, ask_policy
from asyncrollout.types import Generation, PauseMode, Request

T = TypeVar("T")

_STOPPED = -math.inf

WOKEN_AT_ONCE = 64
"""Calls that are let through, or stopped, in one iteration of the event loop."""


class _WaitingCalls:
    """Calls that wait, and are woken some at a time, in order: thousands at once would hold the event loop.

    Some share an event. An event of its own would cost each call more, and one for all costs n^2 when calls are
    cancelled in another order than they came.
    """

    def __init__(self) -> None:
        self._events: deque[anyio.Event] = deque()
        self._last = 0  # calls that wait for the last event
        self._next: asyncio.Handle | None = None

    async def wait(self) -> None:
        if not self._events or self._last == WOKEN_AT_ONCE:
            self._events.append(anyio.Event())
            self._last = 0
        self._last += 1
        await self._events[-1].wait()

    def wake(self) -> None:
        """Wake those that wait: the first ones now, and others in each iteration of the event loop after that."""
        if self._next is None and self._events:
            self._events.popleft().set()
            if self._events:
                self._next = asyncio.get_running_loop().call_soon(self._wake_next)

    def hold(self) -> None:
        """Wake no others: those that were woken may wait again, behind them."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _wake_next(self) -> None:
        self._next = None
        self.wake()


class Gate:
    """Lets calls through, or holds them back; and knows those in flight.

    With `stops_server`, calls that are left alone ("continue") stand still while it is shut, and so do their timers.
    """

    def __init__(self, *, stops_server: bool = False) -> None:
        self._queue = _WaitingCalls()
        self.is_open = True
        self._idle = anyio.Event()
        self._in_flight: dict[object, HeldTime | None] = {}
        self._stops_server = stops_server
        self._still: dict[object, float | None] = {}  # with the seconds that its timer had left
        self.held = HeldTime()

    async def wait(self) -> None:
        """Until it is open, or was: whoever waits looks again."""
        if self.is_open:
            await anyio.lowlevel.checkpoint()
        else:
            await self._queue.wait()

    def passing(self, timer: asyncio.Timeout | None = None) -> "_Passing":
        """A call under its timer, which expires at once if the call is to be made again; without one it is awaited.

        A timer of asyncio costs a third of a cancel scope, and every call has one.
        """
        return _Passing(self, object() if timer is None else timer)

    def begin(self, call: object) -> None:
        self._in_flight[call] = rollout_held()

    def end(self, call: object) -> None:
        if self._still:
            self._continue(call)
        del self._in_flight[call]
        if not self._in_flight:
            self._idle.set()

    async def shut(self, mode: PauseMode) -> None:
        """Hold calls back; those in flight are awaited, stopped, or left alone. If cancelled, it opens again."""
        validation.check_choice("mode", mode, get_args(PauseMode))
        if self.is_open:
            self.is_open = False
            self._queue.hold()
            self.held.begin()
        is_shut = False
        try:
            if mode == "abort":
                await self._stop_gradually()
            elif mode == "continue" and self._stops_server:
                self._stand_still()
            while self._in_flight and mode != "continue" and not self.is_open:
                if self._idle.is_set():
                    self._idle = anyio.Event()
                await self._idle.wait()
            is_shut = True
        finally:
            if not is_shut:
                self.open()

    async def _stop_gradually(self) -> None:
        """Stop the calls in flight, some at a time; whoever opens the gate meanwhile wants no more of them stopped."""
        for number, call in enumerate([*self._in_flight]):
            if self.is_open:
                return
            if call in self._in_flight:
                _stop(call)
            if number % WOKEN_AT_ONCE == WOKEN_AT_ONCE - 1:
                await anyio.lowlevel.checkpoint()

    def stop_all(self) -> None:
        for call in self._in_flight:
            _stop(call)

    def open(self) -> None:
        if not self.is_open:
            self.held.end()
        for call in [*self._still]:
            self._continue(call)
        self.is_open = True
        self._queue.wake()
        self._idle.set()

    def _stand_still(self) -> None:
        now = asyncio.get_running_loop().time()
        for call, held in self._in_flight.items():
            if call in self._still:
                continue
            when = call.when() if isinstance(call, asyncio.Timeout) and not call.expired() else None
            self._still[call] = None if when is None else when - now
            if isinstance(call, asyncio.Timeout) and when is not None:
                call.reschedule(None)
            if held is not None:
                held.begin()

    def _continue(self, call: object) -> None:
        if call not in self._still:
            return
        left = self._still.pop(call)
        if left is not None and isinstance(call, asyncio.Timeout) and call.when() is None:  # else it was stopped
            call.reschedule(asyncio.get_running_loop().time() + left)
        held = self._in_flight[call]
        if held is not None:
            held.end()


def _stop(call: object) -> None:
    """Have a call made again, if it has a timer."""
    if isinstance(call, asyncio.Timeout) and not call.expired():
        call.reschedule(_STOPPED)


class _Passing:
    """A call between `begin` and `end`; a generator in its place would cost every call twice as much."""

    __slots__ = ("_call", "_gate")

    def __init__(self, gate: Gate, call: object) -> None:
        self._gate = gate
        self._call = call

    def __enter__(self) -> None:
        self._gate.begin(self._call)

    def __exit__(self, *_: object) -> None:
        self._gate.end(self._call)


class Weights:
    """Of one policy object, whoever uses it: their version, the gate before them, and whose turn it is to change."""

    def __init__(self) -> None:
        self.version = 0
        self.updates = 0
        self.gate = Gate()
        self.changing = anyio.Semaphore(1, max_value=1)
        self.held = HeldTime()


_KNOWN: dict[int, tuple[Callable[[], Any], Weights]] = {}


def weights_of(policy: Any) -> Weights:
    """The same for the same object, also in other `Rollouts`; by identity, since policies may compare as equal."""
    place = id(policy)
    known = _KNOWN.get(place)
    if known is not None and known[0]() is policy:
        return known[1]
    weights = Weights()
    try:
        find: Callable[[], Any] = weakref.ref(policy, lambda gone: _forget(place, gone))
    except TypeError:  # a class with slots: its objects are kept
        find = _constant(policy)
    _KNOWN[place] = (find, weights)
    return weights


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _forget(place: int, gone: Any) -> None:
    if place in _KNOWN and _KNOWN[place][0] is gone:
        del _KNOWN[place]


class GatedPolicy:
    """A policy that can be held back while its weights change, and whose replies carry the version of its weights."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.weights = weights_of(inner)

    def __getattr__(self, name: str) -> Any:
        """Everything else that an agent may want of its policy."""
        if name.startswith("__") or name in ("inner", "policies", "weights"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def version(self) -> int:
        return self.weights.version

    @version.setter
    def version(self, version: int) -> None:
        self.weights.version = version

    @property
    def updates(self) -> int:
        """How often there were new weights, perhaps of the same version."""
        return self.weights.updates

    async def generate(self, request: Request) -> Generation:
        generation, version = await self.call(ask_policy, self.inner, request)
        return msgspec.structs.replace(generation, version=version)

    async def call(self, ask: Callable[..., Awaitable[T]], *asked: Any) -> tuple[T, int]:
        """What a call gives, and the version of the weights that it began with, which is noted for all within it."""
        with Unnoted():
            result, version = await self._pass(ask, *asked)
        note_version(version)
        return result, version

    async def _pass(self, ask: Callable[..., Awaitable[T]], *asked: Any) -> tuple[T, int]:
        gate = self.weights.gate
        while True:
            if gate.is_open:
                await gate.wait()  # who never waits could be neither cancelled nor overtaken
            else:
                with held_back():
                    await gate.wait()
            if not gate.is_open:
                continue
            version, began = self.weights.version, charged()
            try:
                async with asyncio.timeout(None) as timer:
                    with gate.passing(timer):
                        return await ask(*asked), version
            except TimeoutError:
                if not timer.expired():  # the policy's own
                    raise
            refund(began)

    async def pause(self, mode: PauseMode = "wait") -> None:
        """Hold new calls back: calls in flight are awaited, stopped to be made again, or left alone."""
        await self.weights.gate.shut(mode)

    async def resume(self, version: int | None = None) -> None:
        """Let calls through again; what they give is of this version of the weights."""
        if version is not None:
            check_rises(version, self.version)
            self.weights.version = version
            self.weights.updates += 1
        self.weights.gate.open()

    def held_seconds(self) -> float:
        """How long calls were held back, all in all."""
        return self.weights.gate.held.seconds()

    def last_held(self) -> float:
        """Until when calls were held back, on the monotonic clock: now while they are."""
        return self.weights.gate.held.last()


class StampingPolicy:
    """A policy that stamps its replies by itself: they count by that version, whatever it asks in order to reply."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        """Everything else that an agent may want of its policy."""
        if name.startswith("__") or name in ("inner", "policies"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def generate(self, request: Request) -> Generation:
        with Unnoted():
            generation = await ask_policy(self.inner, request)
        note_version(None if generation.frozen else int(generation.version))
        return generation


def is_stopped(timer: asyncio.Timeout) -> bool:
    """Whether a timer expired because its call is to be made again, and not because time was up."""
    return timer.when() == _STOPPED


def refund(began: float) -> None:
    """A call that was stopped for new weights is made again: its rollout is not charged since then (by `charged`).

    What it was not charged for anyway, or got back for another call at the same time, is not given twice.
    """
    held = rollout_held()
    if held is not None:
        held.add(max(charged() - began, 0.0))


def check_rises(version: int, present: int) -> None:
    if version < present:
        raise UsageError(
            f"version={version} of the weights is below {present}, which the policy has: versions only rise; "
            "other weights need another policy object"
        )
