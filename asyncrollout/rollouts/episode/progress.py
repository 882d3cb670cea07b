"""Where each rollout is, so that a stall can be reported by name."""

import time
from collections.abc import Callable

from asyncrollout.trajectories import Turn

RESET, POLICY, STEP = "the env's reset", "the policy", "the env's step"
"""What a rollout usually waits for."""


class Progress:
    """What one rollout waits for, and since when."""

    __slots__ = ("_report", "doing", "since", "turn", "uid")

    def __init__(self, uid: str, report: Callable[[Turn], None] | None = None) -> None:
        self._report = report
        self.uid = uid
        self.turn = 0
        self.doing = "its start"
        self.since = time.monotonic()

    def begins(self, doing: str) -> float:
        """Note what it waits for from now on, "" if it is over; returns the time."""
        self.doing = doing
        self.since = time.monotonic()
        return self.since

    def played(self, turn: Turn) -> None:
        self.turn += 1
        if self._report is not None:
            self._report(turn)

    def __str__(self) -> str:
        seconds = time.monotonic() - self.since
        return f"rollout {self.uid} has waited {seconds:.1f} s for {self.doing} in turn {self.turn}"
