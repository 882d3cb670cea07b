"""Rows from files: three formats, the split, and errors that name the place."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from asyncrollout import MissingExtraError, UsageError
from asyncrollout_envs.datafiles import Rows, choose_row, load_split
from asyncrollout_envs.seeding import split_of


class Entry(msgspec.Struct):
    name: str
    size: int = 0

    def read(self) -> tuple[str, tuple[str, int]] | None:
        if self.size < 0:
            raise ValueError("field 'size' is negative")
        return (self.name, (self.name, self.size)) if self.name else None


def load(path: Path | str, split: str = "train") -> Rows[tuple[str, int]]:
    return load_split("tried", path, split, Entry, Entry.read)


def write(path: Path, rows: list[Any]) -> Path:
    match path.suffix:
        case ".json":
            path.write_text(json.dumps(rows))
        case ".parquet":
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


TWENTY = [{"name": f"n{number}", "size": number, "unused": [number]} for number in range(20)]
FORMATS = [".json", ".jsonl", ".ndjson", ".parquet"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_splits(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"rows{suffix}", TWENTY)
    sizes = {split: [size for _, size in load(path, split).items] for split in ("train", "val", "test")}
    assert sizes == {"train": [*range(8), *range(10, 18)], "val": [8, 18], "test": [9, 19]}


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_about_the_same_thing_stay_together(tmp_path: Path, suffix: str) -> None:
    again = [{"name": "n9", "size": 99}, {"name": "n0", "size": 100}, {"name": "n8", "size": 98}]
    path = write(tmp_path / f"rows{suffix}", TWENTY[:10] + again + TWENTY[10:])
    assert [size for _, size in load(path, "test").items] == [9, 99, 19]
    assert [size for _, size in load(path, "val").items] == [8, 98, 18]


def test_split_of_a_number() -> None:
    assert [split_of(number) for number in range(10)] == ["train"] * 8 + ["val", "test"]


def test_skipped_rows_are_counted_and_take_no_place(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"name": ""}, *TWENTY[:5], {"name": ""}, *TWENTY[5:]])
    assert load(path).skipped == 2
    assert load(path, "test").items == (("n9", 9), ("n19", 19))


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"name": "a"}\n\n  \n{"name": "b"}')
    assert load(path).items == (("a", 0), ("b", 0))
    whole = tmp_path / "rows.json"
    whole.write_text('\ufeff[{"name": "a"}]')
    assert load(whole).items == (("a", 0),)


def test_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.json", TWENTY)
    first = load(path).items
    assert load(str(path)).items is first
    write(path, TWENTY[:10])
    os.utime(path, ns=(1, 1))
    assert len(load(path).items) == 8


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("rows.jsonl", '{"name": "a"}\n\n{"size": 1}\n', ["line 3", "name"]),
        ("rows.jsonl", '{"name": "a"}\n{"name": 1}\n', ["line 2", "$.name"]),
        ("rows.jsonl", '{"name": "a"}\n{"name": \n', ["line 2"]),
        ("rows.jsonl", '{"name": "a", "size": -1}\n', ["line 1", "'size' is negative"]),
        ("rows.json", '[{"name": "a"}, {"name": "b", "size": "x"}]', ["row 2", "$.size"]),
        ("rows.json", '[{"name": "a"}, 7]', ["row 2", "object"]),
        ("rows.json", '{"name": "a"}', ["not a JSON list", ".jsonl"]),
        ("rows.json", '[{"name": "a"', ["not a JSON list"]),
        ("rows.json", "", ["not a JSON list"]),
        ("rows.json", "[]", ["no usable row"]),
        ("rows.jsonl", '{"name": ""}', ["no usable row", "1 skipped"]),
        ("rows.parquet", "no parquet", ["not a readable Parquet file"]),
        ("rows.csv", "name,size", [".json", ".jsonl", ".parquet"]),
        ("rows.json", "[" * 100_000, ["not a JSON list"]),
        ("rows.json", '[{"name": "a"}, {"other": ' + "[" * 100_000 + "]" * 100_000 + "}]", ["recursion"]),
        ("rows.jsonl", '{"name": "a"}\n{"other": ' + "[" * 100_000 + "]" * 100_000 + "}\n", ["line 2", "recursion"]),
    ],
)
def test_errors_name_the_env_the_file_and_the_place(
    tmp_path: Path, name: str, content: str, reported: list[str]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        load(path)
    for part in ["tried", str(path), *reported]:
        assert part in str(caught.value)


def test_bytes_that_are_no_text_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"name": "\xff\xfe"}\n')
    with pytest.raises(UsageError, match="line 1"):
        load(path)


def test_error_in_a_parquet_row_names_it(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", [{"name": "a", "size": 1}, {"name": None, "size": 1}])
    with pytest.raises(UsageError, match=r"row 2: .*\$\.name"):
        load(path)
    with pytest.raises(UsageError, match=r"row 1: .*name"):
        load(write(tmp_path / "other.parquet", [{"size": 1}]))


def test_missing_file_and_directory_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tried: data_path='.*none\.json' cannot be read: No such file"):
        load(tmp_path / "none.json")
    (tmp_path / "directory.json").mkdir()
    with pytest.raises(UsageError, match=r"tried: data_path='.*directory\.json' is not a regular file"):
        load(tmp_path / "directory.json")


@pytest.mark.parametrize("suffix", FORMATS)
def test_pipe_is_reported_and_not_waited_for(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")
    with pytest.raises(UsageError, match=r"tried: data_path='.*pipe.*' is not a regular file"):
        load(tmp_path / f"pipe{suffix}")


@pytest.mark.parametrize(
    "path", ["~nobody-of-this-name/x.json", "a\0b.json", "\ud800.json", "x" * 5_000 + ".json", "rows.json/x.json"]
)
def test_path_that_cannot_be_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.json", TWENTY)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"tried: data_path={path!r} cannot be read: ")


def test_text_in_parquet_that_is_none_is_reported(tmp_path: Path) -> None:
    names = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.table({"name": names}), path)
    with pytest.raises(UsageError, match=r"tried: .*rows\.parquet is not a readable Parquet file"):
        load(path)


def test_too_few_rows_for_a_split_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.json", [*TWENTY[:8], *TWENTY[:8]])
    assert len(load(path).items) == 16
    with pytest.raises(UsageError, match=r"too few different rows for split='val'.* from number 9 on"):
        load(path, "val")


def test_parquet_without_pyarrow_names_the_pip_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows.parquet", TWENTY)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # how Python marks a module that cannot be imported
    with pytest.raises(MissingExtraError, match=r"pip install 'asyncrollout\[parquet\]'"):
        load(path)


def test_row_is_the_task_or_drawn_by_the_seed() -> None:
    assert choose_row("tried", 5, "train", 0, 3) == 3
    drawn = [choose_row("tried", 5, "train", seed, None) for seed in range(50)]
    assert drawn == [choose_row("tried", 5, "train", seed, None) for seed in range(50)]
    assert set(drawn) == set(range(5))


@pytest.mark.parametrize("task", [5, -1, True, "3", 2.0, {"row": 1}])
def test_wrong_row_is_reported(task: Any) -> None:
    with pytest.raises(UsageError, match=r"tried: task=.* split='val' has 0 to 4"):
        choose_row("tried", 5, "val", 0, task)
