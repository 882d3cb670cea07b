"""The adaptive concurrency limit: trials with more calls are adopted if more work gets done and none is refused.

Latency-based rules (TCP Vegas, Netflix's Gradient2) mistake a longer reply for a queue, and stop a batching server at
half of its throughput, where its latency has merely doubled. This one climbs on throughput itself, which by Little's
law is the calls in flight over the time per unit of work. A trial at twice the limit, as long as the noise demands,
needs no model of the server, and the next trial corrects a wrong verdict. `benchmarks/bench_limits.py` compares it with
the best fixed limit on many models of servers.
"""

import math
from typing import Literal

_FEWEST = 8  # calls that a verdict rests on, or a round of them if that is more
_MOST_ROUNDS = 8  # of a trial whose verdict stays in doubt
_UP, _DOWN = 2.0, 0.7  # times the limit, of a trial
_SMALLEST_STEP, _SMALLEST_IN_NOISE = 2.0 ** (1 / 8), 2.0 ** (1 / 4)  # after refusals, and where throughput decides
_GAINS = 1.04  # times the throughput, and twice the calls are worth it
_KEEPS = 0.98  # of the throughput, and fewer calls are enough
_AS_QUICK = 1.15  # times the time per work: calls beside twice as many are not slower
_LONGEST_QUIET = 4  # rounds between trials, and four times as many if the last one was refused
_UPS_PER_DOWN = 3  # trials; too many calls cost little, too few cost throughput
_CUTS = (0.95, 0.8, 0.5)  # by refusals in a row; a limit not yet known as good is cut in half
_HOLD, _BETWEEN_HOLDS = 2.0, 20.0  # seconds
_CLEARLY_WORSE = 0.9  # of the throughput, and a trial ends early

Trial = Literal["up", "down"]


class PaceEstimate:
    """Time per unit of work over a number of calls, and the variance of that estimate."""

    __slots__ = ("calls", "latencies", "squares", "work", "works", "works_squared")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.calls = 0
        self.latencies = self.work = self.squares = self.works = self.works_squared = 0.0

    def add(self, latency: float, work: float) -> None:
        self.calls += 1
        self.latencies += latency
        self.work += work
        self.squares += latency * latency
        self.works += latency * work
        self.works_squared += work * work

    @property
    def pace(self) -> float:
        return max(self.latencies, 1e-9) / self.work

    @property
    def variance(self) -> float:
        """Relative, of the pace as an estimate: a ratio of sums."""
        pace = self.pace
        residual = self.squares - 2 * pace * self.works + pace * pace * self.works_squared
        return max(residual, 0.0) / max(self.latencies, 1e-9) ** 2


class HillClimber:
    """The limit: `base`, or that of the current trial. Without `by_throughput`, only refusals lower it.

    After a change of the limit, a round of calls is left out: they began at the old one. Refusals show a hard wall, so
    steps towards it shrink; one refusal at a limit known as good may be chance, the second within a round cuts.
    """

    def __init__(self, most: float, start: float, *, by_throughput: bool) -> None:
        self.most = most
        self.base = self.current = min(start, most)
        self._by_throughput = by_throughput
        self._trial: Trial | None = None
        self._ups = 0  # that failed since the last trial downwards
        self._step = _UP
        self._is_walled = False  # the last trial upwards was refused
        self._wall = math.inf  # where
        self._set_at = -math.inf
        self._skip = 0.0  # calls until the server has settled at the present limit
        self._is_settled = True
        self._known = PaceEstimate()  # at the base
        self._tried = PaceEstimate()
        self._quiet = 1
        self._not_before = -math.inf
        self._is_good = False
        self._cuts = 0
        self._since_refusal: float = math.inf
        self._is_streak = True  # the last trial upwards was kept

    def succeeded(self, began: float, ended: float, work: float, *, is_full: bool) -> None:
        self._since_refusal += 1
        if self.base >= self.most and not self._by_throughput:
            self._is_good, self._cuts = True, 0
            return
        self._skip -= 1
        if began < self._set_at or not is_full:
            return
        paces = self._known if self._trial is None else self._tried
        if self._skip < 0 and not self._is_settled:
            self._is_settled = True
            paces.clear()
        paces.add(ended - began, work)
        if self._trial is None:
            if self._is_settled and paces.calls >= self._quiet * max(self.base, _FEWEST):
                self._is_good, self._cuts = True, 0
                if ended >= self._not_before:
                    self._try(ended)
        elif self._is_settled:
            self._judge(ended)
        else:
            self._judge_early(ended)

    def refused(self, began: float, ended: float) -> None:
        """One cut for all calls that were in flight when the limit was last set."""
        if began < self._set_at:
            return
        is_chance = self._since_refusal >= max(self.current, _FEWEST) and self._is_good
        self._since_refusal = 0
        if is_chance:  # the second one within a round counts
            return
        self._is_walled, self._wall = True, self.current
        self._shorten_step(_SMALLEST_STEP)
        if self._trial == "up":
            self._give_up(ended)
            return
        cut = _CUTS[min(self._cuts, len(_CUTS) - 1)] if self._is_good else _CUTS[-1]
        self._cuts += 1
        self._quiet = 1
        self.base = max(float(int(self.base * cut)), 1.0)
        self._return(ended)

    def hold(self, at: float) -> None:
        """No trial for some time; failures that keep coming do not prevent trials forever."""
        if at >= self._not_before + _BETWEEN_HOLDS:
            self._not_before = at + _HOLD

    def bound(self, most: float) -> None:
        self.most = min(self.most, most)
        self.base, self.current = min(self.base, most), min(self.current, most)

    def _try(self, at: float) -> None:
        kind: Trial = "down" if self._ups >= _UPS_PER_DOWN or self.base >= self.most else "up"
        level = self._above() if kind == "up" else self.base * _DOWN
        if level < 1.0:
            self._ups = 0
            self._known = PaceEstimate()
            return
        self._trial, self._tried = kind, PaceEstimate()
        self._set(at, level)

    def _shorten_step(self, least: float) -> None:
        self._step = min(self._step, max(math.sqrt(self._step), least))

    def _lengthen_step(self) -> None:
        if self._is_walled and self.base >= self._wall:  # it has given way
            self._is_walled = False
            self._step = min(self._step**4, _UP)
        elif self._is_streak:
            self._step = min(self._step**2, _UP)
        self._is_streak = True

    def _above(self) -> float:
        return min(max(self.base * self._step, self.base + 1.0), self.most)

    def _judge_early(self, at: float) -> None:
        """A verdict before the server has settled, if it is clear."""
        tried, known = self._tried, self._known
        if self._trial != "up" or not self._by_throughput or tried.calls < _FEWEST:
            return
        if tried.calls >= self.base / 2 and not self._is_walled and tried.pace < _AS_QUICK * known.pace:
            self._adopt(at)
        elif self._gain() * (1.0 + 2.0 * self._doubt()) < _CLEARLY_WORSE:
            self._shorten_step(_SMALLEST_IN_NOISE)
            self._give_up(at)

    def _gain(self) -> float:
        """Throughput relative to that at the base, by Little's law."""
        return self.current / self.base * self._known.pace / self._tried.pace

    def _doubt(self) -> float:
        return math.sqrt(self._known.variance + self._tried.variance)

    def _judge(self, at: float) -> None:
        tried, rounds = self._tried, max(self.current, _FEWEST)
        if tried.calls < rounds:
            return
        if not self._by_throughput:
            self._adopt(at)
            return
        gain = self._gain()
        doubt = gain * self._doubt()
        wanted = 1.0 + (_GAINS - 1.0) * math.log2(self.current / self.base) if self._trial == "up" else _KEEPS
        is_in_doubt = abs(gain - wanted) < doubt
        if is_in_doubt and tried.calls < _MOST_ROUNDS * rounds:
            return
        if gain > wanted and not (is_in_doubt and self._trial == "down"):
            self._adopt(at)
            return
        if self._trial == "up" and gain + 2.0 * doubt < 1.0:  # the best is between the two
            self._shorten_step(_SMALLEST_IN_NOISE)
        self._give_up(at)

    def _adopt(self, at: float) -> None:
        """Make the trial the new base; after a trial upwards, try more at once."""
        is_up = self._trial == "up"
        self.base = self.current
        self._trial = None
        self._known = self._tried
        self._is_good, self._cuts = True, 0
        self._ups = 0 if is_up else _UPS_PER_DOWN
        self._is_settled = True
        self._quiet = 1
        if is_up:
            self._lengthen_step()
            if self.base < self.most and at >= self._not_before:
                self._try(at)

    def _give_up(self, at: float) -> None:
        if self._trial == "down":
            self._ups = 0
        elif not self._is_walled:  # else it is the server that says how many
            self._ups += 1
        self._is_streak = self._is_streak and self._trial != "up"
        self._quiet = min(2 * self._quiet, 4 * _LONGEST_QUIET if self._is_walled else _LONGEST_QUIET)
        self._return(at)

    def _return(self, at: float) -> None:
        self._trial = None
        self._known = PaceEstimate()
        self._set(at, self.base)

    def _set(self, at: float, level: float) -> None:
        self.current = float(int(min(level, self.most)))
        self._set_at = at
        self._skip, self._is_settled = self.current, False
