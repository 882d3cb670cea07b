"""The form of any value: its content in parts, so that equal values have equal forms in every process."""

import copyreg
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from asyncrollout.images import is_pil
from asyncrollout.pool.wire import codec

_COLUMNS = 1021  # a prime, so that rows of pictures do not fall on the same columns
_PROTOCOL = 4  # of pickle, for `__reduce_ex__`; 5 would hand out buffers
_NAMED = (type, FunctionType, ModuleType)
_encode = msgspec.msgpack.Encoder().encode


class Form(NamedTuple):
    """A value's own content, and its parts; `ordered` says whether their order counts."""

    head: bytes
    parts: Sequence[Any] = ()
    ordered: bool = True


class _Unordered(NamedTuple):
    members: Sequence[Any]


def form_of(value: Any) -> Form:
    """The form of a value that is not plain; raises `UnsendableError` if it has none, such as a lock."""
    make = _CONTAINERS.get(type(value))
    if make is not None:
        return make(value)
    try:
        return _object_form(value)
    except Exception as error:  # a user's class may raise anything
        raise codec.UnsendableError(f"a {type(value).__qualname__} has no digest: {error}") from error


def _object_form(value: Any) -> Form:
    if isinstance(value, np.ndarray | np.generic):
        return _array_form(value)
    if isinstance(value, _NAMED):
        return Form(_encode(["name", _name(value)]))
    if isinstance(value, Enum):
        return Form(_encode(["enum", _name(type(value)), value.name]), [] if value.name else [value.value])
    if is_pil(value):  # its attributes are those of the file that it came from
        pixels = np.frombuffer(value.tobytes(), np.uint8)
        return Form(_encode(["picture", value.mode, value.size]), [pixels, value.getpalette()])
    if _is_tensor(value):
        return _tensor_form(value)
    return _reduced_form(value)


def _filled(name: str, parts: Sequence[Any]) -> Form:
    if codec.PLAIN.issuperset(map(type, parts)):
        try:
            return Form(_encode([name, parts]))
        except codec.INEXACT:  # half a character, a number of more than 64 bits
            pass
    return Form(name.encode(), parts)


_CONTAINERS: dict[type, Callable[[Any], Form]] = {
    list: lambda value: _filled("list", value),
    tuple: lambda value: _filled("tuple", value),
    dict: lambda value: _filled("dict", list(chain.from_iterable(value.items()))),
    set: lambda value: Form(b"set", list(value), ordered=False),
    frozenset: lambda value: Form(b"frozenset", list(value), ordered=False),
    _Unordered: lambda value: Form(b"members", value.members, ordered=False),
}


def _name(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    return f"{value.__module__}:{value.__qualname__}"


def _reduced_form(value: Any) -> Form:
    """By what a pickle would hold of an object; nothing else counts."""
    kind = type(value)
    reduce: Any = copyreg.dispatch_table.get(kind)
    reduced: Any = value.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(value)
    if isinstance(reduced, str):
        return Form(_encode(["name", f"{getattr(value, '__module__', None)}:{reduced}"]))
    reduced += (None,) * (6 - len(reduced))
    make, args, state, items, pairs, setter = reduced
    if _is_own(kind, set, frozenset):
        args = _Unordered(args[0])
    parts = [make, args, _by_name(state), _listed(items), _listed(pairs), setter]
    return Form(_encode(["object", _name(kind)]), parts)


def _is_own(kind: Any, *bases: Any) -> bool:
    """Whether a class is pickled by the methods that it inherits from one of these."""
    return any(
        issubclass(kind, base) and kind.__reduce__ is base.__reduce__ and kind.__reduce_ex__ is base.__reduce_ex__
        for base in bases
    )


def _by_name(state: Any) -> Any:
    """An object's attributes, in an order that does not depend on which of them was set first."""
    if type(state) is tuple:
        return tuple(map(_by_name, state))
    return dict(sorted(state.items())) if type(state) is dict and {str}.issuperset(map(type, state)) else state


def _listed(items: Iterable[Any] | None) -> list[Any]:
    return [] if items is None else list(items)


def _array_form(value: Any) -> Form:
    if isinstance(value, np.ma.MaskedArray) and value is not np.ma.masked:
        return Form(_encode(["masked", _name(type(value))]), _masked_parts(value))
    if isinstance(value, np.generic):
        return _content(np.asarray(value), "scalar")
    if type(value) is np.ndarray:
        return _content(value, "array")
    if _is_own(type(value), np.ndarray):
        return _content(np.asarray(value), _name(type(value)))
    return _reduced_form(value)


def _masked_parts(value: Any) -> list[Any]:
    dtype = value.dtype
    blank: Any = np.zeros((), dtype)[()]  # values behind the mask do not count
    fill = np.asarray(value.fill_value).astype(dtype)  # a pickle takes it over as it is or in the array's own type
    return [np.asarray(np.ma.getmaskarray(value)), np.asarray(value.filled(blank)), fill]


def _content(array: np.ndarray[Any, Any], kind: str) -> Form:
    dtype = array.dtype
    if dtype.names is not None:  # field by field, since the padding between them is arbitrary
        return Form(_encode([kind, array.shape, dtype.names]), [array[name] for name in dtype.names])
    if dtype.hasobject:
        return Form(_encode([kind, array.shape, str(dtype)]), list(array.flat))
    array = native(array)
    return Form(_encode([kind, array.shape, array.dtype.str, str(array.dtype), checksum(array)]))


def native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values in this machine's byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def checksum(array: np.ndarray[Any, Any]) -> int:
    """A CRC of all bytes. A large array is first summed in columns of 64 bits, which takes a tenth of the time.

    One changed value always changes the sum of its column. A value that moves changes two columns, unless it moves by a
    multiple of their number.
    """
    if not array.nbytes:
        return 0
    content = np.ascontiguousarray(codec.without_padding(array)).reshape(-1).view(np.uint8)
    rows = content.size // (8 * _COLUMNS)
    if rows < 2:
        return crc32(content.data)
    whole = 8 * _COLUMNS * rows
    sums = np.add.reduce(content[:whole].view(np.uint64).reshape(rows, _COLUMNS), axis=0)
    return crc32(content[whole:].data, crc32(sums.data))


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch, which need not be installed."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__)


def _tensor_form(tensor: Any) -> Form:
    """By value, since the pickle of a tensor holds its memory address."""
    torch = sys.modules["torch"]
    plain = tensor.detach().to_dense().cpu().resolve_conj().resolve_neg().contiguous()
    content = plain.reshape(-1).view(torch.uint8).numpy()
    head = [_name(type(tensor)), [*plain.shape], str(tensor.dtype), str(tensor.layout), tensor.requires_grad]
    return Form(_encode(["tensor", *head]), [content])
