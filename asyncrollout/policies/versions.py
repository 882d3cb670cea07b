"""Which versions of the weights replied within one turn: an agent may ask several policies, or one several times.

Whoever stamps a reply with a version notes it here, in the context of the turn, and tasks that an agent starts share
it. So the turn of a planner and an actor is as old as the older reply, even if only the other one is in its move.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_OF_TURN: ContextVar[list[int] | None] = ContextVar("versions_of_turn", default=None)


@contextmanager
def versions_of_turn() -> Iterator[list[int]]:
    """The versions noted in this block, in the order of the replies."""
    versions: list[int] = []
    token = _OF_TURN.set(versions)
    try:
        yield versions
    finally:
        _OF_TURN.reset(token)


@contextmanager
def unnoted() -> Iterator[None]:
    """A block whose replies do not count, since what gives them does not learn."""
    token = _OF_TURN.set(None)
    try:
        yield
    finally:
        _OF_TURN.reset(token)


def note_version(version: int) -> None:
    """A reply of these weights is part of the turn that this code runs for, if any."""
    versions = _OF_TURN.get()
    if versions is not None:
        versions.append(version)
