"""Which versions of the weights replied within one turn: an agent may ask several policies, or one several times.

Whoever stamps a reply with a version notes it here, in the context of the turn, and tasks that an agent starts share
it. So the turn of a planner and an actor is as old as the older reply, even if only the other one is in its move.
What a policy asks in order to reply counts by its stamp alone: policies beneath it may not know of new weights.
"""

from contextvars import ContextVar, Token
from types import TracebackType

_NOTED: ContextVar[list[int] | None] = ContextVar("noted_versions", default=None)


class NotedVersions:
    """The versions noted in this block, in the order of the replies; they count for the block around it, too."""

    # A generator would cost two microseconds in every turn.
    __slots__ = ("_around", "_token", "_versions")

    def __enter__(self) -> list[int]:
        self._around = _NOTED.get()
        self._versions: list[int] = []
        self._token: Token[list[int] | None] = _NOTED.set(self._versions)
        return self._versions

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _NOTED.reset(self._token)
        if self._around is not None:
            self._around.extend(self._versions)


class Unnoted:
    """A block whose replies do not count: what gives them does not learn, or what asks for them has its own stamp."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token: Token[list[int] | None] = _NOTED.set(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _NOTED.reset(self._token)


def note_version(version: int | None) -> None:
    """A reply of these weights (None: of none that learn) is part of the turn that this code runs for, if any."""
    versions = _NOTED.get()
    if versions is not None and version is not None:
        versions.append(version)
