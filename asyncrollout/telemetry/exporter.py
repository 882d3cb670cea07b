"""Exports metrics to sinks, off the event loop: a slow or failing sink never affects the run."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import anyio
import anyio.to_thread

from asyncrollout.concurrency import Background, run_to_end
from asyncrollout.errors import UsageError
from asyncrollout.logs import get_logger
from asyncrollout.telemetry.run_metrics import RunMetrics, flat
from asyncrollout.telemetry.sinks import Sink

log = get_logger(__name__)

_EVERY = 2.0  # seconds
_MOST_WAITING = 1_000  # writes queued for a slow sink; about 5 MB
_CLOSING_SECONDS = 15.0  # for one write; a sink may still have to send to a server
_LAST_SECONDS = 120.0  # for all that is left to write


class MetricsExporter:
    """Writes metrics to each sink every few seconds, on each `write` (once per batch), and at the end.

    A slow sink gets every `write`, up to `_MOST_WAITING` of them late; of the periodic ones, only the newest.
    """

    def __init__(self, sinks: Sequence[Sink], read: Callable[[], RunMetrics]) -> None:
        for sink in sinks:
            if not callable(getattr(sink, "write", None)):
                raise UsageError(f"metrics: {sink!r:.100} is not a sink: it has no write(figures)")
        self._sinks = sinks
        self._read = read
        self._threads: list[_SinkThread] = []
        self._background = Background()

    async def __aenter__(self) -> Self:
        self._threads = [_SinkThread(sink) for sink in self._sinks]
        await self._background.open()
        self._background.start_soon(self._write_always)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            await self._background.close(error)
        finally:
            self.write()
            if self._threads:
                await run_to_end(anyio.to_thread.run_sync, _close, self._threads)  # bounded by itself

    def write(self) -> None:
        """Send the current metrics to the sinks."""
        self._offer(passing=False)

    def _offer(self, *, passing: bool) -> None:
        if self._threads:
            figures = {"at": time.time(), **flat(self._read())}
            for thread in self._threads:
                thread.offer(figures, passing=passing)

    async def _write_always(self) -> None:
        while self._threads:
            await anyio.sleep(_EVERY)
            self._offer(passing=True)


class _SinkThread:
    """A daemon thread per sink: one that never returns must not keep the process alive."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._waiting: deque[tuple[Mapping[str, float], bool]] = deque()
        self._wake = threading.Condition()
        self._closing = self._failed = self._behind = False
        self.moved = time.monotonic()
        """When it last finished a call."""
        self._thread = threading.Thread(target=self._run, name=f"sink {self.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return type(self._sink).__name__

    def offer(self, figures: Mapping[str, float], *, passing: bool) -> None:
        """Queue figures; those that are only `passing` are replaced by newer ones."""
        with self._wake:
            if self._waiting and self._waiting[-1][1]:
                self._waiting.pop()
            self._waiting.append((figures, passing))
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popleft()
                if not self._behind:
                    self._behind = True
                    log.warning(
                        "sink_behind",
                        sink=self.name,
                        hint=f"more than {_MOST_WAITING} writes are queued: the oldest are lost",
                    )
            self._wake.notify()

    def close(self) -> None:
        """Write what is queued, and end."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def has_ended(self, seconds: float) -> bool:
        self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (figures := self._next()) is not None:
            self._call(self._sink.write, figures)
        self._call(getattr(self._sink, "close", lambda: None))

    def _next(self) -> Mapping[str, float] | None:
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft()[0] if self._waiting else None

    def _call(self, method: Callable[..., object], *arguments: object) -> None:
        """A failing sink is called again, since the failure may pass; only the first one is logged."""
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 (anything may be wrong with a sink, and the run continues)
            if not self._failed:
                self._failed = True
                log.warning("sink_failed", sink=self.name, error=f"{type(error).__name__}: {error}")
        self.moved = time.monotonic()


def _close(threads: Sequence[_SinkThread]) -> None:
    for thread in threads:
        thread.close()
    began = time.monotonic()
    for thread in threads:
        while not thread.has_ended(_patience(thread, began)):
            if _patience(thread, began) <= 0:
                log.warning("sink_left", sink=thread.name, hint=f"it did not close within {_CLOSING_SECONDS:g} seconds")
                break


def _patience(thread: _SinkThread, began: float) -> float:
    """How much longer to wait for a sink: as long as it makes progress, within a bound."""
    stuck = max(thread.moved, began) + _CLOSING_SECONDS
    return min(stuck, began + _LAST_SECONDS) - time.monotonic()
