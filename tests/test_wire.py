"""What goes into the wire comes out of it, equal and of the same type, however the bytes are cut."""

import contextlib
import datetime
import decimal
import enum
import math
import pickle
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncrollout import Observation, Outcome, UsageError
from asyncrollout.pool.wire import codec
from asyncrollout.testing import same
from tests.envs.tiny import Point


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    __slots__ = ()


class Unloadable:
    """Pickles well, and breaks whoever loads it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error or RuntimeError("not in this process")

    def __reduce__(self) -> Any:
        return _refuse, (self.error,)


def _refuse(error: BaseException) -> Any:
    raise error


any_text = st.text(st.characters(codec=None), max_size=20)  # lone surrogates too
numbers = st.integers() | st.integers(min_value=2**63, max_value=2**70) | st.floats() | st.booleans()
plain_dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.unsigned_integer_dtypes()
    | hnp.floating_dtypes()
    | hnp.complex_number_dtypes()
    | hnp.datetime64_dtypes(endianness="=")  # numpy's own pickles turn dates of the other kind round
    | hnp.timedelta64_dtypes(endianness="=")
)
text_dtypes = hnp.unicode_string_dtypes(max_len=5) | hnp.byte_string_dtypes(max_len=5)
dtypes = plain_dtypes | text_dtypes | hnp.array_dtypes(plain_dtypes, max_size=2)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
scalars = plain_dtypes.flatmap(hnp.from_dtype)
odd = st.sampled_from([Color.RED, Level.LOW, Name("x"), Point(1, "p"), decimal.Decimal("1.5"), 1 + 2j, range(3)])
leaves = st.none() | numbers | any_text | st.binary(max_size=20) | arrays | scalars | odd | st.datetimes() | st.dates()
keys = any_text | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), any_text)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.frozensets(st.integers() | any_text, max_size=4)
        | st.builds(Observation, any_text, st.tuples(inner), inner, any_text)
    ),
    max_leaves=12,
)


def there_and_back(value: Any) -> Any:
    return codec.Unpacker().decode(codec.encode(value))


@given(values)
@settings(max_examples=400)
def test_values_come_back_equal_and_of_the_same_type(value: Any) -> None:
    assert same(there_and_back(value), value)


@given(values)
@settings(max_examples=100)
def test_values_come_back_from_inside_a_message(value: Any) -> None:
    message = [7, codec.embed(value), None, codec.embed(value)]
    body = codec.frame(message)[8:]
    seen = codec.Unpacker().decode(body)
    assert same(seen, [7, value, None, value])


@given(arrays)
def test_arrays_come_back_writable(array: Any) -> None:
    seen = there_and_back([array])[0]
    assert seen.flags.writeable
    assert not np.shares_memory(seen, array)


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**64),
        10**100,
        "\ud800 alone",
        {"\ud800": 1},
        {1: "a", "b": 2, None: 3, (1, 2): 4},
        {2**70: "big key"},
        {True: "yes"},
        {1, "a"},
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.timedelta(days=1),
        np.str_(""),
        np.bytes_(b""),
        np.datetime64("NaT", "s"),
        np.timedelta64(3, "s"),
        np.array((1, 2.0), dtype=[("a", "i4"), ("b", "f8")])[()],
        np.zeros((0, 3)),
        np.zeros((), dtype=np.float32),
        np.zeros(3, dtype=">f8"),
        np.zeros((4, 4), order="F")[::2],
        np.array(["NaT", "2026-01-01"], dtype="M8[D]"),
        np.array([{"a": 1}, None], dtype=object),
        np.zeros(3, dtype="U0"),
        np.ma.masked_array([1, 2], mask=[True, False]),
        Outcome("a", 1.0, info={"x": np.arange(2)}),
        bytearray(b"abc"),
        Name("a subclass of str"),
        Level.LOW,
        float("-inf"),
        [[[[[[[[[()]]]]]]]]],
    ],
    ids=lambda value: "a set" if isinstance(value, set) else repr(value),
)
def test_odd_values(value: Any) -> None:
    seen = there_and_back({"inside": (value, [value])})["inside"]
    if isinstance(value, np.ma.MaskedArray):
        assert seen[0].mask.tolist() == value.mask.tolist()
        return
    assert same(seen, (value, [value]))


def test_deeply_nested_values_come_back_or_are_refused() -> None:
    for depth in (10, 100, 200, 300, 400, 500, 1_000, 100_000):
        for kind in (list, tuple):
            nested: Any = ()
            for _ in range(depth):
                nested = kind([nested])
            try:
                sent = codec.encode(nested)
            except codec.UnsendableError:
                continue
            seen = codec.Unpacker().decode(sent)
            levels = 0
            while seen != ():
                (seen,) = seen
                levels += 1
            assert levels == depth


def test_what_cannot_be_pickled_is_refused_by_name() -> None:
    with pytest.raises(codec.UnsendableError, match=r"cannot be sent to another process: .*lambda"):
        codec.encode(lambda: None)


@pytest.mark.parametrize(
    "error", [RuntimeError("not here"), MemoryError(), RecursionError(), SystemExit("bye")], ids=repr
)
def test_what_cannot_be_loaded_spoils_only_itself(error: BaseException) -> None:
    body = codec.frame([1, codec.embed(Unloadable(error)), "next"])[8:]
    first, spoilt, last = codec.Unpacker().decode(body)
    assert (first, last) == (1, "next")
    assert spoilt == codec.Undecodable(f"{type(error).__name__}: {error}")


@given(values)
@settings(max_examples=100)
def test_untrusted_bytes_never_load_a_pickle(value: Any) -> None:
    try:
        sent = codec.encode_exact(value)
    except codec.INEXACT:
        with pytest.raises((UsageError, msgspec.DecodeError)):
            codec.Unpacker(trusted=False).decode(codec.encode(value))
    else:
        assert same(codec.Unpacker(trusted=False).decode(sent), value)


def test_a_pickle_in_untrusted_bytes_is_not_run() -> None:
    hostile = pickle.dumps(Unloadable())
    sent = msgspec.msgpack.encode(msgspec.msgpack.Ext(codec.Code.PICKLE, hostile))
    nested = msgspec.msgpack.encode(
        [msgspec.msgpack.Ext(codec.Code.TUPLE, msgspec.msgpack.encode([msgspec.Raw(sent)]))]
    )
    for message in (sent, nested):
        with pytest.raises(UsageError, match="extension"):
            codec.Unpacker(trusted=False).decode(message)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_untrusted_bytes_give_a_value_or_an_error_of_ours(data: bytes) -> None:
    with contextlib.suppress(msgspec.MsgspecError, ValueError, TypeError):
        codec.Unpacker(trusted=False).decode(data)


@given(st.lists(st.lists(any_text.filter(lambda text: text.isprintable()), max_size=3), max_size=6), st.data())
def test_frames_survive_any_cut(messages: list[Any], data: st.DataObject) -> None:
    stream = b"".join(codec.frame(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = codec.FrameReader()
    seen = [
        msgspec.msgpack.decode(frame)
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in reader.feed(stream[start:end])
    ]
    assert seen == messages


def test_frames_survive_single_bytes() -> None:
    messages: list[Any] = [["a" * 300], [], [math.pi, None]]
    reader = codec.FrameReader()
    stream = b"".join(codec.frame(message) for message in messages)
    seen = [msgspec.msgpack.decode(frame) for byte in stream for frame in reader.feed(bytes([byte]))]
    assert seen == messages


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) - 9, 3_000_000])
@pytest.mark.parametrize("chunk", [1 << 18, 65_537, 5_000_000])
def test_large_frames_survive_any_cut(size: int, chunk: int) -> None:
    messages: list[Any] = [[1], [bytes(range(256)) * (size // 256)], ["after it"], [b"x" * size]]
    stream = b"".join(map(codec.frame, messages))
    reader, buffer = codec.FrameReader(), bytearray()
    seen = [
        msgspec.msgpack.decode(frame)
        for start in range(0, len(stream), chunk)
        for frame in reader.feed(stream[start : start + chunk])
    ]
    assert seen == messages
    for message in messages:
        codec.frame_into(buffer, message)
        assert bytes(buffer) == codec.frame(message)


def test_a_strangers_frame_reserves_no_memory() -> None:
    reader = codec.FrameReader(most=100)
    assert [*reader.feed(codec.framed(b"x" * 50))] == [b"x" * 50]
    with pytest.raises(ValueError, match="a frame of"):
        list(reader.feed((2**60).to_bytes(8, "little")))


def test_large_arrays_go_where_there_is_room() -> None:
    placed: list[Any] = []

    def place(array: Any) -> msgspec.msgpack.Ext | None:
        if placed:
            return None
        placed.append(array)
        return msgspec.msgpack.Ext(codec.Code.MAPPED, b"here")

    small, large, second = np.arange(10), np.arange(codec.LARGE_ARRAY), np.ones(codec.LARGE_ARRAY)
    sent = codec.encode([small, large, second], place)
    seen = codec.Unpacker(mapped=lambda reference: {b"here": placed[0]}[reference]).decode(sent)
    assert same(seen, [small, large, second])
    assert seen[1] is large
