"""The seam between the pool and its backends: a host is where envs live, a backend is a set of hosts."""

from collections import deque
from collections.abc import Awaitable, Collection, Sequence
from typing import Any, Protocol

import msgspec
from anyio.abc import TaskGroup

from asyncrollout.pool.wire.messages import WITHOUT_EPISODE, CallReply, Op
from asyncrollout.types import WorkerStats

CLOSE_GRACE = 5.0
"""Seconds that an env may take to close; one that takes longer is left to its end."""

LONG = 1.0
"""Seconds; a call that waits for so long is better made elsewhere."""

SOON = 0.05
"""Seconds; a host that is free so soon is as good as one that is idle."""

_RECENT = 1024


class HostLost(Exception):  # noqa: N818 (a signal inside the pool, never an error that a user sees)
    """A host went away before it answered.

    `suspects` is 0 if the call was not yet begun; else the number of calls that were at work, this one included.
    `from_outside` means that somebody else may have ended the host; `idle_kills` counts such ends in the whole pool of
    hosts at which no call was under way.
    """

    def __init__(
        self,
        kind: str,
        *,
        suspects: int = 0,
        cause: str = "",
        log: str = "",
        from_outside: bool = False,
        idle_kills: int = 0,
    ) -> None:
        super().__init__(kind)
        self.kind = kind  # "crash", "timeout", "memory", "moved", "recalled" or "closed"
        self.suspects = suspects
        self.cause = cause
        self.log = log
        self.from_outside = from_outside
        self.idle_kills = idle_kills

    @property
    def is_suspect(self) -> bool:
        """Whether this call was at work when the host went away."""
        return self.suspects > 0

    @property
    def is_sole_suspect(self) -> bool:
        """Whether no other call was: then nothing else in the host can be to blame."""
        return self.suspects == 1


class PoolLimits(msgspec.Struct, frozen=True):
    """Seconds and bytes that a call may take; after `soft` seconds, steps queued behind it may move elsewhere."""

    step: float
    reset: float
    memory: int | None = None

    @property
    def soft(self) -> float:
        return min(1.0, self.step / 2)

    @property
    def longest(self) -> float:
        return max(self.step, self.reset)

    def of(self, op: Op) -> float:
        if op is Op.REPLAY or op is Op.CLOSE:  # each part of a replay may be a reset or a step
            return self.longest
        return self.reset if op in WITHOUT_EPISODE else self.step


class Caller(Protocol):
    """The env that a call is for, as far as its host must know it to see which calls wait behind others."""

    id: int
    """By which its host knows it; those of later envs are larger."""

    step_work: float
    """Seconds of a host's time that a step is expected to take; 0 if it is too quick to matter."""

    @property
    def may_move(self) -> bool:
        """Whether a call of it that was not begun may be made elsewhere."""

    @property
    def may_be_recalled(self) -> bool:
        """Whether it may wait to be built by whichever host is free first."""

    @property
    def builds_slowly(self) -> bool:
        """Whether it is known to take long to build."""

    @property
    def resets_slowly(self) -> bool:
        """Whether it is known to take long to reset."""

    @property
    def is_new(self) -> bool:
        """Whether nobody knows how long it takes to build."""

    def work(self, op: Op) -> float:
        """Seconds of a host's time that a call is expected to take."""

    def detour(self, op: Op) -> float:
        """Seconds of work that it adds to make the call elsewhere: to build, reset and replay the env."""


class EnvHost(Protocol):
    """A worker process, from its start to its end, or the event loop's own thread."""

    load: float  # seconds that one step of each of its envs takes
    envs: int

    @property
    def rank(self) -> int: ...

    @property
    def usable(self) -> bool:
        """Whether it answers calls."""

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""

    @property
    def is_held_up(self) -> bool:
        """Whether one call has been at work for long."""

    def wait(self) -> float:
        """Seconds until a call that is sent now is expected to begin; what is quick counts for nothing."""

    def call(self, env_id: int, op: Op, payload: Any, *, caller: Caller | None = None) -> Awaitable[CallReply]:
        """Send a call. Its awaitable raises `HostLost` if the host goes away first, or if a better place is found."""

    def drop(self, env_id: int) -> None:
        """Close an env without waiting for the end of it."""


class Backend(Protocol):
    """Starts, replaces and stops hosts."""

    @property
    def hosts(self) -> Sequence[EnvHost]:
        """The usable ones."""

    @property
    def ranks(self) -> Collection[int]:
        """Of the hosts that are usable now or may be later."""

    async def start(self, tasks: TaskGroup) -> None: ...

    async def stop(self) -> None: ...

    async def wait_usable(self, rank: int | None, avoided: Collection[int] = ()) -> Sequence[EnvHost]:
        """The usable hosts (that of the rank), as soon as there is one; PoolError if there never will be.

        Without those of ranks to avoid, as long as there may be others.
        """

    async def wait_idle(self) -> None:
        """Until one of the hosts has nothing to do, as far as it is known."""

    def stats(self) -> list[WorkerStats]: ...

    def recent_seconds(self) -> list[float]: ...


class DurationWindow:
    """The durations of recent calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def extend(self, seconds: Sequence[float]) -> None:
        self.calls += len(seconds)
        self._recent.extend(seconds)

    def recent(self) -> list[float]:
        return list(self._recent)
