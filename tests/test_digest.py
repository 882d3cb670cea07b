"""Digests are of content and type: the same in every process and on every way, and different for any change."""

import copy
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrollout import EnvDiverged, EnvError, EnvHandle, EnvPool, EnvSpec, Observation
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.digest import digest, encode_with_digest, outcome_digest
from asyncrollout.pool.wire.shared_arrays import Arena, ArrayReader, ArrayWriter
from asyncrollout.service import messages
from tests.naming import stable_name
from tests.odd_values import (
    KINDS,
    Bag,
    Card,
    Color,
    Frame,
    Node,
    Pair,
    Record,
    Registered,
    Row,
    Slots,
    Tensor,
    Text,
    marked,
)
from tests.playing import kill_worker_of
from tests.test_wire import Unloadable, values

SHOWS = EnvSpec(name="shows", factory="tests.odd_values:Shows")
NAN = float("nan")

DISTINCT: list[Any] = [
    *(None, 0, 0.0, -0.0, False, 1, 1.0, True, "1", b"1", bytearray(b"1"), 1 + 0j, NAN, float("inf")),
    *([], (), {}, set(), frozenset(), [1], (1,), {1}, frozenset({1}), {1: 1}, [[1]], [(1,)], [1, 1], {1: 1, 2: 1}),
    *({2: 1, 1: 1}, {1: 2, 2: 1}, {(1, 2): 1}, {1.0: 1}, [{1}, {2}], [{2}, {1}]),
    *(deque([1]), deque([1], maxlen=1), Row([1]), Bag({1}), Text("1"), marked(Text)("1", 1), marked(Text)("1", "1")),
    *(np.int64(1), np.int32(1), np.array(1), np.array([1]), np.array([[1]]), np.array([1.0]), np.array([True])),
    *(
        np.array([1], dtype=object),
        np.array([True], dtype=object),
        np.array(["1"]),
        np.array([b"1"]),
        np.array([1]).view(Frame),
    ),
    *(np.array([(1,)], dtype=[("a", "i8")]), np.array([(1,)], dtype=[("b", "i8")]), np.longdouble(1), np.str_("1")),
    *(np.array(["2026-01-01"], "M8[D]"), np.array(["2026-01-01"], "M8[s]"), np.ma.masked_array([1], mask=[True])),
    *(np.ma.masked_array([1], mask=[False]), np.ma.masked, np.zeros((0, 3)), np.zeros((3, 0)), Color.RED, Color.GREEN),
    *(Pair(1, 2), (1, 2), Card("a", 1), Card("a", 1.0), Record("a", 1), Slots(1, 2), Slots(2, 1), Tensor(1), Tensor(2)),
    *(Registered(1), Registered(True), dict, list, print, len, pickle, range(3), slice(3), Observation("1")),
    *(np.zeros(100_000), np.zeros(100_000, "i8"), np.zeros((2, 50_000)), ValueError("1"), ValueError(1)),
]


def test_values_that_differ_in_content_or_type_have_digests_of_their_own() -> None:
    seen: dict[int, Any] = {}
    for value in DISTINCT:
        for shown in (value, [value, 1j]):  # on their own way, and among others
            assert digest(shown) not in seen, (shown, seen[digest(shown)])
            seen[digest(shown)] = shown


def copies(value: Any) -> Iterator[Any]:
    yield pickle.loads(pickle.dumps(value))
    yield copy.deepcopy(value)
    yield codec.detach(value)
    yield codec.Unpacker().decode(codec.encode(value))


@pytest.mark.parametrize("value", DISTINCT[:-14], ids=stable_name)
def test_copies_have_the_same_digest(value: Any) -> None:
    for shown in (value, [value, 1j]):
        assert {digest(copied) for copied in copies(shown)} == {digest(shown)}


@pytest.mark.parametrize("kind", KINDS)
def test_values_made_twice_have_one_digest_and_any_copy_has_it(kind: str) -> None:
    first, second, other = KINDS[kind](3), KINDS[kind](3), KINDS[kind](4)
    assert digest(first) == digest(second) != digest(other)
    assert {digest(copied) for copied in copies(first)} == {digest(first)}


def test_arrays_are_compared_by_dtype_shape_and_values() -> None:
    array = np.arange(24.0).reshape(4, 6)
    large = np.arange(20_000.0).reshape(100, 200)
    for one in (array, large):
        twins = [np.asfortranarray(one), np.repeat(one, 2, axis=1)[:, ::2], one[::-1][::-1], one.astype(">f8")]
        for among in (lambda given: given, lambda given: [given, 1j], lambda given: np.rec.fromarrays([given])):
            assert {digest(among(twin)) for twin in twins} == {digest(among(one))}
        assert digest(one) != digest(one.T) != digest(one.reshape(-1))
    behind = np.ma.masked_array([1, 2], mask=[False, True])
    assert digest(behind) == digest(np.ma.masked_array([1, 3], mask=[False, True]))
    assert digest(behind) != digest(np.ma.masked_array([2, 2], mask=[False, True]))


def test_nan_equals_nan() -> None:
    for value in (NAN, [NAN], np.array([NAN]), np.full(100_000, NAN), {"a": deque([NAN])}, np.float32(NAN)):
        assert digest(value) == digest(copy.deepcopy(value))


def test_what_is_shared_does_not_count() -> None:
    row = [1, 2]
    for wrap in (lambda a, b: [a, b], lambda a, b: deque([a, b]), lambda a, b: {"x": a, "y": {"z": b, "odd": 1j}}):
        assert digest(wrap(row, row)) == digest(wrap(row, [1, 2])) != digest(wrap(row, [1, 3]))


def test_cycles_are_followed_by_content() -> None:
    def ring(*numbers: int) -> Node:
        nodes = [Node(number) for number in numbers]
        for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
            node.near.append(following)
        return nodes[0]

    assert digest(ring(1, 2, 3)) == digest(ring(1, 2, 3))
    assert len({digest(ring(*numbers)) for numbers in ((1, 2, 3), (2, 3, 1), (1, 3, 2), (1, 2), (1, 2, 4))}) == 5
    whole = ring(1, 2, 3)
    assert digest([whole, whole]) == digest([whole, ring(1, 2, 3)]) != digest([whole, whole.near[0]])
    assert digest(ring(1, 1, 1, 1)) == digest(ring(1)) != digest(ring(1, 1, 2, 1))  # they look alike however one walks


def test_attributes_count_in_any_order() -> None:
    one, other = Node(1), Node(1)
    other.__dict__ = dict(reversed(one.__dict__.items()))
    assert digest(one) == digest(other)


def test_opaque_objects_count_as_a_mark() -> None:
    env, others = Node(1), Node(2)
    assert digest([env, others], opaque=(env,)) != digest([others, env], opaque=(env,))
    assert digest([env, others], opaque=(env, others)) != digest([others, env], opaque=(env, others))
    before = digest([env, {"in": env}, others], opaque=(env,))
    env.number, env.lock = 7, threading.Lock()  # type: ignore[attr-defined]
    assert digest([env, {"in": env}, others], opaque=(env,)) == before
    others.number = 8
    assert digest([env, {"in": env}, others], opaque=(env,)) != before


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_tensors_of_torch_are_compared_by_value(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="needs pip install 'asyncrollout[torch]'")
    tensor = torch.zeros(3, 2, dtype=getattr(torch, kind))
    changed = tensor.clone()
    changed[2, 1] = 1
    assert digest([tensor]) == digest([torch.zeros(2, 3, dtype=getattr(torch, kind)).T]) != digest([changed])
    assert {digest(copied) for copied in copies(tensor)} == {digest(tensor)}
    assert digest(tensor) != digest(torch.nn.Parameter(tensor, requires_grad=False))


# Every way that an outcome can take.


def ways(fields: list[Any], directory: Path) -> dict[str, int]:
    """The digest of an outcome as each backend takes it, and after its journey."""
    arrays = ArrayWriter(Arena(directory))
    full = ArrayWriter(Arena(directory / "missing"))  # there is no room for any array
    body, in_worker = encode_with_digest(fields, arrays)
    reader = ArrayReader(directory)
    arrived = codec.Unpacker(reader.read).decode(body)
    reader.close()
    found = {
        "worker": in_worker,
        "worker without room": encode_with_digest(fields, full)[1],
        "inline": outcome_digest(codec.detach(fields)),
        "replay": outcome_digest(fields),
        "after the wire": digest(arrived),
        "pickled": digest(pickle.loads(pickle.dumps(fields))),
        "copied": digest(copy.deepcopy(fields)),
    }
    with suppress(codec.UnsendableError):  # it has no form without pickles
        found["server"] = messages.encode_outcome(arrived)[1]
    return found


large = st.integers(0, 9).map(lambda number: np.full(10_000 + number, number, dtype=float))
odd = st.builds(lambda make, number: make(number), st.sampled_from(list(KINDS.values())), st.integers(0, 9))
anything = values | odd | st.lists(values | large | odd, max_size=3) | st.dictionaries(st.text(), large | odd)


@given(anything)
@settings(max_examples=400)
def test_a_digest_does_not_depend_on_the_way(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    found = ways([value, 1.0, False, False], tmp_path_factory.mktemp("arrays"))
    assert len(set(found.values())) == 1, found


def test_a_digest_does_not_depend_on_the_process() -> None:
    """Hashes, and with them the order of sets, are others in each process."""
    program = (
        "import pickle, sys; from asyncrollout.pool.wire.digest import digest\n"
        "while sys.stdin.buffer.peek(1): print(digest(pickle.load(sys.stdin.buffer)), flush=True)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "17", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:

        def elsewhere(value: Any) -> int:
            assert other.stdin is not None
            assert other.stdout is not None
            pickle.dump(value, other.stdin)
            other.stdin.flush()
            return int(other.stdout.readline())

        @given(anything)
        @settings(max_examples=200)
        def check(value: Any) -> None:
            assert elsewhere(value) == digest(value)

        check()
        for make in KINDS.values():
            assert elsewhere(make(1)) == digest(make(1))


def in_cycle(value: Any, among: Any) -> Any:
    whole: list[Any] = [among, {"inner": value}]
    whole[1]["outer"] = whole
    return whole


def objects(*given: Any) -> Any:
    array = np.empty(len(given), dtype=object)
    array[:] = given
    return array


def node(value: Any, among: Any) -> Any:
    made = Node(among)
    made.near = [made, value]
    return made


WRAPPED: list[Callable[[Any, Any], Any]] = [
    lambda value, among: [among, value],
    lambda value, among: (value, among),
    lambda value, among: {"a": among, "b": value},
    lambda value, among: deque([among, value]),
    lambda value, among: Slots(value, among),
    lambda value, among: Card(among, value),
    lambda value, among: Record(among, value),
    lambda value, among: Tensor([value, among]),
    lambda value, among: Observation("text", (), value, among),
    lambda value, among: marked(Text)("a", [value, among]),
    lambda value, among: marked(Row)([value], among),
    lambda value, among: objects(value, among),
    in_cycle,
    node,
]
leaves = (
    st.none()
    | st.integers()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.integers(0, 2**40).map(lambda number: np.array([number, 1, 2]))
    | st.frozensets(st.integers(), max_size=3)
)


def as_is(value: Any) -> Any:
    """What tells two leaves apart."""
    return (type(value), repr(value))


@given(leaves, leaves, leaves, st.lists(st.sampled_from(WRAPPED), max_size=6))
@settings(max_examples=600)
def test_any_one_leaf_that_changes_changes_the_digest(one: Any, other: Any, among: Any, wraps: list[Any]) -> None:
    first, second, third = one, other, copy.deepcopy(one)
    for wrap in wraps:
        first, second, third = wrap(first, among), wrap(second, among), wrap(third, among)
    assert digest(first) == digest(third)
    assert (digest(first) == digest(second)) == (as_is(one) == as_is(other))


# Through real pools.


async def test_each_kind_of_observation_is_forked_and_recovered(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool:
        envs = {kind: await pool.open(SHOWS, kind=kind) for kind in KINDS}
        expected = {kind: await shown(env, "abc") for kind, env in envs.items()}
        seen = {kind: await shown(env, "ab") for kind, env in envs.items()}
        twins = {kind: await env.fork() for kind, env in envs.items()}
        if pool.stats().workers[0].rank != -1:
            kill_worker_of(pool, envs["deque"])
        for kind, env in envs.items():
            seen[kind].append(digest((await env.step("c")).observation))
            assert digest((await twins[kind].step("c")).observation) == seen[kind][-1], kind
    assert seen == expected


async def shown(env: EnvHandle, actions: str) -> list[int]:
    outcomes = [await env.reset(seed=1), *[await env.step(action) for action in actions]]
    return [digest(outcome.observation) for outcome in outcomes]


async def test_each_kind_of_observation_that_diverges_is_found(options: dict[str, Any], tmp_path: Path) -> None:
    async with EnvPool(**options) as pool:
        envs = {kind: await pool.open(SHOWS, kind=kind, differs=str(tmp_path / kind)) for kind in KINDS}
        for env in envs.values():
            await shown(env, "abc")
            with pytest.raises(EnvDiverged, match="after action 2"):
                await env.fork()
        if pool.stats().workers[0].rank != -1:
            kill_worker_of(pool, envs["deque"])
            for env in envs.values():
                with pytest.raises(EnvDiverged, match="after action 2"):
                    await env.step("d")


async def test_what_a_user_does_with_an_outcome_is_no_matter_of_a_fork(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(SHOWS, kind="defaultdict") as env:
        outcome = await env.reset(seed=1)
        outcome.observation["lock"] = threading.Lock()
        twin = await env.fork()
        assert digest((await twin.step("a")).observation) == digest((await env.step("a")).observation)


def deep() -> Any:
    value: Any = ()
    for _ in range(100_000):
        value = [value]
    return value


class Untold:
    """What an env's step may return and cannot."""

    def __init__(self, what: str) -> None:
        self.what = what

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            "lock": lambda: [threading.Lock()],
            "generator": lambda: deque([iter(range(3)), (number for number in range(3))]),
            "deep": deep,
            "deep object": lambda: Card("a", deep()),
            "unloadable": Unloadable,
        }
        made = makers[self.what]()
        return (made, 0.0, False, False, {}) if action == "observation" else (0, 0.0, False, False, {"made": made})


UNTOLD = {
    "lock": "UnsendableError: a value cannot be sent to another process: cannot pickle '_thread.lock' object",
    "generator": "UnsendableError: a value cannot be sent to another process: cannot pickle 'generator' object",
    "deep": "UnsendableError: a value cannot be sent to another process: it is nested too deeply",
    "deep object": "UnsendableError: a value cannot be sent to another process: it is nested too deeply",
    "unloadable": "RuntimeError: not in this process",
}


@pytest.mark.parametrize("what", UNTOLD)
async def test_what_has_no_digest_is_the_same_error_on_every_backend(what: str, options: dict[str, Any]) -> None:
    spec = EnvSpec(name="untold", factory="tests.test_digest:Untold")
    async with EnvPool(**options) as pool, pool.open(spec, what=what) as env:
        for place in ("observation", "info"):
            await env.reset(seed=1)
            with pytest.raises(EnvError) as caught:
                await env.step(place)
            assert UNTOLD[what] in str(caught.value)
            assert "env 'untold' (seed 1, turn " in str(caught.value)
        assert (await env.reset(seed=1)).observation == 0


async def test_nested_values_and_cycles_arrive_as_they_were_sent(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open("tests.envs.tiny:Echo") as env:
        await env.reset(seed=1)
        for depth in (98, 99, 100, 101, 150, 250):
            value: Any = {"leaf": depth}
            for _ in range(depth):
                value = [value]
            whole: list[Any] = [value]
            whole.append((whole, {"whole": whole}))
            assert digest((await env.step(value)).observation) == digest(value)
            seen = (await env.step(whole)).observation
            assert seen[1][0] is seen[1][1]["whole"] is seen is not whole
            assert digest(seen) == digest(whole)
