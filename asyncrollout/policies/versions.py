"""Which versions of the weights replied within one turn: an agent may ask several policies, or one several times.

Whoever stamps a reply with a version notes it here, in the context of the turn, and tasks that an agent starts share
it. So the turn of a planner and an actor is as old as the older reply, even if only the other one is in its move.
What a policy asks in order to reply counts by its stamp alone: policies beneath it may not know of new weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_NOTED: ContextVar[list[int] | None] = ContextVar("noted_versions", default=None)


@contextmanager
def noted_versions() -> Iterator[list[int]]:
    """The versions noted in this block, in the order of the replies; they count for the block around it, too."""
    around = _NOTED.get()
    versions: list[int] = []
    token = _NOTED.set(versions)
    try:
        yield versions
    finally:
        _NOTED.reset(token)
        if around is not None:
            around.extend(versions)


@contextmanager
def unnoted() -> Iterator[None]:
    """A block whose replies do not count: what gives them does not learn, or what asks for them has its own stamp."""
    token = _NOTED.set(None)
    try:
        yield
    finally:
        _NOTED.reset(token)


def note_version(version: int | None) -> None:
    """A reply of these weights (None: of none that learn) is part of the turn that this code runs for, if any."""
    versions = _NOTED.get()
    if versions is not None and version is not None:
        versions.append(version)
