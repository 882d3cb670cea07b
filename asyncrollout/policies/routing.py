"""Which of several servers gets a call."""

import time
from collections import OrderedDict
from collections.abc import Sequence

from asyncrollout.policies.endpoint import Endpoint

_SESSIONS_KEPT = 100_000
_LONG_REFUSAL = 1.0  # seconds, and a session looks for another server


class Router:
    """The same server for a whole session, as long as it is up, so that its cache of prefixes is of use."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._homes: OrderedDict[str, Endpoint] = OrderedDict()

    def find(self, session: str, failed: Endpoint | None = None) -> Endpoint | None:
        """The server for a call; rather another one than that which just `failed`. None if none has the weights."""
        now = time.monotonic()
        home = self._homes.get(session) if session else None
        if home is not None and home.up and home is not failed and home.wait_before(now) < _LONG_REFUSAL:
            self._homes.move_to_end(session)
            return home
        up = [endpoint for endpoint in self._endpoints if endpoint.up]
        others = [endpoint for endpoint in up if endpoint is not failed]
        may_be_up = others or up or [endpoint for endpoint in self._endpoints if endpoint.has_weights]
        if not may_be_up:
            return None
        best = min(
            may_be_up,
            key=lambda one: (one.wait_before(now), one.load / max(one.limit.now, 1), one.sessions),
        )
        if session and best is not home:
            self._move(session, home, best)
        return best

    def _move(self, session: str, home: Endpoint | None, best: Endpoint) -> None:
        if home is not None:
            home.sessions -= 1
        best.sessions += 1
        self._homes[session] = best
        self._homes.move_to_end(session)
        if len(self._homes) > _SESSIONS_KEPT:
            self._homes.popitem(last=False)[1].sessions -= 1
