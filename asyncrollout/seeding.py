"""Seeds for sampling: of an episode and a turn, and never of the time."""

import hashlib


def sampling_seed(seed: int, *place: object) -> int:
    """A number from 0 to 2**31 - 1 for one place (a session, a turn) below a seed."""
    told = "/".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest()) >> 33
