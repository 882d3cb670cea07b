"""Files that pool and worker both map.

Each lives in the worker's private directory and is unlinked as soon as both sides have it open, so that no kill can
leak it.
"""

import mmap
import os
from pathlib import Path


def reserve(path: Path, size: int) -> mmap.mmap:
    """Create and map a file whose space is really there: writing to a full tmpfs would be a SIGBUS."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:  # macOS
            os.write(fd, bytes(size))
        return mmap.mmap(fd, size)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(fd)


def attach(path: Path) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)
