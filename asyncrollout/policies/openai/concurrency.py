"""How many calls an endpoint gets at a time, and when the next one may begin.

Pure bookkeeping: whoever uses it tells the time, and does the waiting.
"""

import math
from collections import deque

from asyncrollout.policies.openai.hill_climbing import HillClimber

FIRST_WAIT = 0.25
"""Seconds before the first retry; longer each time after that."""

_LONGEST_PAUSE = 8.0  # seconds, of our own; it is one call that tries again
_LEAST_WAIT = 1.0  # seconds; a server that says "at once" is not asked in a loop
_FULL = 0.9  # of the places in use
_KEPT = 1_000
_TOKENS_OF_A_CALL = 16  # what any call costs, in tokens of a reply
_PROMPT_TOKENS = 16  # of a prompt are read in the time of one of a reply


class ConcurrencyLimit:
    """The number of calls that may be under way, and when the next one may begin.

    If `adaptive`, it is what a `HillClimber` finds, up to `most`; else it is `most`, lowered by refusals (429).
    After a refusal all calls wait, one pause for the whole line; then one is let through, and more as calls succeed.
    `history` has pairs (time, limit), on the clock of whoever tells the time.
    """

    def __init__(self, most: int, *, adaptive: bool = True, start: int = 16) -> None:
        self.not_before = 0.0
        self.refusals = 0  # in a row
        self.history: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._adaptive = adaptive
        self._most = most
        self._climb = HillClimber(float(most), float(start if adaptive else most), by_throughput=adaptive)
        self._window = math.inf  # of calls in flight: opens slowly after a pause
        self._resumed_at = -math.inf
        self._is_paused = False  # until the first call after it

    @property
    def now(self) -> int:
        return int(self._climb.now) if self._adaptive else self._most

    @property
    def places(self) -> int:
        """What is allowed at present: less than the limit after refusals."""
        return max(int(min(self._climb.now, self._window)), 1)

    def has_room(self, in_flight: int, at: float) -> bool:
        """Whether another call may begin, beside those in flight."""
        if at < self.not_before:
            return False
        return in_flight < self._climb.now and (self._is_paused or in_flight < self._window)

    def admit(self, in_flight: int, at: float) -> bool:
        """Let another call begin, if there is room for it."""
        if not self.has_room(in_flight, at):
            return False
        if self._is_paused:
            self._is_paused = False
            self._resumed_at = at
            self._window = in_flight + 1.0
        return True

    def pause(self, until: float) -> None:
        """No call before then; afterwards one, and more as calls succeed."""
        self.not_before = max(self.not_before, until)
        self._is_paused = True

    def succeeded(self, began: float, ended: float, *, work: float = 1.0, in_flight: float = math.inf) -> None:
        """A call was answered; `work` is what it had to do, and `in_flight` counts it, too."""
        self.refusals = 0
        if self._window < math.inf and began >= self._resumed_at and not self._is_paused:
            self._window += 1.0
            if self._window >= self._climb.now:
                self._window = math.inf
        before = self._climb.now
        self._climb.succeeded(began, ended, work, is_full=in_flight >= _FULL * before)
        if self._climb.now != before:
            self.history.append((ended, self._climb.now))

    def refused(self, began: float, ended: float, wait: float | None, *, jitter: float = 1.0) -> bool:
        """The endpoint said that these are too many; `wait` is what it asked for, in seconds.

        True if it was the call that tried again after a pause: it may be this one alone that is refused.
        """
        is_trial = False
        if wait is not None:
            self.not_before = max(self.not_before, ended + wait)
        if began >= self._resumed_at and not self._is_paused:
            is_trial = self.refusals > 0
            own = min(FIRST_WAIT * 2.0**self.refusals, _LONGEST_PAUSE) * jitter
            self.refusals += 1
            self.pause(ended + (own if wait is None else min(own, _LEAST_WAIT)))
        before = self._climb.now
        self._climb.refused(began, ended)
        if self._climb.now != before:
            self.history.append((ended, self._climb.now))
        return is_trial

    def failed(self, ended: float) -> None:
        """The server is in trouble: no growth for a while."""
        self._climb.hold(ended)

    def bound(self, most: int) -> bool:
        """Keep below a bound that is found later; a fixed number cannot."""
        if self._adaptive and most >= 1:
            self._most = min(self._most, most)
            self._climb.bound(float(most))
        return self._most <= most


def work_of(prompt: float, completion: float) -> float:
    """What a call costs a server, in tokens of a reply."""
    return _TOKENS_OF_A_CALL + prompt / _PROMPT_TOKENS + completion
