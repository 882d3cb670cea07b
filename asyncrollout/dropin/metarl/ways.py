"""The ways in which rollouts can be collected, and which of them to take, by what each took so far."""

from collections import deque
from collections.abc import Hashable, Sequence
from enum import StrEnum
from statistics import median

_REMEMBERED = 5  # measurements of each way: the machine may have become busy or idle meanwhile
_CLEAR_GAIN = 1.25  # over a rollout alone: then no other way is tried
_FIRST_RETRY, _LAST_RETRY = 8, 1024  # calls


class Way(StrEnum):
    """Who plays: copies of the agent in the workers; the agent here, in the workers' envs; one env here."""

    WORKERS = "workers"
    HERE = "here"
    SEQUENTIAL = "sequential"


class WayChooser:
    """Takes the fastest way, by the median of its last measurements.

    The next way is tried as long as none is clearly faster than agent and env alone would be. Slower ways are tried
    again after 8 calls, then after 16, 32 and so on: what is lost by looking becomes ever less.
    """

    def __init__(self) -> None:
        self._paces: dict[Way, deque[float]] = {}
        self._alone: deque[float] = deque(maxlen=_REMEMBERED)
        self._pause = _FIRST_RETRY
        self._left = self._pause

    def choose(self, ways: Sequence[Way]) -> Way:
        """One of these, the first of which is tried first."""
        tried = sorted((way for way in ways if way in self._paces), key=self.pace)
        untried = [way for way in ways if way not in self._paces]
        if not tried or (untried and self.pace(tried[0]) * _CLEAR_GAIN > median(self._alone)):
            return untried[0]
        self._left -= 1
        if self._left < 0 and len(tried) > 1:
            self._pause = min(2 * self._pause, _LAST_RETRY)
            self._left = self._pause
            return tried[1]
        return tried[0]

    def record(self, way: Way, steps: int, seconds: float, worked: float) -> None:
        """What a call took; `worked` is the time of agent and env alone, added up over all rollouts."""
        self._paces.setdefault(way, deque(maxlen=_REMEMBERED)).append(seconds / steps)
        self._alone.append(worked / steps)

    def pace(self, way: Way) -> float:
        """Seconds per step."""
        return median(self._paces[way])


class WayMemory:
    """What is known of the ways to collect from one pool: how fast they are, and which agents cannot act in workers."""

    def __init__(self) -> None:
        self.refusals: dict[Hashable, str] = {}
        self.proven: set[Hashable] = set()
        self._choosers: dict[Hashable, WayChooser] = {}

    def chooser(self, kind: Hashable, at_once: int) -> WayChooser:
        return self._choosers.setdefault((kind, at_once), WayChooser())
