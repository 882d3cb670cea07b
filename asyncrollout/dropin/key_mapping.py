"""Keys of another system, read one by one and mapped onto ours."""

import copy
from collections.abc import Collection, Iterator
from typing import Any

from asyncrollout.config.checking import Problem, found
from asyncrollout.config.dialect import Note
from asyncrollout.config.document import Path
from asyncrollout.config.suggestions import shown
from asyncrollout.dropin.hydra_defaults import interpolate
from asyncrollout.errors import UsageError
from asyncrollout.redaction import hide_looks, is_secret, may_be_secret


class KeyMapping:
    """`theirs` is read, `ours` is added to; `origins` says under which key of theirs a value of ours was written."""

    def __init__(self, theirs: dict[Any, Any], ours: dict[Any, Any]) -> None:
        self.ours = copy.deepcopy(ours)
        self.notes: list[Note] = []
        self.origins: dict[Path, Path] = {}
        self.problems: list[Problem] = []
        self._theirs = copy.deepcopy(theirs)
        self._taken: set[Path] = set()

    def take(self, path: Path, *, resolve: bool = True) -> Any:
        """A value of theirs, None if there is none; without `resolve`, with references to other keys as they are."""
        here: Any = self._theirs
        for depth, part in enumerate(path):
            if here is None:
                return None
            if not isinstance(here, dict):
                self.refuse(path[:depth], here, "a mapping")
                return None
            if part not in here:
                return None
            here = here[part]
        self._taken.add(path)
        if not resolve:
            return here
        try:
            return interpolate(here, self._theirs, path)
        except UsageError as error:
            self.problems.append(Problem(path, f"found {found(here)}: {error}"))
            return None

    def put(self, path: Path, value: Any, source: Path) -> None:
        """Set a value of ours, which may not have another one."""
        here: Any = self.ours
        part: Any
        for part in path[:-1]:
            if isinstance(here, dict) and here.get(part) is None:
                here[part] = {}
            if not isinstance(here, list if isinstance(part, int) else dict):
                return  # which is a problem of its own
            here = here[part]
        if not isinstance(here, dict):
            return
        name = path[-1]
        if name in here and here[name] != value:
            other = shown(self.origins.get(path, path))
            text = f"found {found(value)}, but {other} means the same, and is {found(here[name])}: give one of them"
            self.problems.append(Problem(source, text, beside=self.origins.get(path, path)))
            return
        here[name] = value
        self.origins[path] = source
        self.note(source, became=shown(path))

    def refuse(self, path: Path, value: Any, valid: str) -> None:
        self.problems.append(Problem(path, f"found {found(value)}, expected {valid}"))

    def note(self, path: Path, *, became: str | None = None, why: str = "", warns: bool = False) -> None:
        self.notes.append(Note(shown(path), became, why, warns))

    def ignore(self, path: Path, why: str, *, warns: bool = False) -> None:
        """Take a value that makes no difference, or whose loss is a warning."""
        here: Any = self._theirs
        for part in path:
            here = here.get(part) if isinstance(here, dict) else None
        self._taken.add(path)
        if here is not None:
            self.note(path, why=why, warns=warns)

    def unknown(self) -> Iterator[Path]:
        """What nobody took."""
        for name, value in self._theirs.items():
            yield from (path for path in _leaves(value, (name,)) if not self._is_taken(path))

    def secrets(self, checked: Collection[Path]) -> Iterator[Path]:
        """Where a value has the name or the looks of a secret, but for what is checked elsewhere."""
        for path in _secrets(self._theirs, ()):
            if not any(path[: len(other)] == other for other in checked):
                yield path

    def _is_taken(self, path: Path) -> bool:
        return any(path[: len(taken)] == taken for taken in self._taken)


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key if isinstance(key, str) else str(key)))
    else:
        yield path


def _secrets(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, item in value.items():
            below = (*path, key if isinstance(key, str) else str(key))
            yield from [below] if is_secret(key) and may_be_secret(item) else _secrets(item, below)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _secrets(item, (*path, index))
    elif isinstance(value, str) and hide_looks(value, ()) != value:
        yield path
