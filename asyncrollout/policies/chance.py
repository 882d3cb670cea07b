"""Randomness that depends on who asks, and never on when."""

import hashlib

import numpy as np

from asyncrollout.trajectories import without_evaluation
from asyncrollout.types import Request


def generator_for(seed: int, request: Request) -> np.random.Generator:
    """The generator of one turn of one session; it does not depend on how many evaluations came before."""
    asked = without_evaluation(request.session)
    session = int.from_bytes(hashlib.blake2b(asked.encode(), digest_size=8).digest())
    sampling = () if request.sampling.seed is None else (request.sampling.seed,)
    return np.random.default_rng((seed, session, request.turn, *sampling))
