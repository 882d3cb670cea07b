"""What the rows of `bench_growth.py` are made of: shapes, the points measured for each, and the loop's holds."""

import asyncio
import json
import os
import platform
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
_LONGEST_POINT = 900  # seconds


class Point(NamedTuple):
    """What one size costs; `held` is the longest time for which the loop was held, in milliseconds of its own CPU."""

    cost: float
    held: float = 0.0
    share: float | None = None
    """Of what could be reached, such as the places at work or the speed of a bare loop."""


class Shape(NamedTuple):
    """One row: something that grows, measured at each of its sizes in a process of its own."""

    name: str
    grows: str
    """What a size counts."""
    sizes: Sequence[int]
    unit: str
    """Of the cost."""
    measure: Callable[[int], Coroutine[Any, Any, Point]]
    most_ratio: float | None = None
    """The goal for the cost at the largest size, in costs at the smallest."""
    most_held: float | None = None
    """The goal for the loop's longest hold, in milliseconds."""
    least_share: float | None = None
    most_cost: float | None = None


class _Selector(selectors.DefaultSelector):
    """Notes how much CPU the loop's thread takes from one look at its sockets to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0.0
        self._since = time.thread_time()

    def select(self, timeout: float | None = None) -> Any:
        self.longest = max(self.longest, time.thread_time() - self._since)
        try:
            return super().select(timeout)
        finally:
            self._since = time.thread_time()


class Held:
    """The longest hold of the running loop since it was made or cleared."""

    def __init__(self) -> None:
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        assert isinstance(selector, _Selector)
        self._selector = selector
        self.clear()

    def clear(self) -> None:
        self._selector.longest = 0.0

    @property
    def milliseconds(self) -> float:
        return self._selector.longest * 1e3


def measure_here(shape: Shape, size: int) -> Point:
    """Asyncio's own loop, since its iterations can be watched."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Selector())) as runner:
        return runner.run(shape.measure(size))


def measure(shape: Shape, size: int) -> Point:
    """In a process of its own: memory and the garbage collector have no history."""
    command = [sys.executable, str(HERE / "bench_growth.py"), "--point", shape.name, str(size)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_LONGEST_POINT)
    return Point(**json.loads(done.stdout.splitlines()[-1]))


def circumstances() -> dict[str, Any]:
    """Machine, load and commit."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, check=False, stdout=subprocess.PIPE, text=True
    )
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {len(os.sched_getaffinity(0))} CPUs",
        "load": [round(load, 2) for load in os.getloadavg()],
    }
