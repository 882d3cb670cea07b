"""The environment that `bench_slow.py` plays. Workers import this file, so it imports little."""

import time
from pathlib import Path
from typing import Any


class Slow:
    """Takes its time to be built, to be reset and to step, and leaves a line in a file for each time it is built."""

    def __init__(self, built: str, build: float, reset: float, steps: tuple[float, ...]) -> None:
        with Path(built).open("a") as builds:
            builds.write("built\n")
        time.sleep(build)
        self._reset, self._steps = reset, steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        time.sleep(self._reset)
        self._turn = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        time.sleep(self._steps[self._turn])
        self._turn += 1
        return self._turn, 1.0, self._turn == len(self._steps), False, {}
