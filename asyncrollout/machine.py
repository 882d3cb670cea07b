"""What this process may use of its machine: cores and file descriptors."""

import math
import os
import resource
from pathlib import Path
from typing import NamedTuple

FDS_PER_WORKER = 8
"""File descriptors that the pool keeps open for each worker."""
FDS_SPARE = 64
"""File descriptors for everything else that a run opens."""


class Descriptors(NamedTuple):
    """Open file descriptors, how many are allowed, and how far that may be raised; infinite without a limit."""

    used: int
    allowed: float
    most: float


def count_descriptors() -> Descriptors:
    soft, hard = (
        math.inf if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return Descriptors(len(list(Path("/dev/fd").iterdir())), soft, hard)


def usable_cpus() -> int:
    """The number of cores that this process may use; all of them where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
