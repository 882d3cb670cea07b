"""Seeds for sampling, derived from an episode and a turn, never from the time."""

import hashlib


def sampling_seed(seed: int, *place: object) -> int:
    """A number from 0 to 2**31 - 1 for one place (a session, a turn) below a seed."""
    path = "/".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(path, digest_size=8).digest()) >> 33
