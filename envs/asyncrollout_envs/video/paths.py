"""Paths that come from files and configs: resolved, and never outside the directory that they belong in."""

import os
import stat
from pathlib import Path

from asyncrollout.errors import EnvError, UsageError

DATA_DIRECTORY = "ASYNCROLLOUT_DATA_DIR"
"""Where all data must be, if this is set: whoever runs envs for others says what they may read."""

_LONGEST_NAME = 255


def inside(root: Path, name: str) -> Path:
    """What a row's path names in the data directory; an EnvError if it leads out of it."""
    shown = f"video path {name[:100]!r}{'...' * (len(name) > 100)}"
    if not name or "\0" in name or len(name) > _LONGEST_NAME:
        raise EnvError(f"{shown} is not a path of 1 to {_LONGEST_NAME} characters without NUL")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise EnvError(f"{shown} is refused: a path is relative to the data directory, and has no '..'")
    try:
        real = (root / name).resolve()
        is_inside = real.is_relative_to(root.resolve())
    except (OSError, RuntimeError) as error:  # a loop of links
        raise EnvError(f"{shown} cannot be followed: {error}") from None
    if not is_inside:
        raise EnvError(f"{shown} is refused: it is a link that leads out of the data directory {str(root)!r}")
    return real


def video_file(root: Path, names: tuple[str, ...]) -> Path:
    """The first of these that is there."""
    for name in names:
        path = inside(root, name)
        try:
            status = path.stat()
        except OSError:
            continue
        if not stat.S_ISREG(status.st_mode):
            raise EnvError(f"video {str(path)!r} is not a regular file")
        if not status.st_size:
            raise EnvError(f"video {str(path)!r} is empty")
        return path
    raise EnvError(f"there is no video {' or '.join(map(repr, names))} in the data directory {str(root)!r}")


def data_file(what: str, path: str | os.PathLike[str], *, within: tuple[Path, ...] = ()) -> Path:
    """A file or directory that a config names, which is in one of the directories `within`; relative ones in the first.

    With none of these it may be anywhere, unless `$ASYNCROLLOUT_DATA_DIR` says where.
    """
    try:
        given = Path(path).expanduser()
        found = (within[0] / given if within else given).resolve()
        exists = found.exists()
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise UsageError(f"video: {what}={str(path)[:300]!r} is not a path that can be read: {error}") from None
    if within and not any(found.is_relative_to(one) for one in within):
        places = " nor in ".join(repr(str(one)) for one in dict.fromkeys(within))
        raise UsageError(f"video: {what}={str(path)!r} is refused: it is not in {places}")
    allowed = os.environ.get(DATA_DIRECTORY)
    if allowed and not within and not found.is_relative_to(Path(allowed).resolve()):
        raise UsageError(f"video: {what}={str(path)!r} is refused: {DATA_DIRECTORY} allows data in {allowed!r} only")
    if not exists:
        raise UsageError(f"video: {what}={str(path)!r}: there is no such file or directory")
    return found
