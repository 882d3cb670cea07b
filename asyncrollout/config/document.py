"""YAML as `yaml.safe_load` reads it, but bounded, without surprises, and with the place of every value."""

import re
from collections.abc import Hashable, Iterator
from typing import Any

import msgspec
import yaml

from asyncrollout.errors import UsageError

Path = tuple[str | int, ...]

MOST_DEPTH = 64

_MOST_VALUES = 100_000
_LARGEST = 2**64
_LONGEST = 80  # characters of a scalar that an error shows
_CORE = "tag:yaml.org,2002:"
_PLAIN = frozenset(_CORE + name for name in ("null", "bool", "int", "float", "str", "value"))
_DATE, _MERGE = f"{_CORE}timestamp", f"{_CORE}merge"
_LEADING_ZERO = re.compile(r"[-+]?0[0-7_]+")


class Unclear(msgspec.Struct, frozen=True):
    """A value that YAML 1.1 reads as few people mean it: as a date, a bool, or a number in another base."""

    written: str
    reading: str
    number: float | None = None


class Place(msgspec.Struct, frozen=True):
    """Where a value was written, and how, if it is a scalar without quotes."""

    where: str
    written: str | None = None


class Document(msgspec.Struct, frozen=True):
    value: Any
    places: dict[Path, Place]


def load(text: str, where: str, *, lines: bool = True) -> Document:
    """Read one document. `where` names it in errors; without `lines`, places have no line numbers."""
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        building = _Building(loader, where, lines)
        return Document(None if node is None else building.build(node, ()), building.places)
    except yaml.MarkedYAMLError as error:  # its own text would quote the file, which may hold a secret
        at = f"{where}{_at(error.problem_mark)}" if error.problem_mark and lines else where
        why = ": ".join(part for part in (error.context, error.problem) if part)
        raise UsageError(f"{at}: not valid YAML: {why}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        at = f"{where}, line {line}" if lines else where
        raise UsageError(f"{at}: not text: the character {chr(error.character)!a} has no place in YAML") from None
    except RecursionError:
        raise UsageError(f"{where}: nested too deeply") from None
    finally:
        if loader is not None:
            loader.dispose()


class _Building:
    """Values from nodes; aliases are expanded, and counted."""

    def __init__(self, loader: yaml.SafeLoader, where: str, lines: bool) -> None:
        self.places: dict[Path, Place] = {}
        self._loader = loader
        self._where = where
        self._lines = lines
        self._around: list[yaml.Node] = []
        self._count = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise UsageError(f"{self._where}: more than {_MOST_VALUES} values, once its aliases are written out")
        if any(node is other for other in self._around):
            raise self._error(node, "an anchor that contains itself")
        if len(self._around) >= MOST_DEPTH:
            raise self._error(node, f"nested deeper than {MOST_DEPTH} levels")
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        line = f"line {node.start_mark.line + 1}" if self._lines else self._where
        self.places[path] = Place(line, _brief(node) if plain else None)
        self._around.append(node)
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == f"{_CORE}map":
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == f"{_CORE}seq":
                return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self._around.pop()

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[Any, Any]:
        place = self.places[path]
        merged: dict[Any, Any] = {}
        for source in _merged(node):
            if not isinstance(source, yaml.MappingNode):
                raise self._error(source, "'<<' takes a mapping, or a list of them")
            merged = {**self.build(source, path), **merged}
        self.places[path] = place
        own: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self._scalar(key_node)
            if isinstance(key, bool):  # which would equal 0 or 1
                key = Unclear(_brief(key_node), "a bool")
            if key in own:
                raise self._error(key_node, f"the key {key_node.value!r:.100} is given twice")
            own[key] = self.build(value_node, (*path, key if isinstance(key, str) else str(key)))
        return {**merged, **own}

    def _scalar(self, node: yaml.Node) -> Hashable:
        if not isinstance(node, yaml.ScalarNode):
            if node.tag in (f"{_CORE}map", f"{_CORE}seq"):
                raise self._error(node, "a key must be a text, not a list or a mapping")
            raise self._bad_tag(node)
        if node.tag == _DATE:
            return Unclear(_brief(node), "a date")
        if node.tag == _MERGE:
            return str(node.value)
        if node.tag not in _PLAIN:
            raise self._bad_tag(node)
        try:
            value: Hashable = self._loader.construct_object(node)
        except (ValueError, KeyError, AttributeError, IndexError):
            raise self._error(node, f"this is not a valid {node.tag.removeprefix(_CORE)}") from None
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise self._error(node, "a number of more than 64 bits")
        is_odd = ":" in node.value or (isinstance(value, int) and _LEADING_ZERO.fullmatch(node.value))
        if isinstance(value, int | float) and not isinstance(value, bool) and is_odd:
            return Unclear(_brief(node), "a number", value)
        return value

    def _bad_tag(self, node: yaml.Node) -> UsageError:
        tag = node.tag.replace(_CORE, "!!")
        return self._error(node, f"the tag {tag!r:.100} is not allowed: only texts, numbers, lists and mappings are")

    def _error(self, node: yaml.Node, text: str) -> UsageError:
        return UsageError(f"{self._where}{_at(node.start_mark) if self._lines else ''}: {text}")


def _merged(node: yaml.MappingNode) -> Iterator[yaml.Node]:
    """What `<<` names, in order."""
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE:
            yield from value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]


def _brief(node: yaml.Node) -> str:
    return node.value if len(node.value) <= _LONGEST else f"{node.value[:_LONGEST]}..."


def _at(mark: yaml.Mark) -> str:
    return f", line {mark.line + 1}, column {mark.column + 1}"
