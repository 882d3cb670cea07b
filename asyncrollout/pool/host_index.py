"""The least loaded of very many hosts, without a look at each of them."""

import heapq
import itertools
import time
from collections.abc import Sequence

from asyncrollout.pool.hosts import EnvHost

MANY_HOSTS = 64
"""So many are looked at one by one: that is exact, and costs little."""

_RENEW_AFTER = 1.0  # seconds; loads that have shrunk meanwhile are found again then
_LOOKS = 16  # hosts that are looked at where the first ones are held up
_Key = tuple[float, int]


class HostIndex:
    """Hosts by load and number of envs, as far as they are known: keys that have grown are corrected when they come up.

    A host whose envs leave it is added again at once, and all are sorted anew each second.
    """

    def __init__(self) -> None:
        self.mean_load = 0.0
        """Of an env, when all were sorted last."""
        self._hosts: Sequence[EnvHost] = ()
        self._heap: list[tuple[_Key, int, EnvHost]] = []
        self._order = itertools.count()
        self._renewed = float("-inf")

    def least_loaded(self, hosts: Sequence[EnvHost], *, soon: float) -> EnvHost:
        """One that is free soon, as lightly loaded as possible; if the first ones are all held up, the soonest."""
        now = time.monotonic()
        if hosts is not self._hosts or now - self._renewed > _RENEW_AFTER:
            self._renew(hosts, now)
        seen: list[EnvHost] = []
        best: tuple[float, EnvHost] | None = None
        while self._heap and len(seen) < _LOOKS:
            host = self._first()
            if host is None:
                break
            seen.append(host)
            wait = host.wait()
            if wait <= soon:
                best = (0.0, host)
                break
            if best is None or wait < best[0]:
                best = (wait, host)
            heapq.heappop(self._heap)
        for host in seen if best is None or best[0] else seen[:-1]:  # the last one is still there
            self.add(host)
        assert best is not None, "a host that is usable is found"
        return best[1]

    def add(self, host: EnvHost) -> None:
        """It has less to do than before."""
        heapq.heappush(self._heap, (_key(host), next(self._order), host))

    def _first(self) -> EnvHost | None:
        """The first one by what it has to do now; it stays where it is."""
        while self._heap:
            key, _, host = self._heap[0]
            if not host.usable:
                heapq.heappop(self._heap)
                continue
            current = _key(host)
            if current <= key:
                return host
            heapq.heapreplace(self._heap, (current, next(self._order), host))
        return None

    def _renew(self, hosts: Sequence[EnvHost], now: float) -> None:
        self._hosts, self._renewed = hosts, now
        self._heap = [(_key(host), next(self._order), host) for host in hosts]
        heapq.heapify(self._heap)
        envs = sum(host.envs for host in hosts)
        self.mean_load = sum(host.load for host in hosts) / envs if envs else 0.0


def _key(host: EnvHost) -> _Key:
    return round(host.load, 7), host.envs
