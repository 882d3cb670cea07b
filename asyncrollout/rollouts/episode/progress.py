"""Where rollouts are, so that a stall can be told by name."""

import time
from collections.abc import Callable

from asyncrollout.trajectories import Turn

RESET, POLICY, STEP = "the env's reset", "the policy", "the env's step"
"""What a rollout waits for most of the time."""


class Progress:
    """One rollout's whereabouts; it says what is being waited for, and since when."""

    __slots__ = ("_tell", "doing", "since", "turn", "uid")

    def __init__(self, uid: str, tell: Callable[[Turn], None] | None = None) -> None:
        self._tell = tell
        self.uid = uid
        self.turn = 0
        self.doing = "its start"
        self.since = time.monotonic()

    def begins(self, doing: str) -> float:
        """Begin to wait for something, or for nothing if it is over; the time now."""
        self.doing = doing
        self.since = time.monotonic()
        return self.since

    def played(self, turn: Turn) -> None:
        self.turn += 1
        if self._tell is not None:
            self._tell(turn)

    def __str__(self) -> str:
        return (
            f"rollout {self.uid} waits for {self.doing} in turn {self.turn} since {time.monotonic() - self.since:.1f} s"
        )
