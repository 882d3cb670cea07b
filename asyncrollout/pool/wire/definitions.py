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
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from asyncrollout.pool.wire.main_module import is_worker
from asyncrollout.pool.wire.raised import describe, is_own

MAIN = "__main__"
_NOTICE = "__init_subclass__"

_keys: "WeakKeyDictionary[type, str]" = WeakKeyDictionary()
_classes: "WeakValueDictionary[str, type]" = WeakValueDictionary()
_received: dict[str, type] = {}
_troubles: list[str] = []
_lock = threading.Lock()


class SentDefinitions:
    """What a worker has got so far.

    Extras were sent in case that an env's snapshot refers to them. They travel again with the first value that uses
    them, since nobody would hear that they could not be loaded.
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}  # globals of the main script
        self.classes: WeakValueDictionary[str, type] = WeakValueDictionary()  # by their keys
        self._extra_names: dict[str, Any] = {}
        self._alive: WeakValueDictionary[str, type] = WeakValueDictionary()  # extras, too
        self._keys: set[str] = set()
        self.latest: tuple[list[str], list[str]] | None = None  # names and keys that were added last
        self._complete = 0  # the number of classes that were sent to any worker when none was missing here

    def is_behind(self) -> bool:
        """Whether other workers have got more. The snapshot of an env there may refer to it."""
        return len(self.names | self._extra_names) < len(names_sent) or bool(self.missing_classes())

    def renewed(self, main: Mapping[str, Any]) -> dict[str, Any]:
        """Globals of the main script that were rebound since the worker got them, or that only others have got."""
        found = {name: main[name] for name in list(names_sent) if name in main}
        return {name: value for name, value in found.items() if not self._has_name(name, value)}

    def _has_name(self, name: str, value: Any) -> bool:
        return any(name in names and names[name] is value for names in (self.names, self._extra_names))

    def missing_classes(self) -> list[type]:
        count = _sent_so_far[0]
        if self._complete == count:
            return []
        missing = [kind for key, kind in list(classes_sent.items()) if key not in self._keys]
        if not missing:
            self._complete = count
        return missing

    def gone_classes(self) -> list[str]:
        """The keys of classes that no longer exist here; an env that is open keeps those that it was made of."""
        if len(self._alive) == len(self._keys):
            return []
        return [key for key in self._keys if key not in self._alive]

    def add(self, names: Mapping[str, Any], classes: Mapping[str, type]) -> None:
        self.names.update(names)
        self.classes.update(classes)
        for name in names:
            self._extra_names.pop(name, None)
        self._note(names, classes)
        if names or classes:
            self.latest = [*names], [*classes]

    def add_extras(self, names: Mapping[str, Any], classes: Mapping[str, type]) -> None:
        self._extra_names.update(names)
        for name in names:
            self.names.pop(name, None)
        self._note(names, classes)

    def take_back(self, names: Iterable[str], keys: Iterable[str]) -> None:
        """The worker could not load the value that these came with, and may have none of them."""
        for name in names:
            self.names.pop(name, None)
        for key in keys:
            self.classes.pop(key, None)
        self._keys.difference_update(keys)
        self._complete = -1

    def forget(self, gone: Iterable[str]) -> None:
        self._keys.difference_update(gone)

    def _note(self, names: Mapping[str, Any], classes: Mapping[str, type]) -> None:
        self._alive.update(classes)
        self._keys.update(classes)
        names_sent.update(dict.fromkeys(names))
        new = {key: kind for key, kind in classes.items() if key not in classes_sent}
        classes_sent.update(new)
        _sent_so_far[0] += len(new)


_sent_so_far = [0]
"""How many classes any worker has got, those included that are gone."""

names_sent: dict[str, None] = {}
"""The globals of the main script that any worker has got."""

classes_sent: "WeakValueDictionary[str, type]" = WeakValueDictionary()
"""The classes that any worker has got; of those that were redefined, only what is still in use."""


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


def define(key: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """A new class, still empty; or the one of this key, if it came before."""
    known_as = _received.get(key)
    if known_as is not None:
        return known_as
    bases = next(part for part in args if type(part) is tuple)
    with _unnoticed(types.resolve_bases(bases)):
        return make(*args)


@contextmanager
def _unnoticed(bases: tuple[type, ...]) -> Iterator[None]:
    """A class was announced to its bases where it was defined, and what they made of it travels with them."""
    owners = {owner for base in bases for owner in base.__mro__ if key_of(owner) is not None}
    noticing = [(owner, vars(owner)[_NOTICE]) for owner in owners if _NOTICE in vars(owner)]
    for owner, _ in noticing:
        type.__setattr__(owner, _NOTICE, _passing_on(owner))
    try:
        yield
    finally:
        for owner, own in noticing:
            type.__setattr__(owner, _NOTICE, own)


def _passing_on(owner: Any) -> Any:
    def pass_on(kind: type[Any], /, **options: Any) -> None:
        super(owner, kind).__init_subclass__(**options)

    return classmethod(pass_on)


def fill(kind: type, state: tuple[str, Callable[[type, Any], object], Any, dict[str, Any]]) -> None:
    """Give a new class what it has, its key, and its name in the main module."""
    key, setter, content, names = state
    if _received.get(key) is not kind:
        setter(kind, content)
    _received[key] = _classes[key] = kind
    _keys[kind] = key
    main_globals().update(names)


def bind(names: dict[str, Any]) -> None:
    """Bind globals of the main module, before what comes with them is loaded."""
    main_globals().update(names)


def unwrap(_bound: None, value: Any) -> Any:
    return value


def deliver(value: bytes, extras: bytes, gone: list[str]) -> Any:
    """The value of a delivery. If the extras cannot be loaded, whatever refers to them raises that error."""
    try:
        return pickle.loads(value)  # a part of a pickle of our own
    finally:
        for key in gone:
            _received.pop(key, None)
        if extras:
            _load_extras(extras)


def _load_extras(extras: bytes) -> None:
    try:
        pickle.loads(extras)  # likewise
    except BaseException as error:  # a user's class may raise anything while it is made
        if not is_own(error):
            raise
        note_trouble(describe(error))


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
