"""How many calls are in flight, and waiting for their end."""

from types import TracebackType

import anyio


class InFlightCounter:
    """Counts the `with` blocks that are entered."""

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
        """Wait until none is entered."""
        while self.count:
            self._ended = anyio.Event()
            await self._ended.wait()
