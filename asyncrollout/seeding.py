"""Seeds for sampling, from an episode and a turn, never from the time; and consecutive ones for envs."""

import hashlib

_TRAINING = 2**30


def sampling_seed(seed: int, *place: object) -> int:
    """A number from 0 to 2**31 - 1 for one place (a session, a turn) below a seed."""
    path = "/".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(path, digest_size=8).digest()) >> 33


def training_seed(seed: int, tag: str, number: int) -> int:
    """The env seed of a group by its number among those of its env's tag: from 2**30 on, and below 2**31.

    They are consecutive, so that an env with rows plays each row once per pass, and never those of evaluations.
    """
    return _TRAINING + sampling_seed(seed, "env", tag) // 4 + number


def evaluation_seed(seed: int, number: int) -> int:
    """The env seed of an evaluation's task by its number among those of its env: below 2**30."""
    return sampling_seed(sampling_seed(seed, "evaluation"), "env") // 4 + number
