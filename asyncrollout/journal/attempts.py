"""Attempts at rollouts, each from its dispatch to its end, as the journal records them, and what each one cost.

The module `history` has the table of what each event means.
"""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from asyncrollout.journal.events import (
    AnyEvent,
    Dispatched,
    Failed,
    Finished,
    Replied,
    sampled_tokens,
)
from asyncrollout.trajectories import group_of

AttemptEnd = Literal["open", "finished", "failed", "cancelled"]


class RolloutAttempt(msgspec.Struct):
    """One attempt at a rollout: until it finishes, fails and is retried, or is cancelled and starts over.

    `turns` and `tokens` are those of its recorded replies, whether they were played or not; if its end says more,
    because its agent's replies are not recorded, that counts. A reply that is replayed after a resume counts once.
    """

    uid: str
    stretches: list[tuple[float, float | None]]
    """When it was in flight: from when to when, for each process that played it. None while it is."""
    turns: int = 0
    tokens: int = 0
    end: AttemptEnd = "open"

    @property
    def at(self) -> float | None:
        """When it ended, or was interrupted."""
        return self.stretches[-1][1]

    def pause(self, at: float) -> None:
        """Nothing happens any more: it has ended, or its process has."""
        began, ended = self.stretches[-1]
        if ended is None:
            self.stretches[-1] = began, at


class AttemptReader:
    """Follows attempts through the events of a run; `on_end` is called with each one that ends."""

    def __init__(self, on_end: Callable[[RolloutAttempt], None]) -> None:
        self.open: dict[str, RolloutAttempt] = {}
        self._on_end = on_end

    def add(self, event: AnyEvent) -> None:
        match event:
            case Dispatched(uid=uid, at=at):
                self._dispatch(uid, at)
            case Replied(uid=uid) if uid in self.open:
                attempt = self.open[uid]
                attempt.turns = max(attempt.turns, event.turn + 1)  # a turn may have several replies
                attempt.tokens += sampled_tokens(event.reply)
            case Failed() | Finished():
                self._end(event)

    def interrupt(self, at: float) -> None:
        """The process ended; a resumed one may continue what was in flight."""
        for attempt in self.open.values():
            attempt.pause(at)

    def cancel(self, groups: Iterable[str], at: float) -> None:
        """Nothing of these groups continues."""
        cancelled = {*groups}
        for uid in [uid for uid in self.open if group_of(uid) in cancelled]:
            self._close(self.open.pop(uid), "cancelled", at)

    def _dispatch(self, uid: str, at: float) -> None:
        """One that is dispatched twice in one process starts over; after a resume, it continues."""
        attempt = self.open.get(uid)
        if attempt is not None and attempt.at is not None:
            attempt.stretches.append((at, None))
            return
        if attempt is not None:
            self._close(attempt, "cancelled", at)
        self.open[uid] = RolloutAttempt(uid, [(at, None)])

    def _end(self, event: Failed | Finished) -> None:
        attempt = self.open.pop(event.uid, None) or RolloutAttempt(event.uid, [(event.at, None)])
        attempt.turns, attempt.tokens = max(attempt.turns, event.turns), max(attempt.tokens, event.tokens)
        self._close(attempt, "failed" if isinstance(event, Failed) else "finished", event.at)

    def _close(self, attempt: RolloutAttempt, end: AttemptEnd, at: float) -> None:
        attempt.pause(at)
        attempt.end = end
        self._on_end(attempt)
