"""The sampled frames of a video: which there are, when each is shown, and their pictures, decoded once."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import EnvError
from asyncrollout_envs.video import ffmpeg
from asyncrollout_envs.video.cache import Entry, FrameCache, entry_key
from asyncrollout_envs.video.ffmpeg import ClipInfo
from asyncrollout_envs.video.questions import Question

_EXACT = 1e-6  # seconds; less than that is the arithmetic's, not the clip's


class Sampling(msgspec.Struct, frozen=True):
    """The frames of a video that can be asked for, evenly spaced, by index; `numbers` are those in the file."""

    numbers: tuple[int, ...]
    fps: float
    seconds: float

    @classmethod
    def of(cls, info: ClipInfo, most: int) -> "Sampling":
        count = min(most, info.frames)
        return cls(tuple(evenly(0, info.frames - 1, count)), info.fps, info.seconds)

    @property
    def last(self) -> int:
        return len(self.numbers) - 1

    def time(self, index: int) -> float:
        """When a frame is shown, in seconds."""
        return self.numbers[index] / self.fps

    def between(self, start: float, end: float) -> tuple[int, int]:
        """The first and last frame shown from one second until before another; if there is none, the one on the screen.

        The time of a frame is the one that a model reads, with two decimals.
        """
        times = np.array([float(f"{self.time(index):.2f}") for index in range(len(self.numbers))])
        first, beyond = (int(at) for at in np.searchsorted(times, (start - _EXACT, end - _EXACT)))
        if first >= beyond:
            shown = max(0, int(np.searchsorted(times, start + _EXACT)) - 1)
            return shown, shown
        return first, beyond - 1

    def relevant(self, question: Question) -> tuple[int, ...] | None:
        """The frames that matter for a question, if that is known."""
        if question.windows is not None:
            if question.windows and min(start for start, _ in question.windows) >= self.seconds:
                raise EnvError(
                    f"`relevant_windows` of {question.problem[:80]!r} begin after the end of the video, at "
                    f"{round(self.seconds, 2):g} s: is it the right file?"
                )
            return tuple(
                index
                for index in range(len(self.numbers))
                if any(start <= self.time(index) < end for start, end in question.windows)
            )
        if question.frames is None:
            return None
        outside = [index for index in question.frames if not 0 <= index <= self.last]
        if outside:
            raise EnvError(
                f"`relevant_sample_frames` of {question.problem[:80]!r} has {outside[0]}, but the video is sampled at "
                f"0 to {self.last}: set max_video_frames as it was for the annotations"
            )
        return question.frames


class Clips:
    """Video files and their frames; `decodes` counts how often ffmpeg had to be asked."""

    def __init__(self, cache: FrameCache, frame_size: int, timeout: float) -> None:
        self.decodes = 0
        self._cache = cache
        self._size = frame_size
        self._timeout = timeout

    def info(self, path: Path) -> ClipInfo:
        return self._entry(path, []).info

    def pictures(self, path: Path, sampling: Sampling, indices: Sequence[int]) -> NDArray[np.uint8]:
        """Sampled frames, as (count, height, width, 3)."""
        numbers = [sampling.numbers[index] for index in indices]
        frames = self._entry(path, numbers, sampling.numbers).frames
        return np.stack([frames[number] for number in numbers])

    def _entry(self, path: Path, numbers: Sequence[int], sampled: Sequence[int] = ()) -> Entry:
        try:
            key = entry_key(path, self._size)
        except OSError as error:
            raise EnvError(f"video {str(path)!r} cannot be read: {error.strerror or error}") from None
        entry = self._cache.read(key, numbers)
        if entry is None or not {*numbers} <= entry.frames.keys():
            with self._cache.alone(key, 2 * self._timeout):
                entry = self._completed(path, key, numbers, sampled)
        return entry

    def _completed(self, path: Path, key: str, numbers: Sequence[int], sampled: Sequence[int]) -> Entry:
        """The entry with all that is wanted, which another process may have made meanwhile.

        Sampled frames between those that are missing must be decoded, too, and so they are kept.
        """
        entry = self._cache.read(key, numbers)
        if entry is not None and {*numbers} <= entry.frames.keys():
            return entry
        self.decodes += 1
        info = ffmpeg.probe(path, self._timeout) if entry is None else entry.info
        everything = self._cache.read(key, range(info.frames))
        frames = dict(everything.frames) if everything else {}
        if missing := sorted({*numbers} - frames.keys()):
            runs = ffmpeg.runs_of(missing, info.fps)
            passed = {number for run in runs for number in sampled if run[0] <= number <= run[-1]}
            missing = sorted({*missing} | passed - frames.keys())
            frames.update(zip(missing, ffmpeg.decode(path, info, missing, self._size, self._timeout), strict=True))
        entry = Entry(info, frames)
        self._cache.write(key, entry)
        return entry


def evenly(first: int, last: int, count: int) -> list[int]:
    """So many different numbers from `first` to `last`, evenly spaced, both included; all, if there are fewer."""
    count = min(count, last - first + 1)
    return [first] if count == 1 else [int(at) for at in np.linspace(first, last, count).round()]
