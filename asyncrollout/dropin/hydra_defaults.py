"""Hydra's `defaults` and interpolations, resolved from the files beside a configuration, without Hydra."""

import importlib.util
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path as FilePath
from pathlib import PurePosixPath
from typing import Any

from asyncrollout.config.document import Document, Path, Place, load
from asyncrollout.config.reading import read_text
from asyncrollout.errors import UsageError

_SELF = "_self_"
_PACKAGE = re.compile(r"\A(?:\s*#[^\n]*\n)*?\s*#\s*@package\s+(\S+)")
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_DEEPEST = 32
_MOST_FILES = 1000
_MOST_VALUES = 100_000
_LONGEST_TEXT = 1_000_000
_HOW = "write the values out, as the program's own `--cfg job` prints them"


def compose(path: FilePath, *, optional: Collection[str] = ()) -> Document:
    """A file with everything that its `defaults` name, merged in Hydra's order; places say which file a value is from.

    Files are searched in the directory of the first one and in its `hydra.searchpath`. Entries in `optional` may be
    missing: what they would add is left out.
    """
    path = FilePath(path)
    return compose_document(load(read_text(path), str(path)), path, optional=optional)


def compose_document(
    document: Document, path: FilePath, *, optional: Collection[str] = (), missing: list[str] | None = None
) -> Document:
    """As `compose`, for a file that has been read already; the `optional` entries that are missing join `missing`."""
    if not isinstance(document.value, dict) or not {"defaults", "hydra"} & {*document.value}:
        return document
    composer = _Composer(path, _searched(document.value, path), optional)
    merged = composer.merged(document, (), PurePosixPath(), (path.stem,))
    if missing is not None:
        missing += composer.missing
    return _without(merged, "hydra")


def interpolate(value: Any, root: Mapping[Any, Any], path: Path = ()) -> Any:
    """A part of a configuration with its references (`${a.b}`, `${.c}`, `${oc.env:HOME,default}`) resolved.

    `root` is the whole configuration, `path` the keys that lead to the part.
    """
    return _Interpolation(root).resolved(value, path, 0)


class _Composer:
    def __init__(self, path: FilePath, directories: list[FilePath], optional: Collection[str]) -> None:
        self._path = path
        self._directories = directories
        self._optional = optional
        self._loads = 0
        self.missing: list[str] = []

    def merged(self, document: Document, package: Path, group: PurePosixPath, around: tuple[str, ...]) -> Document:
        """The document at `package`, over and under the entries of its own `defaults`."""
        if len(around) > _DEEPEST:
            raise UsageError(f"{self._path}: defaults refer to each other: {' -> '.join(around[-4:])}")
        entries = document.value.get("defaults") or [] if isinstance(document.value, dict) else []
        if not isinstance(entries, list):
            raise UsageError(f"{self._path}: defaults: expected a list, found {entries!r:.100}")
        own = _moved(_without(document, "defaults"), package)
        found = Document({}, {})
        for entry in [*entries, *([] if _SELF in entries else [_SELF])]:
            if entry == _SELF:
                found = _merged(found, own)
                continue
            for name, below, optional in self._named(entry):
                found = _merged(found, self._loaded(name, package, below, group, around, optional=optional))
        return found

    def _named(self, entry: Any) -> Iterator[tuple[str, str | None, bool]]:
        """The files that an entry names, each with its package (None: by Hydra's rule), and whether it is optional."""
        if isinstance(entry, str):
            name, _, package = entry.partition("@")
            yield name, package or None, False
            return
        if not isinstance(entry, dict) or len(entry) != 1:
            raise UsageError(f"{self._path}: defaults: {entry!r:.100} is neither a name nor 'group: option'")
        ((key, options),) = entry.items()
        *words, target = str(key).split()
        if "override" in words:
            if target.startswith("hydra/"):
                return  # Hydra's own logging and launchers
            raise UsageError(f"{self._path}: defaults: 'override' of {target!r} is not supported: {_HOW}")
        group, _, package = target.partition("@")
        for option in options if isinstance(options, list) else [options]:
            if option is not None:
                yield f"{group}/{option}", package or None, "optional" in words

    def _loaded(
        self,
        name: str,
        around: Path,
        below: str | None,
        group: PurePosixPath,
        chain: tuple[str, ...],
        *,
        optional: bool,
    ) -> Document:
        folder = PurePosixPath() if name.startswith("/") else group
        relative = PurePosixPath(os.path.normpath(folder / name.lstrip("/")))
        file = self._found(relative)
        if file is None:
            if name in self._optional:
                self.missing.append(name)
            if optional or name in self._optional:
                return Document({}, {})
            tried = ", ".join(map(str, self._directories))
            raise UsageError(
                f"{self._path}: defaults: {name!r}: there is no {relative}.yaml in {tried}: add the file, or {_HOW}"
            )
        self._loads += 1
        if self._loads > _MOST_FILES:  # each of two files may name the next two
            raise UsageError(f"{self._path}: defaults name more than {_MOST_FILES:,} files, repeated ones included")
        text = read_text(file)
        document = load(text, str(file))
        if not isinstance(document.value, dict):
            document = Document({}, {})
        places = {
            path: Place(f"{relative}.yaml, {place.where}", place.written) for path, place in document.places.items()
        }
        header = _PACKAGE.match(text)
        package = _package(below or (header[1] if header else None), around, relative, group)
        return self.merged(Document(document.value, places), package, relative.parent, (*chain, str(relative)))

    def _found(self, relative: PurePosixPath) -> FilePath | None:
        candidates = (directory / f"{relative}.yaml" for directory in self._directories)
        return next((file for file in candidates if file.is_file()), None)


def _package(given: str | None, around: Path, relative: PurePosixPath, group: PurePosixPath) -> Path:
    """Where a file's values go: as given, else below the name of its group."""
    if given is None or given == "_group_":
        if ".." in relative.parts:
            return around
        folder = relative.parent
        return (*around, *(folder.relative_to(group) if folder.is_relative_to(group) else folder).parts)
    first, *rest = given.split(".")
    match first:
        case "_global_":
            return tuple(rest)
        case "_here_":
            return (*around, *rest)
    return (*around, first, *rest)


def _searched(values: Mapping[Any, Any], path: FilePath) -> list[FilePath]:
    hydra = values.get("hydra")
    listed = hydra.get("searchpath") if isinstance(hydra, dict) else None
    directories = [path.absolute().parent]
    if not isinstance(listed, list | None):
        raise UsageError(f"{path}: hydra.searchpath: expected a list, found {listed!r:.100}")
    for place, entry in enumerate(listed or []):
        text = str(interpolate(entry, values, ("hydra", "searchpath", place)))
        if text.startswith("pkg://"):
            directories += _package_directories(text.removeprefix("pkg://"))
        else:
            directories.append(FilePath(text.removeprefix("file://")))
    return directories


def _package_directories(name: str) -> list[FilePath]:
    """Where an installed package has its files; none of its code runs."""
    package, *inner = name.split(".")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    locations = None if spec is None else spec.submodule_search_locations
    return [FilePath(location, *inner) for location in locations or ()]


def _moved(document: Document, package: Path) -> Document:
    value = document.value
    for part in reversed(package):
        value = {part: value}
    return Document(value, {(*package, *path): place for path, place in document.places.items()})


def _without(document: Document, key: str) -> Document:
    value = {name: item for name, item in document.value.items() if name != key}
    return Document(value, {path: place for path, place in document.places.items() if path[:1] != (key,)})


def _merged(below: Document, above: Document) -> Document:
    """Mappings are merged key by key; anything else of `above` replaces what `below` has."""
    places = {path: place for path, place in below.places.items() if _at(above.value, path) is _ABSENT}
    return Document(_merge(below.value, above.value), {**places, **above.places})


_ABSENT = object()


def _at(value: Any, path: Path) -> Any:
    """The value at a path; a value that is not a mapping hides whatever would be below it."""
    for part in path:
        if not isinstance(value, dict):
            return None
        if part not in value:
            return _ABSENT
        value = value[part]
    return value


def _merge(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: _merge(below[key], item) if key in below else item for key, item in above.items()}}


class _Interpolation:
    """References may refer to others twice, and these again: what all of them make together is bounded."""

    def __init__(self, root: Mapping[Any, Any]) -> None:
        self._root = root
        self._made = 0

    def resolved(self, value: Any, path: Path, depth: int) -> Any:
        if depth > _DEEPEST:
            raise UsageError(f"{_dotted(path)}: references refer to each other")
        if depth:
            self._made += 1
            if self._made > _MOST_VALUES:
                raise UsageError(f"{_dotted(path)}: references make more than {_MOST_VALUES:,} values")
        if isinstance(value, dict):
            return {key: self.resolved(item, (*path, key), depth) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item, (*path, index), depth) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        if (whole := _REFERENCE.fullmatch(value)) is not None:
            return self._meant(whole[1].strip(), path, depth)
        replaced = _REFERENCE.sub(lambda found: str(self._meant(found[1].strip(), path, depth)), value)
        if len(replaced) > _LONGEST_TEXT:
            raise UsageError(f"{_dotted(path)}: references make a text of more than {_LONGEST_TEXT:,} characters")
        return self.resolved(replaced, path, depth + 1) if "${" in replaced else replaced

    def _meant(self, reference: str, path: Path, depth: int) -> Any:
        resolver, colon, argument = reference.partition(":")
        if colon:
            return self._from_environment(resolver, argument, path)
        dots = len(reference) - len(reference.lstrip("."))
        target = (*path[:-dots], *reference.lstrip(".").split(".")) if dots else tuple(reference.split("."))
        value: Any = self._root
        for part in target:
            if isinstance(value, list) and str(part).isdigit() and int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, Mapping) and part in value:
                value = value[part]
            else:
                raise UsageError(f"{_dotted(path)}: ${{{reference}}} refers to a key that is not there")
        return self.resolved(value, target, depth + 1)

    def _from_environment(self, resolver: str, argument: str, path: Path) -> str:
        if resolver != "oc.env":
            raise UsageError(f"{_dotted(path)}: the resolver {resolver!r} is not supported: {_HOW}")
        name, comma, default = (part.strip() for part in argument.partition(","))
        if (value := os.environ.get(name)) is not None:
            return value
        if not comma:
            raise UsageError(f"{_dotted(path)}: the environment variable {name} is not set: set it, or {_HOW}")
        return default.strip("'\"")


def _dotted(path: Path) -> str:
    return ".".join(map(str, path)) or "the configuration"
