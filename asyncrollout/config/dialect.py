"""Keys of other systems in a configuration: a dialect translates them into native ones before they are checked."""

from collections.abc import Callable
from typing import Any

import msgspec

from asyncrollout.config.checking import Problem
from asyncrollout.config.document import Document, Path


class Note(msgspec.Struct, frozen=True):
    """What became of a foreign key: a native key, or why there is none; `warns` if that changes what is played."""

    key: str
    became: str | None = None
    why: str = ""
    warns: bool = False


class Translation(msgspec.Struct, frozen=True):
    """Values in native keys; `origins` says which of them were written under which foreign keys."""

    values: dict[Any, Any]
    notes: list[Note] = []
    origins: dict[Path, Path] = {}
    problems: list[Problem] = []


def _alone(document: Document, where: str) -> Document:  # noqa: ARG001
    return document


class Dialect(msgspec.Struct, frozen=True):
    """The keys of one other system: its names at the top level, and how values are translated.

    `compose` adds the values of other files that a file names; it is given the file's own path.
    """

    name: str
    top_level: list[str]
    translate: Callable[[dict[Any, Any]], Translation]
    compose: Callable[[Document, str], Document] = _alone


NATIVE = Dialect("native", [], Translation)
