"""Batches as files: what is written is read back equal, and a file that is wrong says where."""

import os
import resource
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrollout import EnvTimeout, MissingExtraError, Observation, Usage, UsageError
from asyncrollout.batches.batch import Batch
from asyncrollout.batches.files import read, write
from asyncrollout.testing import same
from asyncrollout.trajectories import Group, StopReason, Trajectory, Turn, Verdict

SUFFIXES = [".jsonl", ".parquet"]
PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def turn(**fields: Any) -> Turn:
    ids = np.arange(3, dtype=np.int32)
    info: Any = {"success": np.bool_(True), 7: {1, 2}, "$": np.float32(0.1), "nan": float("nan")}
    seen = Observation("a room \ud800", (PICTURE,), {"raw": b"\x00\xff"}, ("room", (1, 2)))
    return Turn(
        seen,
        "go <b>left</b>\n",
        (np.int64(3), "left"),
        0.1,
        info=info,
        prompt_ids=ids,
        token_ids=ids + 5,
        logprobs=np.array([-0.1, -0.2, -np.inf], dtype=np.float32),
        usage=Usage(3, 3, 1),
        version=4,
        **fields,
    )


def trajectory(uid: str, **fields: Any) -> Trajectory:
    messages = [
        {"role": "user", "content": [{"type": "image", "image": PICTURE}]},
        {"role": "assistant", "content": "é"},
    ]
    given = {"turns": [turn(), turn(joined=True)], "stop_reason": StopReason.TERMINATED, "messages": messages, **fields}
    return Trajectory(uid, "maze", 2**70, reward=1.5, task=("hard", 3), metrics={"length": 2.0, "bad": np.nan}, **given)


def failure() -> EnvTimeout:
    where = {"seed": 7, "turn": 3, "worker": 1, "remote_type": "KeyError", "remote_traceback": "Traceback ..."}
    return EnvTimeout.at("a step took 5 s", env="maze", notes="the log's end", **where)


def made() -> Batch:
    failed = trajectory("c", turns=[], stop_reason=StopReason.ENV_ERROR, error=failure(), final=np.zeros((0, 2)))
    groups = [
        Group("g0", [trajectory("a"), trajectory("b", member=1)], "easy", Verdict(keep=True)),
        Group("nobody", []),
        Group("g1", [failed], verdict=Verdict(keep=False, reason="constant_reward")),
    ]
    return Batch(3, groups, {"seconds": 1.5, "lag": float("inf")})


def alike(seen: Batch, expected: Batch) -> bool:
    """The same, errors included, which Python compares by identity."""
    errors = [[each.error for each in batch.trajectories] for batch in (seen, expected)]
    message = [[error and (type(error), error.args, vars(error)) for error in found] for found in errors]
    return message[0] == message[1] and same(_without_errors(seen), _without_errors(expected))


def _without_errors(batch: Batch) -> Batch:
    groups = [
        msgspec.structs.replace(
            group, trajectories=[msgspec.structs.replace(each, error=None) for each in group.trajectories]
        )
        for group in batch.groups
    ]
    return msgspec.structs.replace(batch, groups=groups)


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_batch_comes_back_equal(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"batch{suffix}"
    await made().save(path)
    seen = await Batch.load(str(path))
    assert alike(seen, made())
    assert os.listdir(tmp_path) == [path.name]
    assert seen.to_arrays("gigpo")["advantages"].shape == (2, 12)
    (last,) = seen.groups[2].trajectories
    assert last.error is not None
    assert str(last.error) == "a step took 5 s"
    assert last.error.__notes__ == ["the log's end"]


texts = st.text(st.characters(codec=None), max_size=5)
members = st.builds(
    trajectory,
    texts,
    turns=st.lists(st.builds(Turn, texts, reward=st.floats(), version=st.integers(-1, 2**40)), max_size=2),
    stop_reason=st.sampled_from(StopReason),
    seconds=st.floats(),
)
verdicts = st.none() | st.builds(Verdict, st.booleans(), texts)
groups = st.builds(Group, texts, st.lists(members, max_size=3), texts, verdicts)
batches = st.builds(Batch, st.integers(0), st.lists(groups, max_size=3), st.dictionaries(texts, st.floats()))


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(batch=batches)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_batch_comes_back_equal(suffix: str, batch: Batch, tmp_path: Path) -> None:
    path = tmp_path / f"batch{suffix}"
    write(path, batch.index, batch.groups, batch.stats)
    assert same(Batch(*read(path)), batch)


async def test_lines_can_be_read_by_anyone(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    await made().save(path)
    header, *lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert (header["format"], header["version"], header["index"]) == ("asyncrollout.batch", 1, 3)
    assert [(line["group"], line["tag"], line["uid"], line["reward"]) for line in lines] == [
        ("g0", "easy", "a", 1.5),
        ("g0", "easy", "b", 1.5),
        ("g1", "", "c", 1.5),
    ]
    assert lines[2]["stop_reason"] == "env_error"


async def test_table_has_columns_to_look_at(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    await made().save(path)
    with pyarrow.parquet.ParquetFile(path) as file:
        rows = file.read().to_pylist()
    del rows[0]["record"], rows[0]["metrics"]
    assert rows[0] == {
        "uid": "a",
        "group": "g0",
        "tag": "easy",
        "env": "maze",
        "seed": None,  # more than 64 bits; the record has it
        "member": 0,
        "reward": 1.5,
        "valid": True,
        "success": True,
        "stop_reason": "terminated",
        "truncated": False,
        "error": None,
        "turns": 2,
        "sampled_tokens": 6,
        "version": 4,
        "seconds": 0.0,
        "keep": True,
        "reason": "",
    }
    assert rows[1]["metrics"][0] == ("length", 2.0)
    assert rows[2]["error"] == "EnvTimeout: a step took 5 s"
    assert (rows[2]["valid"], rows[2]["success"], rows[2]["version"], rows[2]["turns"]) == (False, None, None, 0)
    assert rows[2]["reason"] == "constant_reward"


async def test_many_rows_come_back_in_order(tmp_path: Path) -> None:
    members = [Trajectory(f"u{number}", "maze", number, [], 0.0, StopReason.TURNS) for number in range(300)]
    batch = Batch(0, [Group(f"g{start}", members[start : start + 7]) for start in range(0, 300, 7)])
    for suffix in SUFFIXES:
        await batch.save(tmp_path / f"batch{suffix}")
        assert await Batch.load(tmp_path / f"batch{suffix}") == batch


class Watched(list[Group]):
    """Knows in which threads it was read."""

    def __init__(self, groups: list[Group]) -> None:
        super().__init__(groups)
        self.threads: set[int] = set()

    def __iter__(self) -> Iterator[Group]:
        self.threads.add(threading.get_ident())
        return super().__iter__()


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_encoding_leaves_the_loop_alone(suffix: str, tmp_path: Path) -> None:
    watched = Watched(made().groups)
    await Batch(0, watched).save(tmp_path / f"batch{suffix}")
    assert watched.threads
    assert threading.get_ident() not in watched.threads


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_saving_again_replaces_the_file(suffix: str, tmp_path: Path) -> None:
    path, link = tmp_path / f"batch{suffix}", tmp_path / f"link{suffix}"
    link.symlink_to(path.name)
    await Batch(1, []).save(path)
    await Batch(2, []).save(link)
    assert (await Batch.load(path)).index == 2
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == [path.name, link.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_failed_save_leaves_what_was_there_and_nothing_else(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"batch{suffix}"
    await made().save(path)
    odd = Batch(0, [Group("g", [trajectory("fine"), trajectory("odd", final={"x": [len]})])])
    with pytest.raises(
        UsageError, match=r"^trajectory 'odd': final\.x\[0\]: a builtins\.builtin_function_or_method cannot"
    ):
        await odd.save(path)
    assert alike(await Batch.load(path), made())
    assert os.listdir(tmp_path) == [path.name]


def a_pipe(parent: Path) -> Path:
    os.mkfifo(parent / "batch.jsonl")
    return parent / "batch.jsonl"


def crowded(parent: Path) -> Path:
    (parent / "batch.jsonl").mkdir()
    return parent / "batch.jsonl"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (lambda parent: parent / "none" / "batch.jsonl", r"cannot write .*none/batch\.jsonl: No such file"),
        (lambda parent: parent / ("x" * 300 + ".jsonl"), r"cannot write .*: File name too long"),
        (lambda parent: Path("/dev/null/batch.parquet"), r"cannot write /dev/null/batch\.parquet: Not a directory"),
        (a_pipe, r"cannot write .*batch\.jsonl: Not a regular file"),
        (crowded, r"cannot write .*batch\.jsonl: Is a directory"),
        (lambda parent: parent / "bat\0ch.jsonl", r"is not a batch file"),
        (
            lambda parent: parent / "batch.json",
            r"batch\.json' is not a batch file: its name must end in \.jsonl or \.parquet",
        ),
        (lambda parent: parent / "batch.jsonl.gz", r"must end in \.jsonl or \.parquet"),
        (lambda parent: "", r"must end in \.jsonl or \.parquet"),
    ],
)
async def test_place_that_cannot_be_written_is_reported(
    place: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    path = place(tmp_path)
    before = os.listdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        await made().save(path)
    assert os.listdir(tmp_path) == before


async def test_full_disk_is_reported(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails as on a full disk
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        for suffix in SUFFIXES:
            with pytest.raises(UsageError, match=rf"cannot write .*batch\{suffix}: File too large"):
                await made().save(tmp_path / f"batch{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_missing_file_is_reported(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"cannot read .*none\{suffix}: No such file"):
        await Batch.load(tmp_path / f"none{suffix}")


Change = Callable[[list[bytes]], list[bytes]]


def swapped(old: bytes, new: bytes, line: int) -> Change:
    def change(lines: list[bytes]) -> list[bytes]:
        assert old in lines[line - 1]
        return [*lines[: line - 1], lines[line - 1].replace(old, new, 1), *lines[line:]]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], r"line 1: Input data was truncated"),
        (lambda lines: [b"\x89PNG\n", b"\n"], r"line 1: "),
        (lambda lines: [b"[1]\n"], r"line 1: not a batch file of asyncrollout"),
        (lambda lines: lines[1:], r"line 1: not a batch file of asyncrollout"),
        (swapped(b"asyncrollout.batch", b"other.batch", 1), r"line 1: not a batch file of asyncrollout"),
        (
            swapped(b'"version":1', b'"version":2', 1),
            r"line 1: version 2 of the format is not supported: .* reads version 1",
        ),
        (swapped(b'"index":3', b'"index":"3"', 1), r"line 1: Expected `int`, got `str` - at `\$\.index`"),
        (swapped(b'"size":2', b'"size":-2', 1), r"line 1: Expected `int` >= 0"),
        (swapped(b'"keep":true', b'"keep":7', 1), r"line 1: groups\[0\]\.verdict\.keep: Expected `bool`, got `int`"),
        (swapped(b'"size":2', b'"size":9000000000000', 1), r"line 4: a trajectory of group 'g1'"),
        (lambda lines: [*lines[:-1], lines[-1][:-30]], r"line 4: .*truncated"),
        (lambda lines: lines[:-1], r"has 2 of 3 trajectories: its end is missing"),
        (lambda lines: [*lines, lines[-1]], r"line 5: more trajectories than the header lists"),
        (
            lambda lines: [lines[0], *lines[2:]],
            r"line 3: a trajectory of group 'g1' \(tag ''\), where the header says 'g0'",
        ),
        (lambda lines: [*lines[:2], b"\n", *lines[2:]], r"line 3: "),
        (lambda lines: [*lines[:2], b'{"group":"g0","tag":"easy"}\n', lines[3]], r"line 3: not a trajectory"),
        (lambda lines: [*lines[:2], b"[" * 100_000 + b"\n", lines[3]], r"line 3: "),
        (swapped(b'"reward":1.5', b'"reward":"high"', 3), r"line 3: reward: Expected `float`, got `str`"),
        (swapped(b'"reward":0.1', b'"reward":[]', 3), r"line 3: turns\[0\]\.reward: Expected `float`, got `array`"),
        (swapped(b'"seed"', b'"sead"', 2), r"line 2: not a Trajectory: .*"),
        (swapped(b'"terminated"', b'"bored"', 2), r"line 2: stop_reason: Invalid enum value 'bored'"),
        (swapped(b'"EnvTimeout"', b'"SystemExit"', 4), r"line 4: error: no value is of kind 'SystemExit'"),
        (swapped(b'"<i4"', b'"O"', 2), r"line 2: turns\[0\]\.prompt_ids: not a array"),
        (swapped("é".encode(), b"\xff", 2), r"line 2: "),
    ],
)
async def test_wrong_lines_are_reported_with_their_place(change: Change, message: str, tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    await made().save(path)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(UsageError, match=rf"batch\.jsonl,? {message}"):
        await Batch.load(path)


def rewritten(path: Path, change: Callable[[Any], Any]) -> None:
    with pyarrow.parquet.ParquetFile(path) as file:
        table = file.read()
    pyarrow.parquet.write_table(change(table), path)


def with_header(table: Any, old: bytes, new: bytes) -> Any:
    ((key, header),) = table.schema.metadata.items()
    return table.replace_schema_metadata({key: header.replace(old, new)})


def with_record(table: Any, row: int, record: str | None) -> Any:
    records = table.column("record").to_pylist()
    records[row] = record
    return table.set_column(table.schema.get_field_index("record"), "record", pa.array(records, pa.large_string()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.replace_schema_metadata({}), r": not a batch file of asyncrollout: its header is missing"),
        (lambda table: table.drop_columns(["record"]), r": not a batch file of asyncrollout"),
        (lambda table: with_header(table, b'"version":1', b'"version":0'), r", header: version 0 of the format"),
        (lambda table: table.slice(0, 2), r" has 2 of 3 trajectories"),
        (lambda table: with_record(table, 1, "{"), r", row 2: Input data was truncated"),
        (lambda table: with_record(table, 2, None), r", row 3: JSON is malformed"),
        (lambda table: table.set_column(19, "record", table.column("turns")), r", row 1: Expected `object`, got `int`"),
    ],
)
async def test_wrong_tables_are_reported_with_their_place(
    change: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "batch.parquet"
    await made().save(path)
    rewritten(path, change)
    with pytest.raises(UsageError, match=rf"batch\.parquet{message}"):
        await Batch.load(path)


@pytest.mark.parametrize("size", [0, 10, -10])
async def test_torn_table_is_reported(size: int, tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    await made().save(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UsageError, match=r"batch\.parquet is not a readable Parquet file"):
        await Batch.load(path)


async def test_without_pyarrow_the_pip_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "batch.parquet"
    await made().save(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # how Python marks a module that cannot be imported
    for call in (made().save(path), Batch.load(path)):
        with pytest.raises(MissingExtraError, match=r"pip install 'asyncrollout\[parquet\]'"):
            await call
    assert os.listdir(tmp_path) == [path.name]


async def test_file_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        await made().save(tmp_path / "batch.jsonl")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "batch.jsonl").stat().st_mode) == 0o640


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**64 - 1])
async def test_table_has_seeds_of_64_bits(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "batch.parquet"
    await Batch(0, [Group("g", [Trajectory("u", "maze", seed, [], 0.0, StopReason.TERMINATED)])]).save(path)
    with pyarrow.parquet.ParquetFile(path) as file:
        assert file.read(columns=["seed"]).to_pylist() == [{"seed": seed}]
