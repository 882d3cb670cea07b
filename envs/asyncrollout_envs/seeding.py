"""Episodes from seeds: no split shares what is played with another, and nothing global is drawn from."""

import zlib
from typing import Any, Literal, get_args

import numpy as np

from asyncrollout_envs.kwargs import check_one_of

Split = Literal["train", "val", "test"]
PARTS: tuple[Split, ...] = ("train",) * 8 + ("val", "test")
"""Of every ten, eight are for train."""

_SPLITS: tuple[str, ...] = get_args(Split)


def check_split(env: str, split: str) -> None:
    check_one_of(env, "split", split, _SPLITS)


def split_of(number: int) -> Split:
    """Which split a row, or whatever else is numbered, is for."""
    return PARTS[number % len(PARTS)]


def split_by_content(content: Any) -> Split:
    """Which split something made is for, as two seeds may make the same; of numbers, texts and tuples of them."""
    return split_of(zlib.crc32(repr(content).encode()))


def generator(seed: int | None, split: str, *more: int) -> np.random.Generator:
    """The generator of an episode; `more` numbers make independent ones. Without a seed, a new one each time."""
    seed = fresh_seed() if seed is None else seed
    return np.random.default_rng((seed, _SPLITS.index(split), *more))


def fresh_seed() -> int:
    """A seed for whoever gave none."""
    return int(np.random.default_rng().integers(2**31))
