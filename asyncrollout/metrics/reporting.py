"""Figures on their way to sinks, off the event loop: a sink that is slow or fails never hurts the run."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import anyio
import anyio.to_thread
import structlog

from asyncrollout.errors import UsageError
from asyncrollout.metrics.figures import Figures, flat
from asyncrollout.metrics.sinks import Sink
from asyncrollout.tasks import Background

log = structlog.get_logger(__name__)

_EVERY = 2.0  # seconds
_CLOSING_SECONDS = 15.0  # for all sinks together; one that sends to a server has something left to send


class Reporting:
    """Writes figures to each sink every few seconds, whenever `write` is called, and at the end.

    A sink that is slow gets the newest figures when it is ready for them, and not those in between.
    """

    def __init__(self, sinks: Sequence[Sink], read: Callable[[], Figures]) -> None:
        for sink in sinks:
            if not callable(getattr(sink, "write", None)):
                raise UsageError(f"metrics: {sink!r:.100} is no sink: it has no write(figures)")
        self._sinks = sinks
        self._read = read
        self._threads: list[_SinkThread] = []
        self._background = Background()

    async def __aenter__(self) -> Self:
        self._threads = [_SinkThread(sink) for sink in self._sinks]
        await self._background.open()
        self._background.start_soon(self._write_always)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._background.close()
        finally:
            self.write()
            if self._threads:
                with anyio.CancelScope(shield=True):  # bounded by itself
                    await anyio.to_thread.run_sync(_close, self._threads)

    def write(self) -> None:
        """Let the sinks have the figures of this moment."""
        if self._threads:
            figures = {"at": time.time(), **flat(self._read())}
            for thread in self._threads:
                thread.offer(figures)

    async def _write_always(self) -> None:
        while self._threads:
            await anyio.sleep(_EVERY)
            self.write()


class _SinkThread:
    """A daemon: a sink that never returns must not keep the process alive."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._newest: deque[Mapping[str, float]] = deque(maxlen=1)
        self._wake = threading.Event()
        self._closing = self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"sink {self.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return type(self._sink).__name__

    def offer(self, figures: Mapping[str, float]) -> None:
        self._newest.append(figures)
        self._wake.set()

    def close(self) -> None:
        """Write what was offered last, and end."""
        self._closing = True
        self._wake.set()

    def has_ended(self, seconds: float) -> bool:
        self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._newest or not self._closing:
            self._wake.wait()
            self._wake.clear()
            while self._newest:
                self._call(self._sink.write, self._newest.popleft())
        self._call(getattr(self._sink, "close", lambda: None))

    def _call(self, method: Callable[..., object], *arguments: object) -> None:
        """It is called again after a failure, which may be over by then; but only the first one is told."""
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 (anything may be wrong with a sink, and the run goes on)
            if not self._failed:
                self._failed = True
                log.warning("sink_failed", sink=self.name, error=f"{type(error).__name__}: {error}")


def _close(threads: Sequence[_SinkThread]) -> None:
    for thread in threads:
        thread.close()
    deadline = time.monotonic() + _CLOSING_SECONDS
    for thread in threads:
        if not thread.has_ended(deadline - time.monotonic()):
            log.warning("sink_left", sink=thread.name, hint=f"it did not end within {_CLOSING_SECONDS:g} seconds")
