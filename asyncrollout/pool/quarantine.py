"""Separates the suspects of a worker's death, and isolates kinds of envs that keep killing workers."""

import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from asyncrollout.logs import get_logger

log = get_logger(__name__)

_WHOLE = 1 + 1e-9  # of thirds, say, the sum is not exact
_DEATHS = 5
_SOON = 60.0  # seconds in which so many deaths are too many
_QUIET = 60.0  # seconds without a death after which a kind of env may live anywhere again


class Retries:
    """Bounds how many suspects of workers' deaths are tried again at a time."""

    def __init__(self) -> None:
        self._used = 0.0
        self._first = anyio.Lock()
        self._left = anyio.Event()

    @asynccontextmanager
    async def share(self, count: int) -> AsyncIterator[None]:
        """A place beside at most so many less one."""
        part = 1 / count
        async with self._first:
            while self._used + part > _WHOLE:
                self._left = anyio.Event()
                await self._left.wait()
            self._used += part
        try:
            yield
        finally:
            self._used -= part
            self._left.set()


class Quarantine:
    """Names of envs that killed several workers within a minute, and the rank of the worker that they are kept on.

    They have the worker to themselves until they were quiet for a minute, so that other envs need not be restored again
    and again.
    """

    def __init__(self) -> None:
        self.rank: int | None = None
        self._deaths: dict[str, deque[float]] = {}
        self._names: dict[str, None] = {}

    def add_death(self, name: str, rank: int) -> None:
        """An env of this name, and no other, was at work when the worker of this rank died of it."""
        deaths = self._deaths.setdefault(name, deque(maxlen=_DEATHS))
        deaths.append(time.monotonic())
        if name not in self.names() and len(deaths) == _DEATHS and deaths[-1] - deaths[0] <= _SOON:
            self.rank = rank if self.rank is None else self.rank
            self._names[name] = None
            log.warning("env_quarantined", env=name, worker=self.rank, deaths=_DEATHS)

    def names(self) -> tuple[str, ...]:
        """Those in quarantine now."""
        if self._names:
            now = time.monotonic()
            for name in [name for name in self._names if now - self._deaths[name][-1] > _QUIET]:
                self._release(name)
        return tuple(self._names)

    def _release(self, name: str) -> None:
        del self._names[name], self._deaths[name]
        log.info("env_released", env=name, worker=self.rank)
        if not self._names:
            self.rank = None

    def end(self) -> None:
        """This worker is gone."""
        for name in [*self._names]:
            self._release(name)
