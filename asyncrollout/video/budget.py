"""The bytes of all videos of a recorder, counted in a small file that cameras in other processes share.

Each camera writes to a slot of its own and reads all of them, so nobody waits for a lock. The file exists while its
recorder is open: a camera that does not find it stops recording. Each look opens it again, since a mapped file would
kill the env's process if the disk went away.
"""

import os
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

OVER_BUDGET = "all videos together have reached max_bytes"

_LEFT = "its VideoRecorder was left, or the directory removed"
_LIMIT, _KEPT, _FIRST = 0, 1, 2  # numbers in the file: the bound, files that no camera writes to, the cameras' slots
_SIZE = 8  # bytes of a number
_LARGEST = 1 << 62
_LARGEST_STEP = 64 << 10


class BudgetShare(msgspec.Struct, frozen=True):
    """A camera's part in a budget; it travels to the env's process."""

    path: Path
    slot: int
    step: int
    """Bytes after which to look again."""

    def trouble(self, size: int) -> str:
        """Report the size of the camera's files; returns why they must not grow, or an empty text."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return _LEFT
        except OSError as error:
            return f"cannot read {self.path}: {error.strerror}"
        try:
            _write(file, _FIRST + self.slot, size)
            numbers = _read(file)
        except (OSError, ValueError) as error:
            return f"cannot use {self.path}: {error}"
        finally:
            os.close(file)
        return OVER_BUDGET if _sum(numbers) > numbers[_LIMIT] else ""


class Budget:
    """The recorder's side: makes the file, and gives out its slots."""

    def __init__(self, path: Path, max_bytes: int, slots: int) -> None:
        self._path = path
        self._free = [*range(slots - 1, -1, -1)]
        self._kept = 0
        self._step = min(_LARGEST_STEP, max_bytes >> 6)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        os.pwrite(self._file, bytes(_SIZE * (_FIRST + slots)), 0)
        _write(self._file, _LIMIT, min(max_bytes, _LARGEST))

    @property
    def left(self) -> int:
        """Bytes that may still be written."""
        numbers = _read(self._file)
        return int(numbers[_LIMIT]) - _sum(numbers)

    def keep(self, size: int) -> None:
        """Add to the bytes in files that no camera writes to; a negative size subtracts."""
        self._kept += size
        self._note(_KEPT, self._kept)

    def take_share(self) -> BudgetShare | None:
        """A slot for one more camera, or None if all are taken."""
        return BudgetShare(self._path, self._free.pop(), self._step) if self._free else None

    def give_back(self, share: BudgetShare) -> None:
        """Its camera writes no more."""
        self._note(_FIRST + share.slot, 0)
        self._free.append(share.slot)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1

    def _note(self, place: int, number: int) -> None:
        if self._file >= 0:  # else the recorder was left before a camera answered
            _write(self._file, place, number)


def _read(file: int) -> NDArray[np.int64]:
    return np.frombuffer(os.pread(file, os.fstat(file).st_size, 0), dtype=np.int64)


def _write(file: int, place: int, number: int) -> None:
    os.pwrite(file, number.to_bytes(_SIZE, "little", signed=True), place * _SIZE)


def _sum(numbers: NDArray[np.int64]) -> int:
    return int(numbers[_KEPT:].sum())
