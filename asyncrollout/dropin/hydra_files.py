"""Configurations that Hydra composes of several files: `defaults` beside the file, and `${...}` within the result."""

import importlib.util
import re
from collections.abc import Collection, Iterator
from pathlib import Path as FilePath
from typing import Any

import msgspec

from asyncrollout.config.document import Document, Path, Place, load
from asyncrollout.config.overrides import undotted
from asyncrollout.config.reading import read_text
from asyncrollout.errors import UsageError

_SELF = "_self_"
_DEFAULTS = "defaults"
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)\s*$", re.MULTILINE)
_GROUP = re.compile(r"(?:(?P<kind>optional|override)\s+)?(?P<group>[^@\s]+)(?:@(?P<package>\S+))?")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_MOST_STEPS = 32


class _Entry(msgspec.Struct, frozen=True):
    """One file that `defaults` names, and under which keys its values go."""

    name: str
    package: str | None = None
    is_optional: bool = False


def compose(document: Document, where: str, *, dispensable: Collection[str] = ()) -> Document:
    """With the files that `defaults` names, in its order; `dispensable` ones may be missing, and stay in `defaults`.

    As in Hydra, a file comes after its defaults unless `_self_` is among them; mappings are merged, and anything else
    is replaced. Files are looked for beside the one that names them, beside the first, and in `hydra.searchpath`.
    """
    if _DEFAULTS not in document.value:
        return document
    path = FilePath(where)
    composer = _Composer(path.parent, document.value, frozenset(dispensable))
    composed = composer.compose(document, path.parent, (path.resolve(),), where)
    missing = {_DEFAULTS: composer.missing} if composer.missing else {}
    return Document({**composed.value, **missing}, composed.places)


def interpolate(values: dict[Any, Any]) -> dict[Any, Any]:
    """With `${a.b}` replaced by the value of the key a.b; a reference to nothing stays as it is."""
    resolved: dict[Any, Any] = _interpolated(values, values, 0)
    return resolved


class _Composer:
    def __init__(self, root: FilePath, first: dict[Any, Any], dispensable: frozenset[str]) -> None:
        self.missing: list[str] = []
        self._folders = [root, *_search_path(first, root)]
        self._dispensable = dispensable

    def compose(self, document: Document, folder: FilePath, around: tuple[FilePath, ...], where: str) -> Document:
        own = Document({key: value for key, value in document.value.items() if key != _DEFAULTS}, document.places)
        parts: list[Document] = []
        for entry in _entries(document.value.get(_DEFAULTS), where):
            if entry is None:
                parts.append(own)
            elif (file := self._find(entry, folder, where)) is not None:
                parts.append(self._read(entry, file, around))
        if not any(part is own for part in parts):
            parts.append(own)
        return _merged(parts)

    def _find(self, entry: _Entry, folder: FilePath, where: str) -> FilePath | None:
        name = entry.name if entry.name.endswith((".yaml", ".yml")) else f"{entry.name}.yaml"
        places = self._folders if name.startswith("/") else [folder, *self._folders]
        for place in dict.fromkeys(places):
            if (file := place / name.lstrip("/")).is_file():
                return file
        if entry.name in self._dispensable:
            self.missing.append(entry.name)
        elif not entry.is_optional:
            looked = " or ".join(str(place) for place in dict.fromkeys(places))
            raise UsageError(
                f"{where}: defaults: found {entry.name!r}, but there is no {name} in {looked}: put the file there, or "
                "write its keys into this one"
            )
        return None

    def _read(self, entry: _Entry, file: FilePath, around: tuple[FilePath, ...]) -> Document:
        if file.resolve() in around:
            raise UsageError(f"{file}: defaults: this file includes itself")
        text = read_text(file)
        found = load(text, str(file))
        if found.value is not None and not isinstance(found.value, dict):
            raise UsageError(f"{file}: found no mapping of keys to values")
        document = undotted(Document(found.value or {}, found.places), str(file))
        placed = {path: _in_file(place, file) for path, place in document.places.items()}
        composed = self.compose(Document(document.value, placed), file.parent, (*around, file.resolve()), str(file))
        header = _PACKAGE.search(text)
        package = entry.package if header is None or entry.package not in (None, _group(entry)) else header[1]
        return _below(composed, package)


def _entries(defaults: Any, where: str) -> Iterator[_Entry | None]:
    """None is the file itself."""
    if defaults is None:
        return
    if not isinstance(defaults, list):
        raise UsageError(f"{where}: defaults: expected a list of files, such as [base]")
    for item in defaults:
        if item == _SELF:
            yield None
        elif isinstance(item, str):
            name, _, package = item.partition("@")
            yield _Entry(name, package or None)
        elif isinstance(item, dict) and len(item) == 1:
            yield from _group_entries(*next(iter(item.items())), where)
        else:
            raise UsageError(f"{where}: defaults: found {item!r:.100}, expected the name of a file, or group: name")


def _group_entries(key: Any, option: Any, where: str) -> Iterator[_Entry]:
    found = _GROUP.fullmatch(key) if isinstance(key, str) else None
    options = option if isinstance(option, list) else [option]
    if found is None or not all(isinstance(name, str | None) for name in options):
        raise UsageError(f"{where}: defaults: found {key!r:.100}: {option!r:.100}, expected group: name")
    group = found["group"]
    if group.lstrip("/").startswith("hydra/"):
        return  # Hydra's own settings
    if found["kind"] == "override":
        raise UsageError(f"{where}: defaults: {key!r} is not supported: write the keys of its file into this one")
    package = group.strip("/").replace("/", ".") if found["package"] is None else found["package"]
    for name in options:
        if name is not None:
            yield _Entry(f"{group}/{name}", package, found["kind"] == "optional")


def _group(entry: _Entry) -> str | None:
    group = entry.name.strip("/").rpartition("/")[0]
    return group.replace("/", ".") or None


def _search_path(values: dict[Any, Any], root: FilePath) -> Iterator[FilePath]:
    """Folders, and those of installed packages; nothing is imported to find them."""
    hydra = values.get("hydra")
    for place in (hydra.get("searchpath") if isinstance(hydra, dict) else None) or ():
        kind, _, name = str(place).rpartition("://")
        if kind == "pkg":
            package, *inner = name.split(".")
            spec = importlib.util.find_spec(package) if package.isidentifier() else None
            for location in (spec.submodule_search_locations or ()) if spec is not None else ():
                yield FilePath(location, *inner)
        else:
            yield root / name


def _in_file(place: Place, file: FilePath) -> Place:
    return Place(f"{file.name}, {place.where}", place.written) if place.where.startswith("line ") else place


def _below(document: Document, package: str | None) -> Document:
    """Under the keys of a package, such as `trainer.logger`; `_global_` is the top."""
    if package in (None, "_global_"):
        return document
    value = document.value
    keys = tuple(package.removeprefix("_global_.").split(".")) if package else ()
    for key in reversed(keys):
        value = {key: value}
    return Document(value, {(*keys, *path): place for path, place in document.places.items()})


def _merged(parts: list[Document]) -> Document:
    value: Any = {}
    places: dict[Path, Place] = {}
    for part in parts:
        for path in _replaced(value, part.value, ()):
            places = {old: place for old, place in places.items() if old[: len(path)] != path}
        value = _over(value, part.value)
        places |= part.places
    return Document(value, places)


def _over(base: Any, new: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(new, dict):
        return new
    return {**base, **{key: _over(base.get(key), value) for key, value in new.items()}}


def _replaced(base: Any, new: Any, path: Path) -> Iterator[Path]:
    """Where the new values are instead of, not within, those of before."""
    if isinstance(base, dict) and isinstance(new, dict):
        for key in base.keys() & new.keys():
            yield from _replaced(base[key], new[key], (*path, key if isinstance(key, str) else str(key)))
    else:
        yield path


def _interpolated(value: Any, root: dict[Any, Any], steps: int) -> Any:
    if isinstance(value, dict):
        return {key: _interpolated(inner, root, steps) for key, inner in value.items()}
    if isinstance(value, list):
        return [_interpolated(inner, root, steps) for inner in value]
    if not isinstance(value, str) or "${" not in value or steps > _MOST_STEPS:
        return value
    if whole := _REFERENCE.fullmatch(value):
        is_there, found = _look_up(root, whole[1])
        return _interpolated(found, root, steps + 1) if is_there else value
    return _REFERENCE.sub(lambda found: _as_text(found[0], root, steps), value)


def _as_text(reference: str, root: dict[Any, Any], steps: int) -> str:
    value = _interpolated(reference, root, steps)
    return reference if isinstance(value, dict | list) else str(value)


def _look_up(root: Any, key: str) -> tuple[bool, Any]:
    here = root
    for part in key.split("."):
        if not isinstance(here, dict) or part not in here:
            return False, None
        here = here[part]
    return True, here
