"""Values of all kinds that msgpack does not know, each made of a number, and an env that shows them."""

import copyreg
import dataclasses
import os
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from asyncrollout import Observation


class Color(Enum):
    RED = 1
    GREEN = 2


class Text(str):  # noqa: SLOT000 (one with attributes)
    mark: Any


class Bytes(bytes):
    mark: Any


class Whole(int):
    mark: Any


class Real(float):
    mark: Any


class Row(list[Any]):
    mark: Any


class Table(dict[Any, Any]):
    mark: Any


class Queue(deque[Any]):
    mark: Any


class Bag(set[Any]):
    mark: Any


class Frame(np.ndarray[Any, Any]):
    """An array with a name of its own."""


Pair = namedtuple("Pair", "first second")  # noqa: PYI024 (as many envs have it)


class Slots:
    __slots__ = ("left", "right")

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right


class Node:
    """Knows its neighbours, which know it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.near: list[Node] = []


@dataclasses.dataclass(frozen=True)
class Card:
    suit: str
    rank: Any


class Record(msgspec.Struct):
    name: str
    content: Any


class Tensor:
    """Keeps its content outside of its `__dict__`, as torch does, and says it to pickles only."""

    _contents: ClassVar[dict[int, Any]] = {}

    def __init__(self, content: Any) -> None:
        self._contents[id(self)] = content

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return Tensor, (self._contents[id(self)],)


class Registered:
    """Is pickled by a function of another place."""

    def __init__(self, content: Any) -> None:
        self.content = content


copyreg.pickle(Registered, lambda given: (Registered, (given.content,)))


def marked(kind: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def make(content: Any, mark: Any) -> Any:
        value = kind(content)
        value.mark = mark
        return value

    return make


def long_doubles(number: int) -> Any:
    """As a simulator makes them: behind each there is what was in memory."""
    values = np.array([number, number + 0.5], dtype=np.longdouble).view(np.uint8).reshape(2, -1)
    values[:, 10:] = np.frombuffer(os.urandom(2 * (values.shape[1] - 10)), np.uint8).reshape(2, -1)
    array = values.reshape(-1).view(np.longdouble)
    return [array, array[0], {"large": np.repeat(array, 3_000)}]


def padded(number: int) -> Any:
    """Records with gaps, and in the gaps what was in memory."""
    dtype = np.dtype([("flag", "i1"), ("value", "f8")], align=True)
    array = np.frombuffer(bytearray(os.urandom(2 * dtype.itemsize)), dtype)
    array["flag"], array["value"] = 1, number
    return array


def twice(number: int) -> list[Any]:
    """One text two times, or two equal ones: as it comes, if there is a cache that others use, too."""
    text = f"number {number}"
    return [text, text if os.urandom(1)[0] % 2 else f"number {number}"]


def objects(number: int) -> Any:
    array = np.empty((2, 2), dtype=object)
    array[0] = twice(number)
    array[1] = [{"a": number}, None]
    return array


def cycle(number: int) -> Any:
    value: dict[str, Any] = {"number": number, "seen": [1.5]}
    value["self"] = value
    value["seen"].append(value)
    return value


def grid(number: int) -> Any:
    """Cells that know their neighbours; there are more ways through them than one can follow."""
    cells = {(row, column): Node(0) for row in range(5) for column in range(5)}
    for (row, column), cell in cells.items():
        cell.near = [cells[place] for place in ((row - 1, column), (row, column + 1)) if place in cells]
        cell.near += [cells[place] for place in ((row + 1, column), (row, column - 1)) if place in cells]
    cells[3, 2].number = number
    return cells


def nested(number: int) -> Any:
    value: Any = number
    for _ in range(150):
        value = [value]
    return value


def masked(number: int) -> Any:
    array = np.ma.masked_array([number, 2, 3], mask=[False, True, False])
    array.data[1] = int.from_bytes(os.urandom(2))
    return array


def masked_texts(number: int) -> Any:
    array = np.ma.masked_array([str(number), "b"], mask=[False, True])
    return [array, array.fill_value, array.astype(object)]  # once read, it travels in another type


def masked_record(number: int) -> Any:
    return np.ma.masked_array([(number, 2.0)], mask=[(False, True)], dtype=[("a", "i4"), ("b", "f8")])[0]


KINDS: dict[str, Callable[[int], Any]] = {
    "deque": lambda number: deque([1, *twice(number)], maxlen=5),
    "deque with attributes": lambda number: marked(Queue)([1, 2], number),
    "object array": objects,
    "slots": lambda number: Slots(*twice(number)),
    "long double": long_doubles,
    "padded records": padded,
    "cycle": cycle,
    "grid": grid,
    "nested deeply": nested,
    "text with attributes": lambda number: marked(Text)("the same", number),
    "bytes with attributes": lambda number: marked(Bytes)(b"the same", number),
    "whole number with attributes": lambda number: marked(Whole)(7, number),
    "number with attributes": lambda number: marked(Real)(7.5, number),
    "list with attributes": lambda number: marked(Row)([1, 2], number),
    "dict with attributes": lambda number: marked(Table)({"a": 1}, number),
    "set": lambda number: {f"member {number + place}" for place in range(9)},
    "set with attributes": lambda number: marked(Bag)({"a", "b", "c"}, number),
    "set of objects": lambda number: {Card("hearts", number), Card("spades", 2), Color.RED},
    "counter": lambda number: Counter(a=number, b=2),
    "defaultdict": lambda number: defaultdict(list, {"a": [number]}),
    "ordered dict": lambda number: OrderedDict(a=number, b=2),
    "named tuple": lambda number: Pair(number, "second"),
    "enum": lambda number: {"color": list(Color)[number % 2], "number": number},
    "dataclass": lambda number: Card("hearts", [number]),
    "struct": lambda number: Record("name", (number,)),
    "tensor": lambda number: Tensor(np.arange(number, number + 3)),
    "registered": lambda number: Registered({number}),
    "masked array": masked,
    "masked texts": masked_texts,
    "masked record": masked_record,
    "kind of array": lambda number: np.array([[1, number]]).view(Frame),
    "texts": lambda number: np.array(["a", f"{number}"], dtype=np.dtypes.StringDType()),
    "other byte order": lambda number: np.arange(number, number + 5, dtype=">i8"),
    "long double of other byte order": lambda number: np.array([number, number + 0.1], np.longdouble).astype(">f16"),
    "large": lambda number: {"frame": np.full(100_000, number), "odd": 1 + 2j},
    "shared": lambda number: [[row := [number], row], {1j: row}],
    "large number": lambda number: [2**80 + number, "\ud800"],
    "observation": lambda number: Observation("seen", (), Card("hearts", number), ("anchor", 1)),
}


class Shows:
    """Shows one kind of value. With a `differs` file, all but the first one made show another number in the end."""

    def __init__(self, kind: str, differs: str | None = None) -> None:
        self.make = KINDS[kind]
        self.off = 0
        if differs is not None:
            self.off = int(Path(differs).exists())
            Path(differs).touch()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.generator = np.random.default_rng(seed)
        self.turn = 0
        return self._show(), {}

    def step(self, action: Any) -> Any:
        self.turn += 1
        return self._show(), 1.0, False, False, {"said": action}

    def _show(self) -> Any:
        return self.make(int(self.generator.integers(1000)) + (self.off if self.turn == 2 else 0))
