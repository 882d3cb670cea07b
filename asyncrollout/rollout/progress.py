"""Where rollouts are, so that a stall can be told by name."""

import time


class Progress:
    """One rollout's whereabouts; it says what is being waited for, and since when."""

    __slots__ = ("doing", "since", "turn", "uid")

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.turn = 0
        self.doing = "its start"
        self.since = time.monotonic()

    def begins(self, doing: str) -> float:
        """Begin to wait for something, or for nothing if it is over; the time now."""
        self.doing = doing
        self.since = time.monotonic()
        return self.since

    def __str__(self) -> str:
        return (
            f"rollout {self.uid} waits for {self.doing} in turn {self.turn} since {time.monotonic() - self.since:.1f} s"
        )
