"""The ways in which rollouts can be collected, and which of them to take, by what each took so far."""

from collections import deque
from collections.abc import Hashable, Sequence
from enum import StrEnum
from math import inf
from statistics import median
from typing import NamedTuple

_REMEMBERED = 3  # measurements of each way: the machine may have become busy or idle meanwhile
_LOOKING = 0.01  # share of the time that may be lost by looking at a slower way
_FIRST_PAUSE, _LAST_PAUSE = 8, 128  # calls between two looks at a slower way
_SUDDEN = 1.25  # a way took so many times as long as before, or as little: something has changed
_CLEAR_GAIN = 1.25  # over the best way: a whole call is tried for no less
_SURE_GAIN = 2.0  # of seconds of a processor to those by the clock: two threads of a core may run at half speed each
_ROUND_TRIP = 20e-6  # seconds; no step comes back from a worker sooner


class Way(StrEnum):
    """Who plays: copies of the agent in the workers; the agent here, in the workers' envs; one env here."""

    WORKERS = "workers"
    HERE = "here"
    SEQUENTIAL = "sequential"


class WayShare(NamedTuple):
    """How many rollouts of a call are played in which way."""

    way: Way
    rollouts: int


class Took(NamedTuple):
    """What a share took, in seconds: by the clock, and of its rollouts added up."""

    steps: int
    seconds: float
    worked: float
    """Agent and env, by the clock where they are."""
    acted: float
    """The agent alone."""
    computed: float = 0.0
    """Agent and env on a processor; 0 where this is not known."""


class WayChooser:
    """Takes the way that is expected to be fastest, by the median of its last measurements.

    One rollout shows how fast one env here is; other ways are looked at for a whole call. A slower way is looked at
    again after 8 calls, then after 16, 32 and so on up to 128, and not before what this is expected to lose is 1% of
    the time since. When a way suddenly takes longer, or less long, the pauses begin anew; if it takes longer than one
    env here would have, that is looked at in the next call.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._costs: dict[Way, deque[float]] = {}  # seconds for a step of as many rollouts as are played at once
        self._took: dict[Way, Took] = {}
        self._length = 1.0  # steps of a rollout
        self._credit = dict.fromkeys(Way, 0.0)
        self._calls = dict.fromkeys(Way, 0)  # since a way was played
        self._pauses = dict.fromkeys(Way, _FIRST_PAUSE)
        self._is_behind = False  # one env here would have been faster in the last call

    def choose(self, ways: Sequence[Way], rollouts: int) -> list[WayShare]:
        """How to play so many rollouts, in some of these ways, the first of which is tried first."""
        tried = [way for way in ways if way in self._costs]
        if not tried:
            return [WayShare(ways[0], rollouts)]
        best = min(tried, key=lambda way: self._expected(way, rollouts))
        look = self._next_look(ways, best, rollouts)
        if look is None:
            return [WayShare(best, rollouts)]
        if look is Way.SEQUENTIAL and rollouts > 1:
            return [WayShare(look, 1), WayShare(best, rollouts - 1)]
        return [WayShare(look, rollouts)]

    def record(self, share: WayShare, took: Took) -> None:
        """What a share of a call took. Where envs were idle, this says nothing of the way."""
        for way in Way:
            self._credit[way] = 0.0 if way is share.way else self._credit[way] + _LOOKING * took.seconds
            self._calls[way] = 0 if way is share.way else self._calls[way] + 1
        if share.way is not Way.SEQUENTIAL and share.rollouts < self._at_once:
            return
        self._length = took.steps / share.rollouts
        cost = took.seconds / (self._length * self._rounds(*share))
        costs = self._costs.setdefault(share.way, deque(maxlen=_REMEMBERED))
        change = cost / median(costs) if costs else 1.0
        if not 1 / _SUDDEN <= change <= _SUDDEN:
            self._pauses = dict.fromkeys(Way, _FIRST_PAUSE)
        self._is_behind = change > _SUDDEN and took.seconds > self._expected(Way.SEQUENTIAL, share.rollouts)
        costs.append(cost)
        self._took[share.way] = took

    def _next_look(self, ways: Sequence[Way], best: Way, rollouts: int) -> Way | None:
        """Another way than the best one, if it is time to look at it."""
        others = sorted((way for way in ways if way is not best), key=lambda way: way is not Way.SEQUENTIAL)
        for way in others:
            if way not in self._costs and self._is_promising(way, best, rollouts):
                return way
        known = [way for way in others if way in self._costs]
        if self._is_behind and Way.SEQUENTIAL in known:
            return Way.SEQUENTIAL
        for way in known:
            if self._last_seconds(way, rollouts) < self._expected(best, rollouts):  # once more, to be sure
                return way
            if self._calls[way] >= self._pauses[way] and self._credit[way] >= self._loss(way, best, rollouts):
                self._pauses[way] = min(2 * self._pauses[way], _LAST_PAUSE)
                return way
        return None

    def _is_promising(self, way: Way, best: Way, rollouts: int) -> bool:
        """Whether a way that was never tried could be faster than the best one."""
        took = self._took[best]
        if way is Way.WORKERS:
            return True
        if way is Way.SEQUENTIAL:  # one env here would take at least half of these seconds of a processor
            return took.computed < _SURE_GAIN * took.seconds
        acted, worked = took.acted / took.steps + _ROUND_TRIP, took.worked / took.steps + _ROUND_TRIP
        ideal = max(acted * self._at_once, worked) * self._length * self._rounds(way, rollouts)
        return ideal * _CLEAR_GAIN < self._expected(best, rollouts)

    def _loss(self, way: Way, best: Way, rollouts: int) -> float:
        """The seconds that a look is expected to cost, by what the way took last."""
        looked = 1 if way is Way.SEQUENTIAL else rollouts
        seconds = self._last_seconds(way, looked)
        return seconds + self._expected(best, rollouts - looked) - self._expected(best, rollouts)

    def _expected(self, way: Way, rollouts: int) -> float:
        costs = self._costs.get(way)
        return inf if costs is None else median(costs) * self._length * self._rounds(way, rollouts)

    def _last_seconds(self, way: Way, rollouts: int) -> float:
        return self._costs[way][-1] * self._length * self._rounds(way, rollouts)

    def _rounds(self, way: Way, rollouts: int) -> int:
        """How many rollouts are played one after the other."""
        return rollouts if way is Way.SEQUENTIAL else -(-rollouts // self._at_once)


class WayMemory:
    """What is known of the ways to collect from one pool: how fast they are, and which agents cannot act in workers."""

    def __init__(self) -> None:
        self.refusals: dict[Hashable, str] = {}
        self.proven: set[Hashable] = set()
        self._choosers: dict[Hashable, WayChooser] = {}

    def chooser(self, kind: Hashable, rollouts: int, envs: int) -> WayChooser:
        """For calls of about so many rollouts: what is done once in a call weighs more in a small one."""
        at_once = min(rollouts, envs)
        size = (rollouts // at_once).bit_length()
        return self._choosers.setdefault((kind, at_once, size), WayChooser(at_once))
