"""Pickles for a worker, in which classes and functions that it cannot import travel by value.

cloudpickle takes them apart. Two things differ from its own pickles: functions of the main script keep one set of
globals, the worker's `__main__`, so that caches and counters there are shared as in any module; and what a worker has
got already is only referred to.
"""

import dis
import io
import pickle
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any

import cloudpickle
import msgspec

from asyncrollout.pool.wire import definitions
from asyncrollout.pool.wire.definitions import MAIN, SentDefinitions

_Reduced = Any
"""What `__reduce_ex__` gives; or NotImplemented, for pickle's own way."""

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_MISSING = object()
_READS_NAME = ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_DEPTH = 6  # of attributes that an error names
_CACHED = type(lru_cache(lambda: None))
_TYPING: dict[type, Callable[[Any], _Reduced]] = {
    typing.NewType: lambda kind: (typing.NewType, (kind.__name__, kind.__supertype__)),
    typing.ParamSpec: lambda kind: (typing.ParamSpec, (kind.__name__,)),
    typing.TypeVarTuple: lambda kind: (typing.TypeVarTuple, (kind.__name__,)),
}
if sys.version_info >= (3, 12):
    _TYPING[typing.TypeAliasType] = lambda alias: (
        partial(typing.TypeAliasType, type_params=alias.__type_params__),
        (alias.__name__, alias.__value__),
    )
_NOT_SENT = ("__msgspec_cache__",)  # of a class that msgspec has seen; it is made again where it is needed
_OF_STRUCTS = ("__annotations__", "__match_args__", "__module__", "__slots__", *_NOT_SENT)


class _MainGlobals(dict[str, Any]):
    """Stands for the worker's own main module."""

    def __reduce__(self) -> tuple[Any, ...]:
        return definitions.main_globals, ()


class _Bound(dict[str, Any]):
    """Globals that a worker binds as soon as it has read them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return definitions.bind, (dict(self),)


class _Parcel:
    """A value, and the globals it uses that were rebound since the worker got them."""

    def __init__(self, names: Mapping[str, Any], value: Any) -> None:
        self._parts = _Bound(names), value

    def __reduce__(self) -> tuple[Any, ...]:
        return definitions.unwrap, self._parts


class _Shipment:
    """The pickle of a value, what else the worker should have, and the classes that it may forget."""

    def __init__(self, value: bytes, extras: bytes, gone: list[str]) -> None:
        self._parts = value, extras, gone

    def __reduce__(self) -> tuple[Any, ...]:
        return definitions.deliver, self._parts


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no types
    def __init__(self, file: io.BytesIO, sent: SentDefinitions) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._main = definitions.main_globals()
        self.globals_ref[id(self._main)] = _MainGlobals(here=True)  # not empty, or cloudpickle would fill it
        self._sent = sent
        self.names: dict[str, Any] = {}
        self.classes: dict[str, type] = {}

    def reducer_override(self, obj: Any) -> _Reduced:
        if isinstance(obj, type):
            return self._reduce_class(obj)
        if type(obj) is types.FunctionType:
            return self._reduce_function(obj)
        if type(obj) is _CACHED and _is_of_main(obj):
            return definitions.cached, (obj.__wrapped__, obj.cache_parameters())
        if type(obj) in _TYPING and _is_of_main(obj):  # pickle knows them by their names only
            return _TYPING[type(obj)](obj)
        if type(obj) is cached_property:  # before Python 3.12 it holds a lock
            return definitions.cached_attribute, (obj.func, obj.attrname)
        return super().reducer_override(obj)

    def _reduce_class(self, kind: type) -> _Reduced:
        key = definitions.key_of(kind)
        if key is not None and key in self._sent.classes:
            return definitions.known, (key,)
        reduced = super().reducer_override(kind)
        if reduced is NotImplemented or len(reduced) < 6:  # importable, or a type of Python's own
            return reduced
        make, args, (attributes, slots), _, _, setter = reduced
        unsent: tuple[str, ...] = _NOT_SENT
        if make is cloudpickle.cloudpickle._make_skeleton_class:  # noqa: SLF001 (not that of an enum)
            args = _with_layout(kind, args)
        if issubclass(kind, msgspec.Struct):  # its fields are those that its metaclass sees
            make, args, unsent = definitions.make_struct, _struct_parts(kind), (*_OF_STRUCTS, *kind.__struct_fields__)
        state = {name: value for name, value in attributes.items() if name not in unsent}, slots
        key = definitions.new_key(kind)
        self.classes[key] = kind
        names = {**self._own_name(kind), **self._annotated(vars(kind).get("__annotations__"))}
        content = key, setter, state, self._unsent(names)
        return definitions.define, (key, make, args), content, None, None, definitions.fill

    def _reduce_function(self, function: types.FunctionType) -> _Reduced:
        is_main = function.__globals__ is self._main
        own = self._own_name(function) if is_main else {}
        if own and "." not in function.__qualname__ and self._sent.names.get(function.__qualname__) is function:
            return definitions.main_attribute, (function.__qualname__,)
        reduced = super().reducer_override(function)
        if reduced is NotImplemented:
            return reduced
        make, args, (attributes, slots), *rest = reduced
        scope = function.__globals__
        inner = {name: scope[name] for name in _class_body_names(function.__code__) if name in scope}
        names = {**slots["__globals__"], **inner}
        if is_main:
            names = self._unsent({**names, **own, **self._annotated(function.__annotations__)})
        return make, args, (attributes, {**slots, "__globals__": names}), *rest

    def _own_name(self, definition: Any) -> dict[str, Any]:
        """The global that a class or function is found by: a user's own `pickle.dumps` in a worker looks there."""
        if not _is_of_main(definition):
            return {}
        root, *path = definition.__qualname__.split(".")
        found = outer = self._main.get(root)
        for part in path:
            found = getattr(found, part, None)
        return {root: outer} if found is definition else {}

    def _annotated(self, annotations: Any) -> dict[str, Any]:
        """What annotations that are texts refer to; msgspec and others look for it when they need it."""
        if not isinstance(annotations, dict):
            return {}
        texts = [hint for hint in annotations.values() if isinstance(hint, str)]
        used = {name for hint in texts for name in _IDENTIFIER.findall(hint)}
        return {name: self._main[name] for name in sorted(used) if name in self._main}

    def _unsent(self, names: dict[str, Any]) -> dict[str, Any]:
        sent = self._sent.names
        new = {name: value for name, value in names.items() if sent.get(name, _MISSING) is not value}
        self.names.update(new)
        return new


def _is_of_main(definition: Any) -> bool:
    name: str = getattr(definition, "__qualname__", "")  # some of typing's have none, and are always global
    return getattr(definition, "__module__", None) == MAIN and "<locals>" not in name


def _class_body_names(code: types.CodeType) -> Iterator[str]:
    """The globals that the bodies of classes in a function read, which cloudpickle overlooks."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from (step.argval for step in dis.get_instructions(inner) if step.opname in _READS_NAME)
            yield from _class_body_names(inner)


def _with_layout(kind: type, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What cloudpickle leaves out of a class that it makes: its full name, which digests hold, and its slots."""
    meta, name, bases, content, *rest = args
    has_slots = "__slots__" in vars(kind) and not issubclass(kind, tuple)  # whose metaclass may make them itself
    slots = {"__slots__": vars(kind)["__slots__"]} if has_slots else {}
    return meta, name, bases, {**content, **slots, "__qualname__": kind.__qualname__}, *rest


def _struct_parts(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    """What a struct was defined by: name, bases, annotations, the fields' own values, and options."""
    annotations = dict(vars(kind).get("__annotations__", {}))
    own = [field for field in msgspec.structs.fields(kind) if field.name in annotations]
    fields = {field.name: (field.default, field.default_factory, field.encode_name) for field in own}
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    config: Any = kind.__struct_config__
    options = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    options["kw_only"] = any(name not in kind.__match_args__ for name in annotations)
    return type(kind), kind.__name__, kind.__bases__, {**named, "__annotations__": annotations}, (fields, options)


def dumps(value: Any, sent: SentDefinitions) -> bytes:
    """The value for a worker that has got `sent`, which is brought up to date. PicklingError names what cannot travel.

    Globals that a function of the main script uses travel with it. If they are rebound, the worker gets them again.
    What the value does not need is left out where it cannot travel, and loaded apart: others must not suffer from it.
    """
    renewed = sent.renewed(definitions.main_globals())
    used = {name: renewed.pop(name) for name in _names_of(value) if name in renewed} if renewed else {}
    pickled, pickler = _pickle(_Parcel(used, value) if used else value, sent, blamed=value)
    sent.add(pickler.names, pickler.classes)
    gone = sent.gone_classes()
    extras = _extras({name: bound for name, bound in renewed.items() if name not in pickler.names}, sent)
    sent.forget(gone)
    if not extras and not gone:
        return pickled
    return pickle.dumps(_Shipment(pickled, extras, gone), pickle.HIGHEST_PROTOCOL)


def _pickle(content: Any, sent: SentDefinitions, blamed: Any) -> tuple[bytes, _Pickler]:
    file = io.BytesIO()
    pickler = _Pickler(file, sent)
    try:
        pickler.dump(content)
    except Exception as error:  # pickle raises all sorts
        raise pickle.PicklingError(f"{_culprit(blamed, pickler)}{error}") from error
    return file.getvalue(), pickler


def _names_of(value: Any) -> list[str]:
    """The globals of the main script that a value uses, also by classes that a worker may have got."""
    return [*_pickle(value, SentDefinitions(), value)[1].names]


def _extras(names: dict[str, Any], sent: SentDefinitions) -> bytes:
    """What other workers have got: the snapshot of an env there may refer to it."""
    classes = sent.missing_classes()
    if not names and not classes:
        return b""
    try:
        pickled, pickler = _pickle((_Bound(names), classes), sent, None)
    except pickle.PicklingError:
        names = {name: bound for name, bound in names.items() if _travels(bound)}
        classes = [kind for kind in classes if _travels(kind)]
        pickled, pickler = _pickle((_Bound(names), classes), sent, None)
    sent.add_extras(pickler.names | names, pickler.classes)
    return pickled


def _culprit(value: Any, pickler: _Pickler) -> str:
    """What cannot travel, as the start of a message: a global, a part of a class, or a part of the value."""
    data = {name: used for name, used in pickler.names.items() if not isinstance(used, type | types.FunctionType)}
    classes = {kind.__qualname__: kind for kind in pickler.classes.values()}
    for said, roots in (("the main script's ", data), ("", classes), ("", {"": value})):
        for name, root in roots.items():
            path = [] if _travels(root) else _path_to_culprit(root)
            if path or (name and not _travels(root)):
                place = f"{name}{''.join(place for place, _ in path)}".removeprefix(".")
                culprit = path[-1][1] if path else root
                return f"{said}{place} is a {type(culprit).__qualname__}: "
    return ""


def _path_to_culprit(value: Any) -> list[tuple[str, Any]]:
    path: list[tuple[str, Any]] = []
    while len(path) < _DEPTH:
        found = next(((place, part) for place, part in _parts(value) if not _travels(part)), None)
        if found is None:
            break
        path.append(found)
        value = found[1]
    return path


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r:.40}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    elif isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((f".{name}", cell.cell_contents) for name, cell in cells if cell != types.CellType())
    elif isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items() if not name.startswith("__"))
    elif not isinstance(value, types.ModuleType):
        fields: Any = getattr(value, "__struct_fields__", None) or getattr(value, "__dict__", ())
        yield from ((f".{name}", getattr(value, name, None)) for name in fields)


def _travels(value: Any) -> bool:
    try:
        _Pickler(io.BytesIO(), SentDefinitions()).dump(value)
    except Exception:
        return False
    return True
