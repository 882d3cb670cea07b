"""The environments that `bench_pool.py` steps. Workers import this file, so it imports little."""

import resource
import sys
import time
from typing import Any

import numpy as np

Step = tuple[Any, float, bool, bool, dict[str, Any]]

_TEXT_LENGTH = 200
_FRAME_SHAPE = (1024, 1024)
_TOO_SMALL_FOR_A_FRAME = 64 * 1024


class Trivial:
    """A text of 200 characters and next to no work: what remains is the way there and back."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return self._show(), {}

    def step(self, action: str) -> Step:
        self.turn += 1
        return self._show(), 1.0, self._ended(), False, {}

    def modules(self) -> list[str]:
        """What the process has imported."""
        return list(sys.modules)

    def _ended(self) -> bool:
        return False

    def _show(self) -> str:
        return f"turn {self.turn} ".ljust(_TEXT_LENGTH, ".")


class Paced(Trivial):
    """Each step takes `seconds`; with `ends`, an episode has 20 to 30 steps."""

    def __init__(self, seconds: float, ends: bool = False) -> None:
        self.seconds = seconds
        self.ends = ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.length = int(np.random.default_rng(seed).integers(20, 31))
        return super().reset(seed=seed, options=options)

    def _ended(self) -> bool:
        return self.ends and self.turn >= self.length


class Computing(Paced):
    """Spins by the thread's own CPU clock: a step that is preempted still costs its full time, on every side.

    A calibrated number of iterations would also measure how much two busy cores slow each other down, which is the
    machine's doing and not the pool's.
    """

    def step(self, action: str) -> Step:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return super().step(action)


class Waiting(Paced):
    """Sleeps, as one that waits for a simulator or a web server does."""

    def step(self, action: str) -> Step:
        time.sleep(self.seconds)
        return super().step(action)


class Frames:
    """Observations of one megabyte, made in place.

    `mapped=False` forbids this process to make files of that size, so that the pool's arrays take the way they take
    when there is no room for a mapped file: the socket.
    """

    def __init__(self, mapped: bool = True) -> None:
        self.frame = np.zeros(_FRAME_SHAPE, dtype=np.uint8)
        if not mapped:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (_TOO_SMALL_FOR_A_FRAME, hard))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.frame[:] = 0
        return self.frame, {}

    def step(self, action: int) -> Step:
        self.frame += 1
        return self.frame, 1.0, False, False, {}


def advance(env: Trivial, action: str) -> tuple[Trivial, Step]:
    """A step for pools without memory: the env travels there and back with it."""
    return env, env.step(action)
