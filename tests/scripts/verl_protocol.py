"""Random programs of operations on verl's own DataProto and on our stand-in: both must give the same, or both fail.

Usage: python verl_protocol.py PROGRAMS, where verl and torch are installed.
"""

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl.protocol
from verl import DataProto as Theirs

from asyncrollout.dropin.ragen import data as our_protocol
from asyncrollout.dropin.ragen.data import DataProto as Ours

Pair = tuple[Any, Any]  # ours, theirs
STEPS = 12


def make(rng: random.Random, rows: int, *, keys: tuple[str, ...] = ("x", "ids", "score")) -> Pair:
    """The same random columns, as arrays and as tensors."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    arrays: dict[str, Any] = {
        "x": numbers.integers(9, size=(rows, 3)),
        "ids": numbers.integers(9, size=rows),
        "score": numbers.normal(size=(rows, 2, 2)).astype(np.float32),
        "flag": numbers.random(rows) < 0.5,
        "more": numbers.normal(size=(rows, 1)),
    }
    arrays = {key: arrays[key] for key in keys}
    texts = np.array([f"row {number}" for number in numbers.integers(99, size=rows)], dtype=object)
    infos = np.array([{"number": int(number)} for number in numbers.integers(9, size=rows)], dtype=object)
    objects = {f"{keys[0]} text": texts, f"{keys[0]} info": infos}
    meta = {"step": 3, keys[0]: rng.randrange(3)}
    if rng.random() < 0.5:
        ours = Ours.from_single_dict({**{k: v.copy() for k, v in arrays.items()}, **objects}, dict(meta))
        tensors = {key: torch.from_numpy(value.copy()) for key, value in arrays.items()}
        return ours, Theirs.from_single_dict({**tensors, **objects}, dict(meta))
    tensors = {key: torch.from_numpy(value.copy()) for key, value in arrays.items()}
    return Ours.from_dict(arrays, dict(objects), dict(meta)), Theirs.from_dict(tensors, dict(objects), dict(meta))


def plain(found: Any) -> Any:
    """Anything that an operation gives, as plain values."""
    if isinstance(found, list):
        return [plain(one) for one in found]
    if found is None or isinstance(found, int | str):
        return found
    batch = {} if found.batch is None else {key: np.asarray(value) for key, value in found.batch.items()}
    columns = {key: np.asarray(value, dtype=object) for key, value in found.non_tensor_batch.items()}
    return (
        {key: (str(value.dtype), value.shape, value.tolist()) for key, value in batch.items()},
        {key: value.tolist() for key, value in columns.items()},
        found.meta_info,
    )


def chosen(rng: random.Random, keys: Any, least: int = 0) -> list[str]:
    names = sorted(keys)
    return rng.sample(names, rng.randint(min(least, len(names)), len(names)))


def operation(rng: random.Random, pair: Pair) -> tuple[str, Callable[[Any, bool], Any]]:
    """A name, and what to do with either of the two."""
    ours = pair[0]
    rows = len(ours)
    batch_keys = chosen(rng, ours.batch, 1)
    all_but_one = batch_keys[1:]
    objects, meta = chosen(rng, ours.non_tensor_batch), chosen(rng, ours.meta_info)
    places = [rng.randrange(-rows, rows) for _ in range(rng.randint(1, 6))]
    mask = [rng.random() < 0.6 for _ in range(rows)]
    order = rng.sample(range(rows), rows)
    times, size = rng.randint(1, 3), rng.randint(1, 4)
    bounds = [rng.choice([None, *range(-rows, rows + 2)]) for _ in range(2)]
    wrong = rng.random() < 0.2
    other = make(rng, rows + (1 if wrong else 0), keys=("flag", "more"))
    counts = [rng.randrange(3) for _ in range(rows)]
    counts[0] += 1

    def as_index(values: Any, mine: bool) -> Any:
        return np.array(values) if mine else torch.tensor(values)

    def reorder(data: Any, mine: bool) -> Any:
        data.reorder(as_index(order, mine))
        return data

    def save(data: Any, mine: bool) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            data.save_to_disk(Path(folder) / "batch")
            return type(data).load_from_disk(Path(folder) / "batch")

    def pad(data: Any, mine: bool) -> Any:
        protocol: Any = our_protocol if mine else verl.protocol
        padded, extra = protocol.pad_dataproto_to_divisor(data, size + 1)
        return [padded, extra, protocol.unpad_dataproto(padded, extra)]

    def pop(data: Any, mine: bool) -> Any:
        taken = data.pop([*all_but_one, *(["missing"] if wrong else [])], objects, meta)
        return [data, taken]

    def split(data: Any, mine: bool) -> Any:  # which verl-agent's has not yet
        if mine or hasattr(data, "split"):
            return data.split(size)
        return [data[start : start + size] for start in range(0, len(data), size)]

    choices: dict[str, Callable[[Any, bool], Any]] = {
        "item": lambda data, mine: data[places[0]],
        "slice": lambda data, mine: data[bounds[0] : bounds[1]],
        "slice()": lambda data, mine: data.slice(bounds[0], bounds[1], times),
        "rows": lambda data, mine: data[[place % rows for place in places]],
        "array": lambda data, mine: data[np.array(places) % rows],
        "index": lambda data, mine: data.select_idxs(as_index(places, mine)),
        "mask": lambda data, mine: data.select_idxs(as_index(mask, mine)),
        "list mask": lambda data, mine: data.select_idxs(mask),
        "select": lambda data, mine: data.select(batch_keys, objects, meta, deepcopy=wrong),
        "select all": lambda data, mine: data.select(),
        "select missing": lambda data, mine: data.select(["missing"]),
        "pop": pop,
        "rename": lambda data, mine: data.rename(batch_keys[0], f"{batch_keys[0]}'"),
        "rename list": lambda data, mine: data.rename([batch_keys[0]], [f"{key}*" for key in batch_keys[: 1 + wrong]]),
        "union": lambda data, mine: data.union(other[not mine]),
        "union of the same": lambda data, mine: data.union(data.select(deepcopy=True)),
        "repeat": lambda data, mine: data.repeat(times, interleave=wrong),
        "repeat in turn": lambda data, mine: data.repeat(times),
        "repeat rows": lambda data, mine: data.sample_level_repeat(counts),
        "reorder": reorder,
        "chunk": lambda data, mine: data.chunk(size),
        "split": split,
        "concat": lambda data, mine: type(data).concat([data, data[: size + 1]]),
        "concat others": lambda data, mine: type(data).concat(
            [data, data.select(batch_keys=all_but_one or batch_keys)]
        ),
        "to": lambda data, mine: data.to("cpu"),
        "iterate": lambda data, mine: list(data.make_iterator(size, times)),
        "iterate shuffled": lambda data, mine: _in_any_order(data, size),
        "save": save,
        "pad": pad,
        "len": lambda data, mine: len(data),
    }
    name = rng.choice(sorted(choices))
    return name, choices[name]


def _in_any_order(data: Any, size: int) -> Any:
    parts = list(data.make_iterator(size, 1, 5, {"shuffle": True}))
    joined = type(data).concat(parts)
    return [len(parts), *sorted(str(plain(joined[row])) for row in range(len(joined)))]


def attempt(act: Callable[[Any, bool], Any], pair: Pair) -> tuple[Any, Any, str]:
    """What both give; the reason if one of them fails alone."""
    found: list[Any] = []
    errors: list[str] = []
    for data, mine in zip(pair, (True, False), strict=True):
        try:
            found.append(act(data, mine))
            errors.append("")
        except Exception as error:
            found.append(None)
            errors.append(f"{type(error).__name__}: {error}")
    if bool(errors[0]) != bool(errors[1]):
        return *found, f"only one of them fails: ours {errors[0]!r:.300}, theirs {errors[1]!r:.300}"
    return *found, "both fail" if errors[0] else ""


def run(seed: int) -> dict[str, int]:
    """One program; how often each operation was done."""
    rng = random.Random(seed)
    pair, done = make(rng, rng.randint(1, 7)), dict[str, int]()
    for step in range(STEPS):
        name, act = operation(rng, pair)
        ours, theirs, problem = attempt(act, pair)
        where = f"program {seed}, step {step}, {name}"
        if problem == "both fail":
            done[f"{name} (fails)"] = done.get(f"{name} (fails)", 0) + 1
            pair = make(rng, rng.randint(1, 7))  # verl's may be left in the middle of something
            continue
        if problem:
            raise AssertionError(f"{where}: {problem}")
        for mine, other in ((ours, theirs), (pair[0], pair[1])):
            if plain(mine) != plain(other):
                raise AssertionError(f"{where}:\nours:   {plain(mine)}\ntheirs: {plain(other)}")
        done[name] = done.get(name, 0) + 1
        if name == "save":  # verl's are locked from then on
            pair = make(rng, rng.randint(1, 7))
        elif isinstance(ours, Ours) and len(ours) and ours.batch:
            pair = ours, theirs
    return done


def main() -> None:
    total: dict[str, int] = {}
    for seed in range(int(sys.argv[1])):
        for name, count in run(seed).items():
            total[name] = total.get(name, 0) + count
    print(f"{sys.argv[1]} programs, {sum(total.values())} operations are the same as those of {verl.protocol.__file__}")
    print(", ".join(f"{name} {count}" for name, count in sorted(total.items())))


if __name__ == "__main__":
    main()
