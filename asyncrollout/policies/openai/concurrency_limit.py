"""How many calls a server gets at a time, and when the next one may start.

Pure bookkeeping without a clock: the caller passes the time and does the waiting, so that tests and benchmarks run the
same code in virtual time.
"""

import math
from collections import deque

from asyncrollout.policies.openai.hill_climbing import HillClimber

FIRST_WAIT = 0.25
"""Seconds before the first retry; longer each time after that."""

_LONGEST_PAUSE = 8.0  # seconds between our own trials, which are of one call
_LEAST_WAIT = 1.0  # seconds; a Retry-After of 0 must not cause a loop
_FULL = 0.9  # of the limit in use: only then does throughput say something about the limit
_KEPT = 1_000
_TOKENS_OF_A_CALL = 16  # what any call costs, in completion tokens
_PROMPT_TOKENS = 16  # are read in the time in which one is sampled


class ConcurrencyLimit:
    """The number of calls that may be in flight, and when the next one may start.

    If `adaptive`, it is what a `HillClimber` finds, up to `most`; else it is `most`, lowered by refusals (429).
    After a refusal all calls wait, one pause for the whole queue. Then a single call is the trial, and a window opens
    by one with each success, as in TCP after a loss: if each call came back on its own, all would return at the same
    moment and be refused again. `history` has pairs (time, limit), on the caller's clock.
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
    def current(self) -> int:
        return int(self._climb.current) if self._adaptive else self._most

    @property
    def slots(self) -> int:
        """What is allowed now: less than the limit for some time after refusals."""
        return max(int(min(self._climb.current, self._window)), 1)

    def has_room(self, in_flight: int, at: float) -> bool:
        """Whether another call may start, beside those in flight."""
        if at < self.not_before:
            return False
        return in_flight < self._climb.current and (self._is_paused or in_flight < self._window)

    def admit(self, in_flight: int, at: float) -> bool:
        """Start another call, if there is room for it."""
        if not self.has_room(in_flight, at):
            return False
        if self._is_paused:
            self._is_paused = False
            self._resumed_at = at
            self._window = in_flight + 1.0
        return True

    def pause(self, until: float) -> None:
        """No call before `until`; then one, and more as calls succeed."""
        self.not_before = max(self.not_before, until)
        self._is_paused = True

    def succeeded(self, began: float, ended: float, *, work: float = 1.0, in_flight: float = math.inf) -> None:
        """A call succeeded; `work` is what it cost the server, and `in_flight` includes it."""
        self.refusals = 0
        if self._window < math.inf and began >= self._resumed_at and not self._is_paused:
            self._window += 1.0
            if self._window >= self._climb.current:
                self._window = math.inf
        before = self._climb.current
        self._climb.succeeded(began, ended, work, is_full=in_flight >= _FULL * before)
        if self._climb.current != before:
            self.history.append((ended, self._climb.current))

    def refused(self, began: float, ended: float, wait: float | None, *, jitter: float = 1.0) -> bool:
        """The server returned 429; `wait` is its Retry-After, in seconds.

        True if this was the trial after a pause: perhaps only this call is refused, so another should try next.
        """
        is_trial = False
        if wait is not None:
            self.not_before = max(self.not_before, ended + wait)
        if began >= self._resumed_at and not self._is_paused:
            is_trial = self.refusals > 0
            own = min(FIRST_WAIT * 2.0**self.refusals, _LONGEST_PAUSE) * jitter
            self.refusals += 1
            self.pause(ended + (own if wait is None else min(own, _LEAST_WAIT)))
        before = self._climb.current
        self._climb.refused(began, ended)
        if self._climb.current != before:
            self.history.append((ended, self._climb.current))
        return is_trial

    def failed(self, ended: float) -> None:
        """A call failed (5xx): no trial for some time."""
        self._climb.hold(ended)

    def bound(self, most: int) -> bool:
        """Lower the maximum after the start; False for a fixed limit above it, which cannot be lowered."""
        if self._adaptive and most >= 1:
            self._most = min(self._most, most)
            self._climb.bound(float(most))
        return self._most <= most


def work_of(prompt: float, completion: float) -> float:
    """What a call costs a server, in completion tokens."""
    return _TOKENS_OF_A_CALL + prompt / _PROMPT_TOKENS + completion
