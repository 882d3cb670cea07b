"""Keys of other systems in a configuration: a dialect translates them into native ones before they are checked."""

from collections.abc import Callable
from typing import Any

import msgspec

from asyncrollout.config.checking import Problem
from asyncrollout.config.document import Path


class Note(msgspec.Struct, frozen=True):
    """What became of a foreign key: a native key, or why there is none."""

    key: str
    became: str | None = None
    why: str = ""


class Translation(msgspec.Struct, frozen=True):
    """Values in native keys; `origins` says which of them were written under which foreign keys."""

    values: dict[Any, Any]
    notes: list[Note] = []
    origins: dict[Path, Path] = {}
    problems: list[Problem] = []


class Dialect(msgspec.Struct, frozen=True):
    """The keys of one other system: its names at the top level, and how values are translated."""

    name: str
    top_level: list[str]
    translate: Callable[[dict[Any, Any]], Translation]


NATIVE = Dialect("native", [], Translation)
