"""Which of several servers gets a call."""

import time
from collections import OrderedDict
from collections.abc import Collection, Sequence

from asyncrollout.policies.openai.endpoint import Endpoint

_SESSIONS_KEPT = 100_000
_LONG_REFUSAL = 1.0  # seconds, and a session looks for another server
_REFUSALS = 2  # in a row, and it does so, too


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
