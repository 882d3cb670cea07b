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
_LONG_REFUSAL = 1.0  # seconds of a pause after which a session moves to another server
_MOST_REFUSALS = 2  # in a row after which it moves
_LONGEST_TIMER = 3_600.0


class _Affinity:
    """A session's server, and how often in a row it has refused the session."""

    __slots__ = ("endpoint", "refusals")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.refusals = 0


class Router:
    """Keeps a session with one server, and finds the least loaded one for a new session.

    Each turn of a session repeats the prompt of the turn before, so the server that has it in its prefix cache reads
    only what is new. Moving a session costs a whole prefill: while its server is paused by a short refusal, single
    calls go elsewhere and the session stays; it moves after two refusals in a row, or when the server is lost.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._only = endpoints[0] if len(endpoints) == 1 else None
        self._affinities: OrderedDict[str, _Affinity] = OrderedDict()

    def find(self, session: str, failed: Endpoint | None = None, avoided: Collection[Endpoint] = ()) -> Endpoint | None:
        """The server for a call: preferably not the one that just `failed`, never an avoided one.

        None if no server has the current weights.
        """
        if self._only is not None and self._only.up and not avoided:
            return self._only
        now = time.monotonic()
        affinity = self._affinities.get(session) if session else None
        server = None if affinity is None else affinity.endpoint
        stays = server is not None and server.up and server is not failed and server not in avoided
        if stays and server is not None and server.wait_before(now) <= 0:
            self._affinities.move_to_end(session)
            return server
        best = self._best(now, failed, avoided)
        if best is None or not session or best is server:
            return best
        is_guest = stays and affinity is not None and affinity.refusals < _MOST_REFUSALS
        if not is_guest or (server is not None and server.wait_before(now) >= _LONG_REFUSAL):
            self._move(session, affinity, best)
        return best

    def note_refusal(self, session: str, endpoint: Endpoint) -> None:
        affinity = self._affinities.get(session)
        if affinity is not None and affinity.endpoint is endpoint:
            affinity.refusals += 1

    def note_success(self, session: str, endpoint: Endpoint) -> None:
        affinity = self._affinities.get(session)
        if affinity is not None and affinity.refusals and affinity.endpoint is endpoint:
            affinity.refusals = 0

    def _best(self, now: float, failed: Endpoint | None, avoided: Collection[Endpoint]) -> Endpoint | None:
        allowed = [endpoint for endpoint in self._endpoints if endpoint not in avoided]
        up = [endpoint for endpoint in allowed if endpoint.up]
        others = [endpoint for endpoint in up if endpoint is not failed]
        may_be_up = others or up or [endpoint for endpoint in allowed if endpoint.has_weights]
        if len(may_be_up) <= 1:
            return may_be_up[0] if may_be_up else None
        return min(may_be_up, key=lambda one: one.reluctance(now))

    def _move(self, session: str, affinity: _Affinity | None, best: Endpoint) -> None:
        if affinity is not None:
            affinity.endpoint.sessions -= 1
        best.sessions += 1
        self._affinities[session] = _Affinity(best)
        self._affinities.move_to_end(session)
        if len(self._affinities) > _SESSIONS_KEPT:
            self._affinities.popitem(last=False)[1].endpoint.sessions -= 1


class QueuedRequest:
    """A call in the queue of one server; another that has room first may take it."""

    __slots__ = ("admitted", "avoided", "failed", "is_withdrawn", "number", "place", "queue", "session")

    def __init__(self, number: int, session: str, failed: Endpoint | None, avoided: Collection[Endpoint]) -> None:
        self.number = number
        self.session = session
        self.failed = failed
        self.avoided = avoided
        self.admitted = anyio.Event()
        self.queue: Endpoint | None = None
        self.place: Endpoint | None = None
        self.is_withdrawn = False

    def __lt__(self, other: "QueuedRequest") -> bool:
        return self.number < other.number


class RequestQueue:
    """Calls that wait for a place: between `enter` and `leave` a call holds one of a server's.

    Each server has a queue of its own, so that sessions stay with their server. A server with room and an empty queue
    takes the oldest call of all others: idle capacity is worth more than a warm prefix cache. Order is by age, not by
    arrival, so a call that waits again after a refusal is not overtaken by new ones. Places are assigned, never raced
    for: whoever is woken has one. A waiting call holds nothing, and its rollout's clock stands still.
    """

    def __init__(self, endpoints: Sequence[Endpoint], router: Router) -> None:
        self._endpoints = endpoints
        self._router = router
        self._queues: dict[Endpoint, list[QueuedRequest]] = {endpoint: [] for endpoint in endpoints}
        self._waiting = 0
        self._timers: dict[Endpoint, tuple[float, asyncio.TimerHandle]] = {}

    def enter_now(self, endpoint: Endpoint) -> bool:
        """Take a place if one is free and no call waits for it."""
        if endpoint.waiting or not endpoint.limit.admit(endpoint.in_flight, time.monotonic()):
            return False
        endpoint.in_flight += 1
        return True

    async def enter(self, waiter: QueuedRequest, endpoint: Endpoint) -> Endpoint:
        """Wait for a place at this server, or at any other that has room first."""
        self._put(waiter, endpoint)
        self._dispatch(endpoint)
        if waiter.place is None:
            self._offer_elsewhere(endpoint)
        is_admitted = False
        try:
            if waiter.place is None:
                with held_back():
                    await waiter.admitted.wait()
            is_admitted = True
        finally:
            if not is_admitted:
                self._withdraw(waiter)
        assert waiter.place is not None
        return waiter.place

    def leave(self, endpoint: Endpoint) -> None:
        endpoint.in_flight -= 1
        if self._waiting:
            self.update(endpoint)

    def update(self, endpoint: Endpoint) -> None:
        """Reassign its queue after a change: it has room, is paused, or was lost."""
        now = time.monotonic()
        is_stuck = endpoint.waiting > 0 and not _is_ready(endpoint, now)
        if is_stuck and any(_is_ready(other, now) for other in self._endpoints):  # else there is nowhere better
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
        waiter.queue = endpoint
        endpoint.waiting += 1
        self._waiting += 1
        heapq.heappush(self._queues[endpoint], waiter)

    def _withdraw(self, waiter: QueuedRequest) -> None:
        if waiter.place is not None:
            self.leave(waiter.place)
            return
        waiter.is_withdrawn = True
        self._forget(waiter)
        assert waiter.queue is not None
        queue = self._queues[waiter.queue]
        if len(queue) > 2 * waiter.queue.waiting:
            queue[:] = [other for other in queue if not other.is_withdrawn]
            heapq.heapify(queue)

    def _forget(self, waiter: QueuedRequest) -> None:
        assert waiter.queue is not None
        waiter.queue.waiting -= 1
        self._waiting -= 1

    def _dispatch(self, endpoint: Endpoint) -> None:
        """Assign the places that it has."""
        limit, now = endpoint.limit, time.monotonic()
        while self._waiting:
            if now < limit.not_before:
                self._wake(endpoint, limit.not_before - now)
                return
            if not limit.has_room(endpoint.in_flight, now):
                return
            if (waiter := self._next(endpoint)) is None:
                if endpoint.up and now < endpoint.backoff_until:
                    self._wake(endpoint, endpoint.backoff_until - now)
                return
            limit.admit(endpoint.in_flight, now)
            heapq.heappop(self._queues[waiter.queue or endpoint])
            self._forget(waiter)
            endpoint.in_flight += 1
            waiter.place = endpoint
            waiter.admitted.set()

    def _next(self, endpoint: Endpoint) -> QueuedRequest | None:
        """The oldest call of its own queue, else of all others that may go there."""
        own = self._first(endpoint)
        if own is not None or not endpoint.up or time.monotonic() < endpoint.backoff_until:
            return own
        firsts = [self._first(other) for other in self._endpoints if other.waiting]
        return min((one for one in firsts if one is not None and endpoint not in one.avoided), default=None)

    def _first(self, endpoint: Endpoint) -> QueuedRequest | None:
        queue = self._queues[endpoint]
        while queue and queue[0].is_withdrawn:
            heapq.heappop(queue)
        return queue[0] if queue else None

    def _offer_elsewhere(self, endpoint: Endpoint) -> None:
        for other in self._endpoints:
            if other is not endpoint and not other.waiting:
                self._dispatch(other)

    def _reroute(self, endpoint: Endpoint) -> None:
        """Move the calls that wait there to better servers."""
        queue, self._queues[endpoint] = self._queues[endpoint], []
        waiters = [waiter for waiter in queue if not waiter.is_withdrawn]
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
        """Dispatch again when its pause or its backoff is over."""
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
