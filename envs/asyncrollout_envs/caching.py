"""Where envs keep what takes long to make, and how processes take turns at making it."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAP = 0.01  # seconds


def cache_directory() -> Path:
    """`$ASYNCROLLOUT_CACHE`, else `asyncrollout` in the user's cache directory."""
    try:
        if chosen := os.environ.get("ASYNCROLLOUT_CACHE"):
            return Path(chosen).expanduser().absolute()
        if users := os.environ.get("XDG_CACHE_HOME"):
            return Path(users).absolute() / "asyncrollout"
        return Path.home() / ".cache" / "asyncrollout"
    except RuntimeError as error:
        raise FileNotFoundError("the user has no home directory") from error


@contextmanager
def alone(path: Path, patience: float | None = None) -> Iterator[bool]:
    """One process, and one thread, after another, for as long as it holds the lock of a file or directory.

    It tells whether it is so: some network file systems know no locks, and after `patience` seconds nobody waits.
    """
    descriptor = os.open(path, os.O_RDONLY | (0 if path.is_dir() else os.O_CREAT), 0o666)
    try:
        yield _lock(descriptor, patience)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, patience: float | None) -> bool:
    deadline = None if patience is None else time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if deadline is None else fcntl.LOCK_NB))
            except BlockingIOError:
                if deadline is None or time.monotonic() > deadline:
                    return False
                time.sleep(_NAP)
            else:
                return True
    except OSError:
        return False


def short_digest(*parts: bytes) -> str:
    """A name for a file, of what is in it or what it is made from."""
    return hashlib.blake2b(b"\0".join(parts), digest_size=10).hexdigest()
