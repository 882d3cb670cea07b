"""How much is under way, and the wait for its end."""

from types import TracebackType

import anyio


class InFlightCounter:
    """Counts what is within its blocks."""

    def __init__(self) -> None:
        self.count = 0
        self._ended = anyio.Event()

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.count -= 1
        if not self.count:
            self._ended.set()

    async def end(self) -> None:
        """Wait until there is nothing."""
        while self.count:
            self._ended = anyio.Event()
            await self._ended.wait()
