"""A thread of its own for an `io` env, so that it waits without delaying others and always runs in the same thread."""

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrollout.pool.worker.env_runner import EnvRunner


class EnvThread:
    """Runs what it is given, in order. It is a daemon: an env that never returns must not keep the process alive."""

    def __init__(self) -> None:
        self.hosted: EnvRunner | None = None  # the env, once it is made
        self.ended = threading.Event()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def end(self) -> None:
        """End after the work given so far."""
        self._work.put(None)

    def _run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                work()
        finally:
            self.ended.set()
