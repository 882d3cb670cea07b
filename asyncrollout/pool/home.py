"""The seam between the pool and its backends: a home is where envs live, a backend is a set of homes."""

from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import msgspec
from anyio.abc import TaskGroup

from asyncrollout.pool.wire import WITHOUT_EPISODE, Op
from asyncrollout.types import WorkerStats

Reply = Sequence[Any]
"""Call id, failure or None, value, info, digest or None, seconds of work, snapshot or None."""

_RECENT = 1024


class Lost(Exception):  # noqa: N818 (a signal inside the pool, never an error that a user sees)
    """A home went away before it answered.

    `suspects` is 0 if the call was not yet begun; else the number of calls that were under way, this one included.
    """

    def __init__(self, kind: str, *, suspects: int = 0, cause: str = "", log: str = "") -> None:
        super().__init__(kind)
        self.kind = kind  # "crash", "timeout", "memory", "moved" or "closed"
        self.suspects = suspects
        self.cause = cause
        self.log = log


class Limits(msgspec.Struct, frozen=True):
    """Seconds and bytes that a call may take; after `soft` seconds, calls queued behind it may move elsewhere."""

    step: float
    reset: float
    memory: int | None = None

    @property
    def soft(self) -> float:
        return min(1.0, self.step / 2)

    def of(self, op: Op) -> float:
        return self.reset if op in WITHOUT_EPISODE else self.step


class Home(Protocol):
    """A worker process, from its start to its end, or the event loop's own thread."""

    load: float  # seconds that one step of each of its envs takes
    envs: int

    @property
    def rank(self) -> int: ...

    @property
    def usable(self) -> bool:
        """Whether it answers calls."""

    @property
    def stuck(self) -> bool:
        """Whether a slow step holds up what is queued behind it."""

    def call(self, env_id: int, op: Op, payload: Any, *, movable: bool = False) -> Awaitable[Reply]:
        """Send a call. Its awaitable raises `Lost` if the home goes away first, or if a movable call waits too long."""

    def drop(self, env_id: int) -> None:
        """Close an env without waiting for the end of it."""


class Backend(Protocol):
    """Starts, replaces and stops homes."""

    @property
    def homes(self) -> Sequence[Home]:
        """The usable ones."""

    async def start(self, tasks: TaskGroup) -> None: ...

    async def stop(self) -> None: ...

    async def wait_usable(self, rank: int | None) -> Sequence[Home]:
        """The usable homes (that of the rank), as soon as there is one; PoolError if there never will be."""

    def stats(self) -> list[WorkerStats]: ...

    def recent_seconds(self) -> list[float]: ...


class Clock:
    """The durations of recent calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def extend(self, seconds: Sequence[float]) -> None:
        self.calls += len(seconds)
        self._recent.extend(seconds)

    def recent(self) -> list[float]:
        return list(self._recent)
