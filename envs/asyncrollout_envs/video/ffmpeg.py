"""ffmpeg as a child process: every call has a deadline, and no file can make it open another file or an address."""

import math
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import EnvError

SEEK_GAP = 4.0
"""Seconds between two frames from which on it is quicker to seek than to decode what is between them."""

_FORMATS = "mov,mp4,matroska,webm,avi"  # none of them is a list of other files
_MOST_PIXELS = 2**26
_UNIT = re.compile(rb"^#tb 0: ([0-9]+)/([1-9][0-9]*)$", re.MULTILINE)
_PACKET = re.compile(rb"^0, +-?[0-9]+, +(-?[0-9]+), +([0-9]+),", re.MULTILINE)
_PICTURE = re.compile(rb"P6\s([0-9]{1,5})\s([0-9]{1,5})\s255\s")


class ClipInfo(msgspec.Struct, frozen=True):
    """What is known of a video file: its frames, and how many there are a second."""

    frames: int
    fps: float

    @property
    def seconds(self) -> float:
        return self.frames / self.fps


def probe(path: Path, timeout: float) -> ClipInfo:
    """Count a file's frames, without decoding them."""
    ran = _run(path, timeout, (), ("-c", "copy", "-f", "framecrc", "pipe:1"))
    unit = _UNIT.search(ran.stdout)
    packets = [(int(pts), int(lasts)) for pts, lasts in _PACKET.findall(ran.stdout)]
    if unit is None or not packets:
        raise EnvError(f"video {str(path)!r} has no frames: {_last_line(ran.stderr)}")
    (first, _), (last, lasts) = min(packets), max(packets)
    seconds = (last - first + max(lasts, 1)) * int(unit[1]) / int(unit[2])
    return ClipInfo(len(packets), len(packets) / seconds)


def decode(path: Path, info: ClipInfo, numbers: Sequence[int], size: int, timeout: float) -> NDArray[np.uint8]:
    """The frames with these numbers, which ascend, as (count, height, width, 3); none has a longer side than `size`."""
    deadline = time.monotonic() + timeout
    pictures: list[NDArray[np.uint8]] = []
    for run in runs_of(numbers, info.fps):
        left = max(0.1, deadline - time.monotonic())
        pictures += _decode_run(path, info, run, size, left)
    if len({picture.shape for picture in pictures}) > 1:
        raise EnvError(f"video {str(path)!r} changes the size of its picture")
    return np.stack(pictures)


def encode(path: Path, frames: Iterable[NDArray[np.uint8]], *, fps: int, gop: int, timeout: float) -> None:
    """Write an H.264 file; the same frames give the same bytes."""
    film = np.stack([*frames])
    _, height, width, _ = film.shape
    given = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "pipe:0")
    quality = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "16", "-pix_fmt", "yuv420p")
    exact = ("-g", str(gop), "-threads", "1", "-fflags", "+bitexact", "-flags:v", "+bitexact", "-map_metadata", "-1")
    command = [_program(), "-v", "error", "-y", *given, *quality, *exact, "-movflags", "+faststart", str(path)]
    try:
        subprocess.run(command, input=film.tobytes(), capture_output=True, check=True, timeout=timeout)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise EnvError(f"ffmpeg did not write {str(path)!r} within {timeout:g} s") from None
    except subprocess.CalledProcessError as error:
        raise EnvError(f"ffmpeg could not write {str(path)!r}: {_last_line(error.stderr)}") from None


def runs_of(numbers: Sequence[int], fps: float) -> list[list[int]]:
    """Frames that are near enough to each other to be decoded in one go."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number - runs[-1][-1] <= SEEK_GAP * fps:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _decode_run(path: Path, info: ClipInfo, run: list[int], size: int, timeout: float) -> list[NDArray[np.uint8]]:
    pictures, said = _read_run(path, info, run, size, timeout)
    if not pictures:  # a file may end a little before it says
        pictures, said = _read_run(path, info, [max(0, run[0] - math.ceil(info.fps))], size, timeout)
    if not pictures:
        raise EnvError(f"video {str(path)!r}: no frame at {run[0] / info.fps:.1f} s: {_last_line(said)}")
    return pictures + pictures[-1:] * (len(run) - len(pictures))


def _read_run(
    path: Path, info: ClipInfo, run: list[int], size: int, timeout: float
) -> tuple[list[NDArray[np.uint8]], bytes]:
    first = run[0]
    # Half a frame earlier, so that no rounding loses the first one; what comes before it is dropped by ffmpeg.
    seek = ("-ss", f"{(first - 0.5) / info.fps:.6f}") if first else ()
    wanted = "+".join(f"eq(n\\,{number - first})" for number in run)
    scaled = f"scale=w='min({size},iw)':h='min({size},ih)':force_original_aspect_ratio=decrease"
    output = ("-vf", f"select={wanted},{scaled}", "-fps_mode", "passthrough", "-frames:v", str(len(run)))
    written = ("-sws_flags", "bicubic+accurate_rnd+bitexact", "-f", "image2pipe", "-c:v", "ppm", "pipe:1")
    ran = _run(path, timeout, seek, (*output, *written))
    return _pictures(ran.stdout), ran.stderr


def _pictures(content: bytes) -> list[NDArray[np.uint8]]:
    pictures, at = [], 0
    while header := _PICTURE.match(content, at):
        width, height = int(header[1]), int(header[2])
        at = header.end() + 3 * width * height
        if at > len(content):
            break
        pixels = np.frombuffer(content, np.uint8, 3 * width * height, header.end())
        pictures.append(pixels.reshape(height, width, 3))
    return pictures


def _run(path: Path, timeout: float, before: Sequence[str], after: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    safely = ("-protocol_whitelist", "file,pipe", "-format_whitelist", _FORMATS, "-max_pixels", str(_MOST_PIXELS))
    given = ("-nostdin", "-v", "error", *safely, *before, "-i", f"file:{path}", "-map", "0:v:0")
    try:
        ran = subprocess.run(  # noqa: S603 (no shell, and the path is behind `file:`)
            [_program(), *given, *after],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EnvError(f"video {str(path)!r}: ffmpeg did not read it within {timeout:g} s") from None
    if ran.returncode:
        raise EnvError(f"video {str(path)!r} cannot be read: {_last_line(ran.stderr)}")
    return ran


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else "ffmpeg says nothing"


@cache
def _program() -> str:
    import imageio_ffmpeg  # noqa: PLC0415 (what only counts rows needs none)

    return str(imageio_ffmpeg.get_ffmpeg_exe())
