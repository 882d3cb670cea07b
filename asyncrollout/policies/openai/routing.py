"""Which of several servers gets a call, and when: sessions stay with their server, and calls wait in order of age."""

import asyncio
import heapq
import math
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence

import anyio

from asyncrollout.policies.holding import held_back
from asyncrollout.policies.openai.endpoint import Endpoint

_SESSIONS_KEPT = 100_000
_LONG_REFUSAL = 1.0  # seconds, and a session looks for another server
_REFUSALS = 2  # in a row, and it does so, too
_LONGEST_TIMER = 3_600.0


class _Affinity:
    """A session's server, and how often in a row it has refused the session."""

    __slots__ = ("endpoint", "refusals")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.refusals = 0


class Router:
    """The same server for a whole session, as long as it takes its calls, so that its cache of prefixes is of use.

    While that one is paused by a short refusal, a call may be a guest elsewhere, and the session stays.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._only = endpoints[0] if len(endpoints) == 1 else None
        self._homes: OrderedDict[str, _Affinity] = OrderedDict()

    def find(self, session: str, failed: Endpoint | None = None, avoided: Collection[Endpoint] = ()) -> Endpoint | None:
        """The server for a call; rather another one than that which just `failed`, and never an avoided one.

        None if none has the weights.
        """
        if self._only is not None and self._only.up and not avoided:
            return self._only
        now = time.monotonic()
        home = self._homes.get(session) if session else None
        mine = None if home is None else home.endpoint
        stays = mine is not None and mine.up and mine is not failed and mine not in avoided
        if stays and mine is not None and mine.wait_before(now) <= 0:
            self._homes.move_to_end(session)
            return mine
        best = self._best(now, failed, avoided)
        if best is None or not session or best is mine:
            return best
        is_guest = stays and home is not None and home.refusals < _REFUSALS
        if not is_guest or (mine is not None and mine.wait_before(now) >= _LONG_REFUSAL):
            self._move(session, home, best)
        return best

    def refused(self, session: str, endpoint: Endpoint) -> None:
        home = self._homes.get(session)
        if home is not None and home.endpoint is endpoint:
            home.refusals += 1

    def succeeded(self, session: str, endpoint: Endpoint) -> None:
        home = self._homes.get(session)
        if home is not None and home.refusals and home.endpoint is endpoint:
            home.refusals = 0

    def _best(self, now: float, failed: Endpoint | None, avoided: Collection[Endpoint]) -> Endpoint | None:
        allowed = [endpoint for endpoint in self._endpoints if endpoint not in avoided]
        up = [endpoint for endpoint in allowed if endpoint.up]
        others = [endpoint for endpoint in up if endpoint is not failed]
        may_be_up = others or up or [endpoint for endpoint in allowed if endpoint.has_weights]
        if len(may_be_up) <= 1:
            return may_be_up[0] if may_be_up else None
        return min(may_be_up, key=lambda one: one.reluctance(now))

    def _move(self, session: str, home: _Affinity | None, best: Endpoint) -> None:
        if home is not None:
            home.endpoint.sessions -= 1
        best.sessions += 1
        self._homes[session] = _Affinity(best)
        self._homes.move_to_end(session)
        if len(self._homes) > _SESSIONS_KEPT:
            self._homes.popitem(last=False)[1].endpoint.sessions -= 1


class QueuedRequest:
    """A call in the line of one server, or of another that is free earlier."""

    __slots__ = ("avoided", "came", "failed", "is_gone", "line", "number", "place", "session")

    def __init__(self, number: int, session: str, failed: Endpoint | None, avoided: Collection[Endpoint]) -> None:
        self.number = number
        self.session = session
        self.failed = failed
        self.avoided = avoided
        self.came = anyio.Event()
        self.line: Endpoint | None = None
        self.place: Endpoint | None = None
        self.is_gone = False

    def __lt__(self, other: "QueuedRequest") -> bool:
        return self.number < other.number


class RequestQueue:
    """A call is made between `enter` and `leave`. Each server has a queue; one with room and none takes from others."""

    def __init__(self, endpoints: Sequence[Endpoint], router: Router) -> None:
        self._endpoints = endpoints
        self._router = router
        self._queues: dict[Endpoint, list[QueuedRequest]] = {endpoint: [] for endpoint in endpoints}
        self._waiting = 0
        self._timers: dict[Endpoint, tuple[float, asyncio.TimerHandle]] = {}

    def enter_now(self, endpoint: Endpoint) -> bool:
        """Take a place, if there is one and nobody waits for it."""
        if endpoint.waiting or not endpoint.limit.admit(endpoint.in_flight, time.monotonic()):
            return False
        endpoint.in_flight += 1
        return True

    async def enter(self, waiter: QueuedRequest, endpoint: Endpoint) -> Endpoint:
        """Wait for a place at this server, or at any other that has room before."""
        self._put(waiter, endpoint)
        self._dispatch(endpoint)
        if waiter.place is None:
            self._offer_elsewhere(endpoint)
        came = False
        try:
            if waiter.place is None:
                with held_back():
                    await waiter.came.wait()
            came = True
        finally:
            if not came:
                self._withdraw(waiter)
        assert waiter.place is not None
        return waiter.place

    def leave(self, endpoint: Endpoint) -> None:
        endpoint.in_flight -= 1
        if self._waiting:
            self.update(endpoint)

    def update(self, endpoint: Endpoint) -> None:
        """It has room, or wants no calls for a while, or was lost."""
        now = time.monotonic()
        is_stuck = endpoint.waiting > 0 and not _is_ready(endpoint, now)
        if is_stuck and any(_is_ready(other, now) for other in self._endpoints):  # else moving them is in vain
            self._reroute(endpoint)
        self._dispatch(endpoint)

    def update_all(self) -> None:
        if self._waiting:
            for endpoint in self._endpoints:
                self.update(endpoint)

    def close(self) -> None:
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _put(self, waiter: QueuedRequest, endpoint: Endpoint) -> None:
        waiter.line = endpoint
        endpoint.waiting += 1
        self._waiting += 1
        heapq.heappush(self._queues[endpoint], waiter)

    def _withdraw(self, waiter: QueuedRequest) -> None:
        if waiter.place is not None:
            self.leave(waiter.place)
            return
        waiter.is_gone = True
        self._forget(waiter)
        assert waiter.line is not None
        queue = self._queues[waiter.line]
        if len(queue) > 2 * waiter.line.waiting:
            queue[:] = [other for other in queue if not other.is_gone]
            heapq.heapify(queue)

    def _forget(self, waiter: QueuedRequest) -> None:
        assert waiter.line is not None
        waiter.line.waiting -= 1
        self._waiting -= 1

    def _dispatch(self, endpoint: Endpoint) -> None:
        """Give out the places that it has."""
        limit, now = endpoint.limit, time.monotonic()
        while self._waiting:
            if now < limit.not_before:
                self._wake(endpoint, limit.not_before - now)
                return
            if not limit.has_room(endpoint.in_flight, now):
                return
            if (waiter := self._next(endpoint)) is None:
                if endpoint.up and now < endpoint.troubled_until:
                    self._wake(endpoint, endpoint.troubled_until - now)
                return
            limit.admit(endpoint.in_flight, now)
            heapq.heappop(self._queues[waiter.line or endpoint])
            self._forget(waiter)
            endpoint.in_flight += 1
            waiter.place = endpoint
            waiter.came.set()

    def _next(self, endpoint: Endpoint) -> QueuedRequest | None:
        """The oldest of its own, else of all others that may go there."""
        own = self._first(endpoint)
        if own is not None or not endpoint.up or time.monotonic() < endpoint.troubled_until:
            return own
        firsts = [self._first(other) for other in self._endpoints if other.waiting]
        return min((one for one in firsts if one is not None and endpoint not in one.avoided), default=None)

    def _first(self, endpoint: Endpoint) -> QueuedRequest | None:
        queue = self._queues[endpoint]
        while queue and queue[0].is_gone:
            heapq.heappop(queue)
        return queue[0] if queue else None

    def _offer_elsewhere(self, endpoint: Endpoint) -> None:
        for other in self._endpoints:
            if other is not endpoint and not other.waiting:
                self._dispatch(other)

    def _reroute(self, endpoint: Endpoint) -> None:
        """Whoever waits there waits where it is better."""
        queue, self._queues[endpoint] = self._queues[endpoint], []
        waiters = [waiter for waiter in queue if not waiter.is_gone]
        for waiter in waiters:
            self._forget(waiter)
        changed = set()
        for waiter in waiters:
            better = self._router.find(waiter.session, waiter.failed, waiter.avoided) or endpoint
            self._put(waiter, better)
            changed.add(better)
        for other in changed - {endpoint}:
            self._dispatch(other)

    def _wake(self, endpoint: Endpoint, seconds: float) -> None:
        """Look again when its pause or its trouble is over."""
        loop = asyncio.get_running_loop()
        seconds = min(seconds, _LONGEST_TIMER)
        planned, timer = self._timers.get(endpoint, (math.inf, None))
        if (at := loop.time() + seconds) < planned:
            if timer is not None:
                timer.cancel()
            self._timers[endpoint] = at, loop.call_later(seconds, self._woken, endpoint)

    def _woken(self, endpoint: Endpoint) -> None:
        self._timers.pop(endpoint, None)
        self._dispatch(endpoint)


def _is_ready(endpoint: Endpoint, now: float) -> bool:
    return endpoint.up and endpoint.wait_before(now) <= 0
