"""Time as far as the watchdog saw it pass, and what a worker did with it."""

import os
from collections import deque
from pathlib import Path
from typing import NamedTuple

_IN_TIME = 0.5  # seconds between two ticks that a busy machine may need
_TICK = 0.1
_MOST_GAPS = 1024


class ObservedTime:
    """Seconds between two moments, without those in which the whole program stood still.

    A frozen program (SIGSTOP, a suspended container, a debugger) shows in ticks that come late though this process
    used no CPU. Nobody knows then how long its workers were frozen, so that nobody is blamed for this time.
    """

    def __init__(self, now: float, cpu: float) -> None:
        self._last, self._cpu = now, cpu
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_MOST_GAPS)

    def tick(self, now: float, cpu: float) -> None:
        """To be called every 0.1 s or oftener; `cpu` are the seconds of CPU time that this process has used."""
        gap = now - self._last
        if gap > _IN_TIME:
            seen = min(_TICK + cpu - self._cpu, gap)  # a loop that computes is late, too
            self._gaps.append((self._last + seen, now))
        self._last, self._cpu = now, cpu

    def since(self, start: float, now: float) -> float:
        elapsed = now - start
        for begin, end in reversed(self._gaps):
            if end <= start:
                break
            elapsed -= end - max(begin, start)
        return elapsed


class CpuUsage(NamedTuple):
    """What a process does now: the state of its main thread, as the system names it, and its CPU seconds so far."""

    state: str
    cpu: float

    @property
    def is_stopped(self) -> bool:
        return self.state in ("T", "t")

    @property
    def is_runnable(self) -> bool:
        return self.state == "R"


def usage(pid: int) -> CpuUsage:
    """None where the system does not report it (only Linux does)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return CpuUsage(fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError):
        return CpuUsage("?", 0.0)
