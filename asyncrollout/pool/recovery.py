"""What the envs of one pool share: limits, rules of recovery, and how long envs of each name usually take."""

from collections import deque

from asyncrollout.pool.blame import Acquittals
from asyncrollout.pool.hosts import SOON, PoolLimits
from asyncrollout.pool.quarantine import Retries
from asyncrollout.types import Recovery

GUESS = 0.2
"""Seconds that a build or a reset is expected to take before there was one."""

SMOOTHING = 0.3
_RECENT = 8


class TypicalSeconds:
    """Seconds that envs of one name took lately, to build, to reset and to step; a guess as long as none did."""

    def __init__(self) -> None:
        self.build = self.reset = GUESS
        self.step = 0.0
        self._builds: deque[float] = deque(maxlen=_RECENT)

    @property
    def is_new(self) -> bool:
        return not self._builds

    @property
    def is_built_slowly(self) -> bool:
        """Whether none was quick, of those that were built lately; the first one in a worker may import a lot."""
        return bool(self._builds) and min(self._builds) > SOON

    def add_build(self, seconds: float) -> None:
        self._builds.append(seconds)
        self.build = smooth(self.build, seconds)


class RecoveryRules:
    """What all envs of a pool have in common: their limits, whether and how often they are restored."""

    def __init__(self, limits: PoolLimits, recover: Recovery, max_restarts: int) -> None:
        self.limits = limits
        self.recover = recover
        self.max_restarts = max_restarts
        self.restored = 0
        self.acquittals = Acquittals()
        self.retries = Retries()
        self._usual: dict[str, TypicalSeconds] = {}

    def usual(self, name: str) -> TypicalSeconds:
        return self._usual.setdefault(name, TypicalSeconds())


def smooth(usual: float, latest: float) -> float:
    """The usual duration once the latest one counts; the first one replaces the guess."""
    return latest if usual == GUESS else usual + SMOOTHING * (latest - usual)
