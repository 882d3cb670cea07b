"""The files of videos: their names, those that are being written, and how these become whole ones."""

import fcntl
import os
import re
import struct
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from zlib import crc32

import anyio

from asyncrollout.errors import UsageError
from asyncrollout.video.ffmpeg import remux_command

VIDEOS = "videos"
"""The directory in that of a run."""

_PART = ".part"
_WHOLE = ".whole"
_BUDGET = ".budget"
_SUFFIX = ".mp4"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,149}")
_LATER = re.compile(r"_episode[1-9]\d*")
_LONGEST = 120
_WAIT_FOR_ENCODER = 15.0  # seconds; more than an encoder is given to end
_LOOK_EVERY = 0.02
_REMUX = 20.0
_LONGEST_COMPLAINT = 300
_numbers = count(1)


def check_name(name: object) -> str:
    """A name of our own, which stays inside its directory on every file system."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"a video's name has up to 150 letters, digits, '_', '-' and '.', and is not {name!r:.200}")
    return name


def name_for(uid: str) -> str:
    """The name for a rollout: its uid, if that can be one; else the like of it, which no other has."""
    if _NAME.fullmatch(uid):
        return uid
    return f"_{re.sub('[^A-Za-z0-9_.-]', '_', uid)[:_LONGEST]}-{crc32(uid.encode('utf-8', 'surrogatepass')):08x}"


def stem_of(name: str, episode: int) -> str:
    """The first episode of an env has the name itself; more of them do not overwrite it."""
    return name if episode == 0 else f"{name}_episode{episode}"


def may_share_a_file(one: str, other: str) -> bool:
    """Whether videos of these names may have one file: they are the same, or one is a later episode of the other."""
    short, long = sorted((one, other), key=len)
    return one == other or bool(_LATER.fullmatch(long.removeprefix(short)) and long.startswith(short))


def whole_file(directory: Path, stem: str) -> Path:
    return directory / f"{stem}{_SUFFIX}"


def new_take() -> str:
    """A unique name for an attempt at a video, or for all of a recorder's."""
    return f"{time.time_ns():x}.{os.getpid()}.{next(_numbers)}"


def new_part(directory: Path, stem: str, take: str) -> Path:
    """Where an episode is written to; an env that moves writes another one, and the first may not have ended yet."""
    return directory / f"{stem}{_SUFFIX}.{take}.{os.getpid()}.{next(_numbers)}{_PART}"


def budget_file(directory: Path, take: str) -> Path:
    """It is hidden, and there while the recorder is open."""
    return directory / f".{take}{_BUDGET}"


def parts_in(directory: Path, name: str = "", take: str = "") -> dict[str, list[Path]]:
    """What is not whole yet, by stem, the oldest first: all of it, or that of one take."""
    found: dict[str, list[Path]] = defaultdict(list)
    with suppress(OSError):  # there is nothing where nothing can be seen
        for path in sorted(directory.glob(f"{name}*{_SUFFIX}.{take}*{_PART}")):
            found[path.name[: path.name.rindex(f"{_SUFFIX}.")]].append(path)
    return found


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def claim(directory: Path) -> tuple[int, bool | None]:
    """Take note that videos are recorded here, until the descriptor is closed; and whether others do so, if known."""
    held = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    is_shared: bool | None = False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_shared = True
    except OSError:  # some file systems have no locks
        is_shared = None
    with suppress(OSError):
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return held, is_shared


def count_frames(path: Path) -> int:
    """Of a file that is being written, or was not finished: it has a fragment for each frame."""
    frames = 0
    try:
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            at = 0
            while at + 8 <= end:
                file.seek(at)
                size, kind = struct.unpack(">I4s", file.read(8))
                if size < 8:
                    break
                at += size
                frames += kind == b"mdat" and at <= end
    except OSError:
        return 0
    return frames


def finish(ffmpeg: str, part: Path, whole: Path) -> None:
    """Make a part, whose encoder has ended, the whole file; it is named so as it is if that cannot be, for it plays.

    An `OSError` then says why. It is a process of its own that does it, for some hundredths of a second: call it in a
    thread.
    """
    made = part.with_suffix(_WHOLE)
    try:
        command = remux_command(ffmpeg, part, made)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_REMUX, check=False)  # noqa: S603
        if done.returncode:
            complaint = done.stderr.decode(errors="replace").strip()[-_LONGEST_COMPLAINT:]  # the cause comes last
            raise OSError(f"{whole.name} cannot be made whole: {complaint}")
        made.replace(whole)
        part.unlink(missing_ok=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        part.replace(whole)  # which takes no room on a full disk
        if isinstance(error, OSError):
            raise
        raise OSError(f"{whole.name} was not made whole within {_REMUX:g} s") from error
    finally:
        made.unlink(missing_ok=True)


async def until_released(part: Path, is_late: Callable[[], bool]) -> None:
    """An encoder holds a lock on its file until it has ended; one that never does, or is late, is not waited for."""
    with anyio.move_on_after(_WAIT_FOR_ENCODER):
        while is_written(part) and not is_late():  # noqa: ASYNC110 (another process's doing)
            await anyio.sleep(_LOOK_EVERY)


def is_written(part: Path) -> bool:
    """Whether an encoder is still at it."""
    try:
        file = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(file)
    return False


def finish_left_parts(ffmpeg: str, directory: Path) -> int:
    """What a killed process has left: the best part of each episode becomes its video, unless there is a newer one."""
    finished = 0
    for part, whole in _sort_out_left_parts(directory).items():
        with suppress(OSError):  # it can be played as it is
            finish(ffmpeg, part, whole)
            finished += 1
    return finished


def _sort_out_left_parts(directory: Path) -> dict[Path, Path]:
    """Those to be made whole; all others are removed, unless they are being written."""
    wanted: dict[Path, Path] = {}
    for pattern in (f"*{_SUFFIX}.*{_WHOLE}", f".*{_BUDGET}"):
        for left in directory.glob(pattern):
            left.unlink(missing_ok=True)
    for stem, parts in parts_in(directory).items():
        whole = whole_file(directory, stem)
        after = whole.stat().st_mtime_ns if whole.exists() else 0
        ended = [(count_frames(part), part) for part in parts if not is_written(part)]
        for frames, part in ended:
            if frames and (frames, part) == max(ended) and part.stat().st_mtime_ns >= after:
                wanted[part] = whole
            else:
                part.unlink(missing_ok=True)
    return wanted
