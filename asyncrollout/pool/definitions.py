"""Classes and functions that a worker cannot import, such as those of the main script: how they are known there.

They travel by value (see `by_value.py`) and become part of the worker's own `__main__`, which functions of the main
script then have as their globals. A class travels once to each worker. From then on both sides refer to it by its
key, so that an object that comes back is an instance of the very class that it was sent as.

This module is what a worker needs to load and to refer to them; only pickling by value needs cloudpickle.
"""

import io
import pickle
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from asyncrollout.pool.main_module import is_worker

MAIN = "__main__"

_keys: "WeakKeyDictionary[type, str]" = WeakKeyDictionary()
_classes: "WeakValueDictionary[str, type]" = WeakValueDictionary()
_received: dict[str, type] = {}
_troubles: list[str] = []
_lock = threading.Lock()


class Sent:
    """What a worker has got so far."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}  # globals of the main script
        self.classes: WeakValueDictionary[str, type] = WeakValueDictionary()  # by their keys
        self._keys: set[str] = set()

    def is_behind(self) -> bool:
        """Whether other workers have got more. The snapshot of an env there may refer to it."""
        return len(self.names) < len(names_sent) or bool(self.missing_classes())

    def missing_classes(self) -> list[type]:
        return [kind for key, kind in list(classes_sent.items()) if key not in self._keys]

    def gone_classes(self) -> list[str]:
        """The keys of classes that no longer exist here; an env that is open keeps those that it was made of."""
        return [key for key in self._keys if key not in self.classes]

    def add(self, names: Mapping[str, Any], classes: Mapping[str, type], gone: Iterable[str] = ()) -> None:
        self.names.update(names)
        self.classes.update(classes)
        self._keys.update(classes)
        self._keys.difference_update(gone)
        names_sent.update(dict.fromkeys(names))
        classes_sent.update(classes)


names_sent: dict[str, None] = {}
"""The globals of the main script that any worker has got."""

classes_sent: "WeakValueDictionary[str, type]" = WeakValueDictionary()
"""The classes that any worker has got; of those that were defined anew, only what is still in use."""


def main_globals() -> dict[str, Any]:
    return vars(sys.modules[MAIN])


def key_of(kind: type) -> str | None:
    """The key of a class that was sent or received."""
    try:
        return _keys.get(kind)
    except TypeError:  # a metaclass without a hash
        return None


def new_key(kind: type) -> str:
    with _lock:
        key = _keys.get(kind)
        if key is None:
            key = _keys[kind] = uuid.uuid4().hex
            _classes[key] = kind
    return key


def is_importable(kind: type) -> bool:
    """Whether a class is found by its own name in its own module."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


# What pickles call when they are loaded.


def known(key: str) -> type:
    """The class of a key."""
    kind = _received.get(key) or _classes.get(key)
    if kind is None:
        raise pickle.UnpicklingError(f"it refers to a class that {_absence()}")
    return kind


def _absence() -> str:
    return f"could not be loaded before: {_troubles[-1]}" if _troubles else "was never sent here, or is gone"


def note_trouble(reason: str) -> None:
    """Something could not be loaded here, and with it, perhaps, classes that are referred to later."""
    _troubles[:] = [reason]


def define(make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """A new class, still empty."""
    return make(*args)


def fill(kind: type, state: tuple[str, Callable[[type, Any], object], Any, dict[str, Any]]) -> None:
    """Give a new class what it has, its key, and its name in the main module."""
    key, setter, content, names = state
    setter(kind, content)
    _received[key] = _classes[key] = kind
    _keys[kind] = key
    main_globals().update(names)


def bind(names: dict[str, Any]) -> None:
    """Bind globals of the main module, before what comes with them is loaded."""
    main_globals().update(names)


def unwrap(_bound: None, _classes: list[type], gone: list[str], value: Any) -> Any:
    for key in gone:
        _received.pop(key, None)
    return value


def main_attribute(name: str) -> Any:
    try:
        return main_globals()[name]
    except KeyError:
        raise pickle.UnpicklingError(f"it refers to {name!r}, which {_absence()}") from None


def cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


def cached_attribute(function: Callable[..., Any], name: str) -> Any:
    made: Any = cached_property(function)
    made.attrname = name
    return made


def make_struct(
    meta: Any, name: str, bases: tuple[type, ...], content: dict[str, Any], given: tuple[dict[str, Any], dict[str, Any]]
) -> Any:
    """A struct of msgspec, still without its methods."""
    fields, options = given
    describe: Any = msgspec.field
    values = {
        field: describe(default=default, default_factory=factory, name=None if encoded == field else encoded)
        for field, (default, factory, encoded) in fields.items()
    }
    return meta(name, bases, {**content, **values}, **options)


class _ReferringPickler(pickle.Pickler):
    """Refers to classes that the other side has, or that it is itself; others must be importable there."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, type):
            return NotImplemented
        key = key_of(obj)
        if key is None and not is_importable(obj):
            if is_worker():
                raise pickle.PicklingError(
                    f"class {obj.__qualname__} was made in the worker: define it at the top of a module or script"
                )
            key = new_key(obj)  # for an env in this very process
        return NotImplemented if key is None else (known, (key,))


def refer(value: Any) -> bytes:
    """A pickle for the process that all classes in it came from, or for this one."""
    file = io.BytesIO()
    _ReferringPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def are_asked_for() -> bool:
    """Whether the user has asked cloudpickle to send some modules by value."""
    asked = getattr(sys.modules.get("cloudpickle"), "list_registry_pickle_by_value", None)
    return bool(asked and asked())


def came_here() -> bool:
    """Whether this process has classes of its parent, which it must not refer to by their names."""
    return bool(_received)
