"""Which replies of a turn are from the record of an earlier process, and how long they took when they were sampled.

Whoever hands out a recorded reply notes it here, in the context of the turn, and so does whoever records a new one.
Tasks that an agent starts share it.
"""

from contextvars import ContextVar, Token
from types import TracebackType


class TurnReplies:
    """How many replies of a turn were sampled now, and how many are from the record, with the seconds they took."""

    __slots__ = ("_has_unknown", "_replayed", "_sampled", "_seconds")

    def __init__(self) -> None:
        self._sampled = self._replayed = 0
        self._seconds = 0.0
        self._has_unknown = False

    def add_sampled(self) -> None:
        self._sampled += 1

    def add_replayed(self, seconds: float | None) -> None:
        self._replayed += 1
        self._seconds += seconds or 0.0
        self._has_unknown |= seconds is None

    @property
    def replayed(self) -> bool:
        """Whether nothing was sampled in this turn."""
        return self._replayed > 0 and not self._sampled

    def seconds(self, elapsed: float) -> float:
        """How long the policy took for the turn, of which so many seconds have `elapsed` now; 0 if that is unknown."""
        if self.replayed:
            return 0.0 if self._has_unknown else self._seconds
        return elapsed + self._seconds


_NOTED: ContextVar[TurnReplies | None] = ContextVar("turn_replies", default=None)


class NotedReplies:
    """The replies of this block."""

    # A generator would cost a microsecond in every turn.
    __slots__ = ("_token",)

    def __enter__(self) -> TurnReplies:
        replies = TurnReplies()
        self._token: Token[TurnReplies | None] = _NOTED.set(replies)
        return replies

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _NOTED.reset(self._token)


def note_sampled() -> None:
    """A policy was asked for a reply."""
    if (replies := _NOTED.get()) is not None:
        replies.add_sampled()


def note_replayed(seconds: float | None) -> None:
    """A recorded reply was given, which took so long when it was sampled, if that is known."""
    if (replies := _NOTED.get()) is not None:
        replies.add_replayed(seconds)
