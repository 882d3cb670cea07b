"""How many calls an endpoint gets at a time: a fixed number, or one that finds out what the endpoint bears.

Pure bookkeeping: whoever uses it tells the time, and does the waiting.
"""

from collections import deque

_SLOWER = 2.0  # times the usual latency, and the limit grows no more
_USUAL = 0.05  # how fast the usual latency follows
_RECENT = 0.3
_CUT = 0.5
_PAUSE = 2.0  # seconds without growth after a failure of the server
_KEPT = 1_000


class Limit:
    """The number of calls that may be under way, and when the next one may begin.

    It grows while calls succeed at the usual latency: doubling at first, then by one per round. A refusal (429) cuts
    it in half, once for all calls that were under way by then. `most` bounds it; if not `adaptive`, it stays there.
    """

    def __init__(self, most: int, *, adaptive: bool = True, start: int = 16) -> None:
        self.not_before = 0.0
        self.history: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._most = float(most)
        self._adaptive = adaptive
        self._now = float(min(start, most)) if adaptive else float(most)
        self._doubling = True
        self._usual = 0.0
        self._recent = 0.0
        self._cut_at = float("-inf")
        self._no_growth_before = 0.0

    @property
    def now(self) -> int:
        return int(self._now)

    def succeeded(self, began: float, ended: float) -> None:
        """A call that filled its place was answered."""
        latency = ended - began
        self._usual += (latency - self._usual) * _USUAL if self._usual else latency
        self._recent += (latency - self._recent) * _RECENT if self._recent else latency
        if not self._adaptive or ended < self._no_growth_before or began < self._cut_at:
            return
        if self._recent > _SLOWER * self._usual:
            self._doubling = False
            return
        self._set(ended, self._now + (1.0 if self._doubling else 1.0 / self._now))

    def refused(self, began: float, ended: float, wait: float | None) -> None:
        """The endpoint said that these are too many; `wait` is what it asked for, in seconds."""
        if wait is not None:
            self.not_before = max(self.not_before, ended + wait)
        if self._adaptive and began >= self._cut_at:
            self._doubling = False
            self._cut_at = ended
            self._set(ended, self._now * _CUT)

    def failed(self, ended: float) -> None:
        """The server is in trouble: no growth for a while."""
        self._doubling = False
        self._no_growth_before = ended + _PAUSE

    def _set(self, at: float, limit: float) -> None:
        limit = min(max(limit, 1.0), self._most)
        if int(limit) != int(self._now):
            self.history.append((at, limit))
        self._now = limit
