"""Any value of a record goes to JSON and comes back, equal and of the same type; what is hostile or odd is refused."""

import datetime
import enum
import inspect
from collections import Counter, OrderedDict, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncrollout import EnvError, EnvTimeout, Generation, Observation, RolloutError, Usage, UsageError, errors
from asyncrollout.serialization import from_plain, to_plain
from asyncrollout.testing import same
from asyncrollout.trajectories import Group, StopReason, Trajectory, Turn, Verdict
from tests.naming import stable_name

ALL_ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RolloutError)]

any_text = st.text(st.characters(codec=None), max_size=20)  # lone surrogates too
numbers = st.integers() | st.integers(min_value=2**63, max_value=2**70) | st.floats() | st.booleans()
dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.unsigned_integer_dtypes()
    | hnp.floating_dtypes()
    | hnp.complex_number_dtypes()
    | hnp.datetime64_dtypes()
    | hnp.timedelta64_dtypes()
)
text_dtypes = hnp.unicode_string_dtypes(min_len=1, max_len=5) | hnp.byte_string_dtypes(min_len=1, max_len=5)
arrays = hnp.arrays(dtypes | text_dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
scalars = dtypes.flatmap(hnp.from_dtype) | any_text.map(np.str_) | st.binary(max_size=3).map(np.bytes_)
leaves = st.none() | numbers | any_text | st.binary(max_size=20) | arrays | scalars | st.sampled_from(StopReason)
keys = any_text | st.integers() | st.booleans() | st.none() | st.just("$") | st.tuples(st.integers(), any_text)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(st.integers() | any_text, max_size=4)
        | st.frozensets(keys, max_size=4)
        | st.builds(Observation, any_text, st.tuples(inner), inner, keys)
        | st.builds(Turn, inner, any_text, inner, st.floats(), info=st.dictionaries(keys, inner, max_size=2))
        | st.builds(Generation, any_text, token_ids=st.lists(st.integers(0, 9)), action=inner)
    ),
    max_leaves=12,
)


def there_and_back(value: Any) -> Any:
    return from_plain(msgspec.json.decode(msgspec.json.encode(to_plain(value))))


class Level(enum.IntEnum):
    LOW = 1


class Shade(enum.Enum):
    DARK = "dark"


class Word(str):
    __slots__ = ()


class Tint(str, enum.Enum):  # noqa: UP042 (its str() is not its value)
    BLUE = "blue"


class OwnError(EnvTimeout):
    """As an env's author may derive one."""


class Pair(NamedTuple):
    a: int
    b: int


@given(values)
@settings(max_examples=400)
def test_values_come_back_equal_and_of_the_same_type(value: Any) -> None:
    assert same(there_and_back(value), value)


@given(values)
def test_what_is_plain_is_nothing_but_json(value: Any) -> None:
    plain = to_plain(value)
    assert same(msgspec.json.decode(msgspec.json.encode(plain)), plain)


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        float("nan"),
        float("-inf"),
        1e16,
        2**64,
        -(2**63) - 1,
        1 << 20_000,  # more digits than Python writes
        "\ud800 alone",
        {"\ud800": 1},
        {"$": "tuple", "items": [1]},
        {1: "a", "b": 2, None: 3, (1, (2, "x")): 4},
        {1, "a", (1, 2)},
        b"\x00\xff",
        np.str_(""),
        np.bytes_(b""),
        np.void(b"abc"),
        np.float16(0.1),
        np.bool_(True),
        np.datetime64("NaT", "s"),
        np.timedelta64(3, "s"),
        np.zeros((0, 3)),
        np.zeros((), dtype=np.float32),
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3))[:, ::2],
        np.full((4, 4, 3), 7, dtype=np.uint8),
        Verdict(keep=False, reason="constant_reward"),
        Usage(1, 2, 3),
        Observation("a", (np.zeros((2, 2, 3), np.uint8),), {"x": 1}, ("room", (1, 2))),
        Group("g", [Trajectory("u", "maze", 7, [Turn("a", reward=np.float64(0.5))], 1, StopReason.TURNS)]),
        [[[[[[[[[()]]]]]]]]],
    ],
    ids=lambda value: stable_name(value)[:40] if not isinstance(value, int) else f"{type(value)} {value.bit_length()}",
)
def test_odd_values(value: Any) -> None:
    assert same(there_and_back({"inside": (value, [value])}), {"inside": (value, [value])})


def test_anchors_stay_hashable() -> None:
    anchor = ((1, 2), frozenset({"a"}), "x", np.int64(3))
    seen = there_and_back(Observation("a", anchor=anchor)).anchor
    assert hash(seen) == hash(anchor)
    assert seen == anchor


def test_arrays_come_back_writable() -> None:
    there_and_back(np.arange(3))[0] = 7


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_errors_come_back_with_their_place_and_notes(kind: type[RolloutError]) -> None:
    error = kind.at("it \ud800 broke", env="maze", seed=7, turn=3, worker=1, notes="line 1")
    error.add_note("line 2")
    if isinstance(error, EnvError):
        error.remote_type, error.remote_traceback = "KeyError", "Traceback ..."
    seen = there_and_back([error])[0]
    assert type(seen) is kind
    assert seen.args == error.args
    assert vars(seen) == vars(error)
    assert seen.__notes__ == ["line 1", "line 2"]


def test_error_without_a_place() -> None:
    seen = there_and_back(EnvError("it broke"))
    assert (type(seen), str(seen), vars(seen)) == (EnvError, "it broke", {})


def test_error_of_a_class_of_its_own_comes_back_as_the_base_that_we_know() -> None:
    seen = there_and_back(OwnError.at("too slow", seed=3))
    assert (type(seen), str(seen), seen.seed) == (EnvTimeout, "too slow", 3)


def test_sets_are_written_in_one_order() -> None:
    assert to_plain({"b", "a", "c"}) == to_plain({"c", "b", "a"}) == {"$": "set", "items": ["a", "b", "c"]}


def test_records_are_objects_that_anyone_can_read() -> None:
    plain = to_plain(Trajectory("u", "maze", 7, [Turn("seen", "said", reward=0.5)], 0.5, StopReason.TERMINATED))
    assert (plain["$"], plain["uid"], plain["stop_reason"]) == ("Trajectory", "u", "terminated")
    assert (plain["turns"][0]["reply"], plain["turns"][0]["reward"]) == ("said", 0.5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"^a builtins\.object cannot be written"),
        ([{"x": (1, len)}], r"^\[0\]\.x\[1\]: a builtins\.builtin_function_or_method cannot be written"),
        (Turn({"at": datetime.date(2026, 1, 1)}), r"^observation\.at: a datetime\.date cannot"),
        (Turn("a", action={"info": Path("x")}), r"^action\.info: a pathlib[.\w]+ cannot"),
        ({"two words": {3: Shade.DARK}}, r"^\['two words'\]\[3\]: a tests\.test_serialization\.Shade cannot"),
        ({"x": np.array([{}], dtype=object)}, r"^x: a ndarray of object cannot"),
        (np.zeros(2, dtype=[("a", "i4")]), r"a ndarray of .*'a'.* cannot"),
        (np.ma.masked_array([1], mask=[True]), r"a MaskedArray of int64 cannot"),
        ({(1, object()): 2}, r"object cannot be written"),
    ],
)
def test_what_cannot_be_written_is_reported_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        to_plain(value)


@pytest.mark.parametrize("kind", [list, tuple])
def test_deeply_nested_values_come_back_or_are_refused(kind: type) -> None:
    nested: Any = 1
    for _ in range(60):
        nested = kind([nested])
    assert same(there_and_back(nested), nested)
    for _ in range(10):
        nested = kind([nested])
    with pytest.raises(UsageError, match=r"^\[0\]\[0\]\[0\].*nested more than 64 deep"):
        to_plain(nested)


ORDERED = OrderedDict(b=1, a=2)
ORDERED.move_to_end("b")


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (ORDERED, {"a": 2, "b": 1}),
        (defaultdict(list, x=[Level.LOW]), {"x": [1]}),
        (Pair(1, 2), (1, 2)),
        ([Pair(1, 2)], [(1, 2)]),
        (Level.LOW, 1),
        (Tint.BLUE, "blue"),
        ({Tint.BLUE: Word("a")}, {"blue": "a"}),
        (np.arange(4).view(np.recarray), np.arange(4)),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_values_of_subclasses_come_back_as_their_base(value: Any, base: Any) -> None:
    seen = there_and_back([value])[0]
    assert same(seen, base)
    assert not isinstance(base, dict) or [*seen] == [*base]


class Mute:
    def __repr__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime.date(2026, 1, 1), "2026-01-01"),
        (Path("a/b"), "a/b"),
        (Decimal("1.50"), "1.50"),
        (Shade.DARK, "Shade.DARK"),
        (np.array([{}], dtype=object), "[{}]"),
        (Mute(), "<no text can be made of it: ValueError>"),
        (EnvError(Path("x")), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_info_holds_is_written(value: Any, text: str | None) -> None:
    info: dict[Any, Any] = {"odd": [value], value if value.__hash__ else 1: 2}
    turn = Turn("a", info=info)
    odd = there_and_back(turn).info["odd"][0]
    assert odd == text or (text is None and odd.args == ("x",))


def test_info_that_holds_itself_is_written() -> None:
    loop: dict[str, Any] = {"x": 1}
    loop |= {"left": loop, "right": loop}
    info = there_and_back(Turn("a", info={"loop": loop, "kept": [1]})).info
    assert info == {"loop": "{'x': 1, 'left': {...}, 'right': {...}}", "kept": [1]}


def test_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="nested more than"):
        to_plain(loop)


def array(dtype: str = "<i4", shape: Any = (2,), base64: Any = "AAAAAAAAAAA=") -> dict[str, Any]:
    return {"$": "array", "dtype": dtype, "shape": list(shape), "base64": base64}


TURN = to_plain(Turn("a"))


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"$": "pickle", "base64": "gASVBQ=="}, r"^no value is of kind 'pickle'"),
        ({"$": ["tuple"]}, r"no value is of kind \['tuple'\]"),
        ([{"a": {"$": "tuple"}}], r"^\[0\]\.a: a tuple without 'items'"),
        ({"$": "tuple", "items": {"a": 1}}, "not a tuple: its items are not a list"),
        ({"$": "set", "items": [[1]]}, "not a set: unhashable"),
        ({"$": "dict", "items": [[[1], 2]]}, "not a dict: unhashable"),
        ({"$": "dict", "items": [[1, 2, 3]]}, "not a dict: too many values"),
        ({"$": "bytes", "base64": "?"}, "not a bytes"),
        ({"$": "int", "hex": "zz"}, "not a int"),
        (array(dtype="O"), "not a array"),
        (array(dtype="bogus"), "not a array"),
        (array(dtype="i4,i4", shape=(1,)), "not a array"),
        (array(shape=(2**62,)), "not a array: 8 bytes for shape"),
        (array(shape=(-1, -2)), "not a array"),
        (array(shape=("2",)), "not a array"),
        (array(base64=7), "not a array"),
        ({"$": "scalar", "dtype": "<i4", "base64": ""}, "not a scalar: 0 bytes for shape"),
        ({"$": "scalar", "dtype": "O", "base64": ""}, "not a scalar"),
        ({"$": "StopReason", "value": "bored"}, "not a StopReason: 'bored'"),
        ({"$": "EnvError", "args": []}, "a EnvError without 'where'"),
        ({"$": "EnvError", "args": [], "where": 3, "notes": []}, "not a EnvError"),
        ({"$": "Turn"}, "not a Turn: Missing required argument 'observation'"),
        ({**TURN, "colour": 1}, "not a Turn: Unexpected keyword argument 'colour'"),
        ([{**TURN, "reward": "high"}], r"^\[0\]\.reward: Expected `float`, got `str`"),
        ({**TURN, "info": 3}, "^info: Expected `object`, got `int`"),
        ({**TURN, "prompt_ids": [1, 2]}, "^prompt_ids: Expected `numpy.ndarray"),
        ({**TURN, "usage": {"prompt": "x"}}, "^usage: Expected `int`, got `str`"),
        ({**TURN, "finish_reason": "bored"}, "^finish_reason: Invalid enum value 'bored'"),
        ({"$": "TextOptions", "max_actions_per_turn": "x"}, "^max_actions_per_turn: Expected `int`"),
    ],
)
def test_what_makes_no_sense_is_reported_with_its_place(plain: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_plain(plain)


def test_nesting_beyond_reason_is_refused() -> None:
    nested: Any = 1
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(UsageError, match="nested too deeply"):
        from_plain(nested)


def test_records_inside_records_need_not_say_what_they_are() -> None:
    trajectory = to_plain(Trajectory("u", "maze", 7, [Turn("a", usage=Usage(1))], 0.0, StopReason.TURNS))
    del trajectory["turns"][0]["$"], trajectory["turns"][0]["usage"]["$"]
    assert from_plain(trajectory).turns == [Turn("a", usage=Usage(1))]


def test_fields_that_a_record_did_not_have_yet_take_their_defaults() -> None:
    assert same(from_plain({"$": "Turn", "observation": 3}), Turn(3))


@pytest.mark.parametrize("value", [np.str_("0\0"), np.str_(""), np.str_("\ud800"), np.bytes_(b"x\0"), np.bytes_(b"")])
def test_texts_of_numpy_keep_their_zeros(value: Any) -> None:
    back = there_and_back(value)
    assert (type(back), len(back), back.tobytes()) == (type(value), len(value), value.tobytes())
