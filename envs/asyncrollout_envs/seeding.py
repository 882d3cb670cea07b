"""Episodes from seeds: no split shares what is played with another, and nothing global is drawn from."""

import numpy as np

from asyncrollout.splits import PARTS, SPLITS, Split, split_by_content, split_of
from asyncrollout_envs.kwargs import check_one_of

__all__ = ["PARTS", "Split", "check_split", "fresh_seed", "generator", "split_by_content", "split_of"]


def check_split(env: str, split: str) -> None:
    check_one_of(env, "split", split, SPLITS)


def generator(seed: int | None, split: str, *more: int) -> np.random.Generator:
    """The generator of an episode; `more` numbers make independent ones. Without a seed, a new one each time."""
    seed = fresh_seed() if seed is None else seed
    return np.random.default_rng((seed, SPLITS.index(split), *more))


def fresh_seed() -> int:
    """A seed for whoever gave none."""
    return int(np.random.default_rng().integers(2**31))
