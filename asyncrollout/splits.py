"""Train, val and test for any env: which split something is for, and what a seed plays in a split.

split_of          of rows, or of whatever else is numbered: eight of ten are for train, one for val, one for test
split_by_content  of what is made from a seed: two seeds may make the same
row_of            the row that a seed plays: as many seeds in a row as there are rows play each of them once
split_seed        a seed that no other split has, for an env that makes all from its seed
"""

import zlib
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "val", "test"]
SPLITS: tuple[str, ...] = get_args(Split)
PARTS: tuple[Split, ...] = ("train",) * 8 + ("val", "test")
"""Of every ten, eight are for train."""

_TRAIN_PARTS = PARTS.count("train")


def split_of(number: int) -> Split:
    """Which split a row, or whatever else is numbered, is for."""
    return PARTS[number % len(PARTS)]


def split_by_content(content: Any) -> Split:
    """Which split something made is for, as two seeds may make the same; of numbers, texts and tuples of them."""
    return split_of(zlib.crc32(repr(content).encode()))


def row_of(seed: int, count: int) -> int:
    """The row, from 0 to `count - 1`, that a seed plays: `count` consecutive seeds play each row once, shuffled."""
    return int(_shuffled(count)[seed % count])


def split_seed(seed: int, split: Split) -> int:
    """A seed of a split's own: different for every seed, and never the same in two splits."""
    if split == "train":
        tens, place = divmod(seed, _TRAIN_PARTS)
        return len(PARTS) * tens + place
    return len(PARTS) * seed + PARTS.index(split)


@lru_cache(maxsize=16)
def _shuffled(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(count).permutation(count)
