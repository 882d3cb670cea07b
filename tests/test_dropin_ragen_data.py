"""The stand-in for verl's DataProto: columns and rows; what fails in verl's is refused here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrollout import UsageError
from asyncrollout.dropin.ragen import DataProto
from asyncrollout.dropin.ragen.data import merged, pad_dataproto_to_divisor, unpad_dataproto


def batch(rows: int = 4) -> DataProto:
    return DataProto.from_dict(
        {"x": np.arange(rows * 2).reshape(rows, 2), "score": np.linspace(0, 1, rows)},
        {"name": np.array([f"row {row}" for row in range(rows)], dtype=object)},
        {"step": 3},
    )


def names(data: DataProto) -> list[str]:
    return [name.removeprefix("row ") for name in data.non_tensor_batch["name"]]


def test_one_dict_is_divided_by_the_kinds_of_its_arrays() -> None:
    data = DataProto.from_single_dict(
        {"x": np.zeros((2, 3)), "text": np.array(["a", "b"]), "any": np.array([None, {}], dtype=object)}, {"step": 1}
    )
    assert ([*data.batch], [*data.non_tensor_batch], data.meta_info) == (["x"], ["text", "any"], {"step": 1})


def test_rows_are_chosen() -> None:
    data = batch()
    item = data[-1]
    assert (item.batch["x"].tolist(), item.non_tensor_batch["name"], item.meta_info) == ([6, 7], "row 3", {"step": 3})
    assert names(data[1:3]) == names(data.slice(1, 3)) == ["1", "2"]
    assert names(data[::2]) == ["0", "2"]
    assert names(data[[3, 0]]) == names(data.select_idxs(np.array([3, 0]))) == ["3", "0"]
    assert names(data[np.array([True, False, False, True])]) == ["0", "3"]
    assert names(data.sample_level_repeat([0, 2, 0, 1])) == ["1", "1", "3"]
    data.reorder(np.array([2, 3, 0, 1]))
    assert names(data) == ["2", "3", "0", "1"]
    assert data.batch["x"][:, 0].tolist() == [4, 6, 0, 2]


def test_columns_are_chosen_taken_and_renamed() -> None:
    data = batch()
    chosen = data.select(batch_keys=["x"], non_tensor_batch_keys=[], meta_info_keys=["step", "none"])
    assert ([*chosen.batch], [*chosen.non_tensor_batch], chosen.meta_info) == (["x"], [], {"step": 3})
    assert data.select(deepcopy=True).non_tensor_batch["name"] is not data.non_tensor_batch["name"]
    taken = data.pop(["x"], ["name"], ["step"])
    assert ([*taken.batch], [*taken.non_tensor_batch], taken.meta_info) == (["x"], ["name"], {"step": 3})
    assert ([*data.batch], data.non_tensor_batch, data.meta_info) == (["score"], {}, {})
    assert data.rename("score", "worth") is data
    assert [*data.rename(["worth"], ["value"]).batch] == ["value"]


def test_batches_are_divided_and_joined() -> None:
    data = batch()
    assert [names(part) for part in data.chunk(2)] == [["0", "1"], ["2", "3"]]
    assert [names(part) for part in data.split(3)] == [["0", "1", "2"], ["3"]]
    assert names(DataProto.concat(data.split(3))) == names(data)
    other = DataProto({"y": np.ones(4), "x": data.batch["x"].copy()}, None, {"epoch": 1})
    assert data.union(other) is data
    assert ([*data.batch], data.meta_info) == (["x", "score", "y"], {"step": 3, "epoch": 1})
    assert merged(data, DataProto({"y": np.zeros(4)})).batch["y"].tolist() == [0] * 4


@pytest.mark.parametrize(("rows", "divisor", "extra"), [(4, 2, 0), (4, 3, 2), (3, 8, 5), (1, 4, 3)])
def test_padding_repeats_the_first_rows(rows: int, divisor: int, extra: int) -> None:
    padded, added = pad_dataproto_to_divisor(batch(rows), divisor)
    assert (len(padded), added) == (rows + extra, extra)
    assert names(padded)[rows:] == [str(place % rows) for place in range(extra)]
    assert names(unpad_dataproto(padded, added)) == names(batch(rows))


def test_mini_batches_of_several_epochs() -> None:
    data = batch()
    in_order = [names(part) for part in data.make_iterator(2, 2)]
    assert in_order == [["0", "1"], ["2", "3"]] * 2
    shuffled = [
        [name for part in data.make_iterator(2, 3, seed, {"shuffle": True}) for name in names(part)]
        for seed in (1, 1, 2)
    ]
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert [sorted(shuffled[0][start : start + 4]) for start in (0, 4, 8)] == [["0", "1", "2", "3"]] * 3
    assert all(part.meta_info == {"step": 3} for part in data.make_iterator(2, 1))


def test_a_batch_is_kept_on_disk(tmp_path: Path) -> None:
    data = batch()
    data.save_to_disk(tmp_path / "batch.pkl")
    loaded = DataProto.load_from_disk(tmp_path / "batch.pkl")
    assert {key: column.tolist() for key, column in loaded.batch.items()} == {
        key: column.tolist() for key, column in data.batch.items()
    }
    assert (names(loaded), loaded.meta_info) == (names(data), data.meta_info)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda data: data.pop(["y"]), "there is no 'y'; available: x, score"),
        (lambda data: data.select(batch_keys=["y"]), "there is no 'y'"),
        (lambda data: data.rename("x", ["a", "b"]), "1 old keys for 2 new ones"),
        (lambda data: data.rename("x", "score"), "'score' exists already"),
        (lambda data: data.chunk(3), "4 rows cannot be divided into 3 equal parts"),
        (lambda data: data.to("cuda:0"), "numpy arrays stay on the CPU"),
        (lambda data: data.make_iterator(3, 1), "4 rows are not a multiple of 3"),
        (lambda data: data.make_iterator(2, 1, None, {"num_workers": 2}), "'num_workers'.* needs torch"),
        (lambda data: data.union(DataProto({"x": np.zeros((4, 2))})), "'x' is in both, and differs"),
        (lambda data: data.union(DataProto(None, {"name": ["a"] * 4})), "'name' is in both, and differs"),
        (lambda data: data.union(DataProto(meta_info={"step": 4})), "'step'.* is in both, and differs"),
        (lambda data: DataProto.concat([data, data.select(batch_keys=["x"])]), "the parts have different columns"),
    ],
)
def test_wrong_use_is_refused(call: Any, reason: str) -> None:
    data = batch()
    with pytest.raises(UsageError, match=reason):
        call(data)
    assert [*data.batch] == ["x", "score"]


@pytest.mark.parametrize("data", [DataProto(), DataProto({"a": np.zeros((0, 3))}, {"b": []})])
def test_an_empty_batch_is_divided_like_any_other(data: DataProto) -> None:
    assert [len(part) for part in data.chunk(3)] == [0, 0, 0]
    assert [part.batch.keys() for part in data.chunk(2)] == [data.batch.keys()] * 2
    assert len(data.sample_level_repeat([])) == 0
    assert len(DataProto.concat(data.chunk(2))) == 0


def test_facts_of_a_batch_may_be_arrays() -> None:
    one, other = (DataProto({"a": np.arange(2)}, meta_info={"lengths": np.arange(2) + more}) for more in (0, 1))
    assert one.union(one).meta_info["lengths"].tolist() == [0, 1]
    with pytest.raises(UsageError, match="lengths"):
        one.union(other)


def test_parts_have_at_least_one_row() -> None:
    data = DataProto({"a": np.arange(4)})
    for call in (lambda: data.split(0), lambda: data.make_iterator(0, 1)):
        with pytest.raises(UsageError, match="0"):
            call()
