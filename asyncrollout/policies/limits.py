"""How many calls an endpoint gets at a time: a fixed number, or one that finds out what the endpoint bears.

Pure bookkeeping: whoever uses it tells the time, and does the waiting.
"""

from collections import deque

_SLOWER = 2.0  # times the best pace, and the limit grows no more
_FEWEST = 16.0  # calls over which the pace is averaged, or a round of them if that is more
_FORGETS = 3_600.0  # seconds in which the best pace is forgotten for the present one
_CUT = 0.5
_NEAR = 0.9  # of the limit that was refused last: from there on it grows slowly
_SLOWLY = 0.02
_PAUSE = 2.0  # seconds without growth after a failure of the server
_KEPT = 1_000


class Limit:
    """The number of calls that may be under way, and when the next one may begin.

    It grows while all places are in use and calls are answered at the best pace that was seen: doubling at first, then
    by one per round. A refusal (429) cuts it in half, once for all calls that were under way by then. `most` bounds
    it; if not `adaptive`, it stays there. `history` has pairs (time, limit), on the clock of whoever tells the time.
    """

    def __init__(self, most: int, *, adaptive: bool = True, start: int = 16) -> None:
        self.not_before = 0.0
        self.history: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._most = float(most)
        self._adaptive = adaptive
        self._now = float(min(start, most)) if adaptive else float(most)
        self._doubling = True
        self._best = self._recent = 0.0
        self._seen = 0.0
        self._wall = float("inf")
        self._cut_at = float("-inf")
        self._no_growth_before = 0.0

    @property
    def now(self) -> int:
        return int(self._now)

    def succeeded(self, began: float, ended: float, *, work: float = 1.0, is_full: bool = True) -> None:
        """A call was answered; `work` is what it had to do, and `is_full` whether all places were in use."""
        self._note(ended, (ended - began) / work)
        if not self._adaptive or not is_full or ended < self._no_growth_before or began < self._cut_at:
            return
        if self._recent > _SLOWER * self._best:
            self._doubling = False
            return
        if (ended - began) / work > _SLOWER * self._best:
            return  # no reason to grow by this one
        step = 1.0 if self._doubling else 1.0 / self._now
        self._set(ended, self._now + (step * _SLOWLY if self._now >= _NEAR * self._wall else step))

    def refused(self, began: float, ended: float, wait: float | None) -> None:
        """The endpoint said that these are too many; `wait` is what it asked for, in seconds."""
        if wait is not None:
            self.not_before = max(self.not_before, ended + wait)
        if self._adaptive and began >= self._cut_at:
            self._doubling = False
            self._cut_at = ended
            self._wall = self._now
            self._set(ended, self._now * _CUT)

    def failed(self, ended: float) -> None:
        """The server is in trouble: no growth for a while."""
        self._doubling = False
        self._no_growth_before = ended + _PAUSE

    def bound(self, most: int) -> bool:
        """Keep below a bound that is found later; a fixed number cannot."""
        if self._adaptive and most >= 1:
            self._most = min(self._most, float(most))
            self._now = min(self._now, self._most)
        return self._most <= most

    def _note(self, ended: float, pace: float) -> None:
        self._recent += (pace - self._recent) / max(self._now, _FEWEST) if self._recent else pace
        if not self._best or self._recent < self._best:
            self._best = self._recent
        else:
            self._best += (self._recent - self._best) * min((ended - self._seen) / _FORGETS, 1.0)
        self._seen = ended

    def _set(self, at: float, limit: float) -> None:
        limit = min(max(limit, 1.0), self._most)
        if int(limit) != int(self._now):
            self.history.append((at, limit))
        self._now = limit
