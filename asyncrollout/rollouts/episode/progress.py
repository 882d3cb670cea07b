"""Where each rollout is, so that a stall can be reported by name."""

import time
from collections.abc import Callable

from asyncrollout.trajectories import Turn
from asyncrollout.types import Generation

RESET, POLICY, STEP, SCORE = "the env's reset", "the policy", "the env's step", "its score"
"""What a rollout usually waits for."""


OnReply = Callable[[Generation, float], None]


class Progress:
    """What one rollout waits for, and since when.

    `on_turn` is called with each turn, `on_reply` with each new reply and the seconds it took: not with those that are
    from the record.
    """

    __slots__ = ("_on_reply", "_on_turn", "doing", "since", "turn", "uid")

    def __init__(
        self, uid: str, on_turn: Callable[[Turn], None] | None = None, on_reply: OnReply | None = None
    ) -> None:
        self._on_turn = on_turn
        self._on_reply = on_reply
        self.uid = uid
        self.turn = 0
        self.doing = "its start"
        self.since = time.monotonic()

    def begins(self, doing: str) -> float:
        """Note what it waits for from now on, "" if it is over; returns the time."""
        self.doing = doing
        self.since = time.monotonic()
        return self.since

    def replied(self, reply: Generation, seconds: float) -> None:
        if self._on_reply is not None:
            self._on_reply(reply, seconds)

    def played(self, turn: Turn) -> None:
        self.turn += 1
        if self._on_turn is not None:
            self._on_turn(turn)

    def __str__(self) -> str:
        seconds = time.monotonic() - self.since
        return f"rollout {self.uid} has waited {seconds:.1f} s for {self.doing} in turn {self.turn}"
