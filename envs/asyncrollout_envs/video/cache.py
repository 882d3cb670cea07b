"""Decoded frames on disk: one file for each video, shared by processes, of bounded size altogether."""

import os
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout_envs.caching import alone, cache_directory, short_digest
from asyncrollout_envs.video.ffmpeg import ClipInfo

Frame = NDArray[np.uint8]

_MAGIC = b"asyncrollout frames 1\n"
_LENGTHS = struct.Struct("<II")  # of the header, and its checksum
_SUFFIX, _PARTIAL = ".frames", ".partial"
_LOCKS = 64
_SPARE = 20  # a 20th of the limit may be written before the directory is looked through again
_KEPT = 0.9  # of the limit, when it was passed
_PARTIAL_AGE = 3600.0  # seconds; whoever began it was killed


class Header(msgspec.Struct, frozen=True):
    """What a file holds: frames of one shape, with a checksum each, in this order."""

    info: ClipInfo
    numbers: list[int] = []
    shape: tuple[int, int] = (0, 0)
    sums: list[int] = []

    @property
    def frame_bytes(self) -> int:
        return 3 * self.shape[0] * self.shape[1]


class Entry(msgspec.Struct, frozen=True):
    """What is known of a video: its length, and those of its frames that were asked for."""

    info: ClipInfo
    frames: Mapping[int, Frame] = {}


class FrameCache:
    """`most_bytes` is the limit for all entries together, 0 for none; the one that was unused for longest goes first.

    What cannot be written is not kept; what cannot be read, or is damaged, is as if it were not there.
    """

    def __init__(self, most_bytes: int, directory: Path | None = None) -> None:
        self._most_bytes = most_bytes
        self._directory = directory
        self._written = most_bytes  # since the directory was last looked through; the first entry has it done
        self._lock = threading.Lock()

    def read(self, key: str, wanted: Sequence[int]) -> Entry | None:
        """An entry with those of the wanted frames that it has."""
        if not self._most_bytes:
            return None
        try:
            path = self._place() / f"{key}{_SUFFIX}"
            with path.open("rb") as file:
                entry = _read(file, path.stat().st_size, {*wanted})
            os.utime(path)  # the time of its last use
        except (OSError, ValueError, msgspec.DecodeError):
            return None
        return entry

    def write(self, key: str, entry: Entry) -> None:
        """Put an entry in place of what was there, at once."""
        if not self._most_bytes:
            return
        with suppress(OSError):
            directory = self._place()
            descriptor, name = tempfile.mkstemp(dir=directory, prefix=key, suffix=_PARTIAL)
            own = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    _write(file, entry)
                    size = file.tell()
                own.replace(directory / f"{key}{_SUFFIX}")
            finally:
                own.unlink(missing_ok=True)
            self._trim(directory, size)

    @contextmanager
    def alone(self, key: str, patience: float) -> Iterator[None]:
        """Nobody else makes this entry meanwhile, unless that took longer than `patience`, in seconds."""
        try:
            lock = self._place() / f"lock-{int(key, 16) % _LOCKS:02}" if self._most_bytes else None
        except OSError:
            lock = None
        if lock is None:
            yield
            return
        with alone(lock, patience):
            yield

    def _place(self) -> Path:
        directory = self._directory or cache_directory() / "frames"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _trim(self, directory: Path, size: int) -> None:
        with self._lock:
            self._written += size
            if self._written < self._most_bytes / _SPARE:
                return
            self._written = 0
        found = []
        for item in os.scandir(directory):
            with suppress(FileNotFoundError):
                status = item.stat()
                if item.name.endswith(_SUFFIX):
                    found.append((status.st_mtime, status.st_size, item.path))
                elif item.name.endswith(_PARTIAL) and time.time() - status.st_mtime > _PARTIAL_AGE:
                    Path(item.path).unlink(missing_ok=True)
        total = sum(entry_size for _, entry_size, _ in found)
        if total <= self._most_bytes:
            return
        for _, entry_size, path in sorted(found):
            Path(path).unlink(missing_ok=True)
            total -= entry_size
            if total <= self._most_bytes * _KEPT:
                return


def entry_key(path: Path, size: int) -> str:
    """The name of a video's entry; a file that changes gets a new one."""
    status = path.stat()
    return short_digest(os.fsencode(path), f"{status.st_size} {status.st_mtime_ns} {size}".encode())


def _write(file: BinaryIO, entry: Entry) -> None:
    numbers = sorted(entry.frames)
    raw = [np.ascontiguousarray(entry.frames[number]).tobytes() for number in numbers]
    height, width = entry.frames[numbers[0]].shape[:2] if numbers else (0, 0)
    header = msgspec.msgpack.encode(Header(entry.info, numbers, (height, width), [*map(zlib.crc32, raw)]))
    file.write(_MAGIC + _LENGTHS.pack(len(header), zlib.crc32(header)) + header)
    file.writelines(raw)


def _read(file: BinaryIO, size: int, wanted: set[int]) -> Entry:
    start = file.read(len(_MAGIC) + _LENGTHS.size)
    if len(start) < len(_MAGIC) + _LENGTHS.size or not start.startswith(_MAGIC):
        raise ValueError("not a file of frames")
    length, checksum = _LENGTHS.unpack(start[len(_MAGIC) :])
    packed = file.read(min(length, size))
    if zlib.crc32(packed) != checksum:
        raise ValueError("damaged")
    header = msgspec.msgpack.decode(packed, type=Header)
    begin = len(start) + length
    if size != begin + len(header.numbers) * header.frame_bytes:
        raise ValueError("cut off")
    frames = {}
    for place, (number, expected) in enumerate(zip(header.numbers, header.sums, strict=True)):
        if number in wanted:
            file.seek(begin + place * header.frame_bytes)
            raw = file.read(header.frame_bytes)
            if zlib.crc32(raw) != expected:
                raise ValueError("damaged")
            frames[number] = np.frombuffer(raw, np.uint8).reshape(*header.shape, 3)
    return Entry(header.info, frames)
