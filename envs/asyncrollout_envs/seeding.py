"""Episodes from seeds: the splits never share one, and nothing global is drawn from."""

from typing import Literal, get_args

import numpy as np

from asyncrollout_envs.kwargs import check_one_of

Split = Literal["train", "val", "test"]
_SPLITS: tuple[str, ...] = get_args(Split)


def check_split(env: str, split: str) -> None:
    check_one_of(env, "split", split, _SPLITS)


def generator(seed: int | None, split: str, *more: int) -> np.random.Generator:
    """The generator of an episode; `more` numbers make independent ones. Without a seed, a new one each time."""
    seed = fresh_seed() if seed is None else seed
    return np.random.default_rng((seed, _SPLITS.index(split), *more))


def fresh_seed() -> int:
    """A seed for whoever gave none."""
    return int(np.random.default_rng().integers(2**31))
