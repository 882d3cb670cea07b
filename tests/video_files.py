"""Videos, looked at as a player does."""

import re
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.video.ffmpeg import find_ffmpeg
from tests.envs.video import colour
from tests.playing import PATIENCE


def decode(path: Path) -> NDArray[np.uint8]:
    """All frames (frames, height, width, 3), decoded by ffmpeg, which must have nothing to complain of."""
    command = [find_ffmpeg(), "-loglevel", "warning", "-i", f"file:{path}"]
    reported = subprocess.run([find_ffmpeg(), "-i", f"file:{path}"], capture_output=True, text=True, check=False).stderr
    line = next(line for line in reported.splitlines() if "Video: h264" in line)
    assert "yuv420p" in line, line
    found = re.search(r" (\d+)x(\d+)[, ]", line)
    assert found is not None, line
    width, height = map(int, found.groups())
    options = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-fps_mode", "passthrough", "pipe:1"]
    done = subprocess.run([*command, *options], capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


def painted(path: Path) -> list[tuple[int, int]]:
    """Painter and count of actions of each frame, by its colours."""
    found = []
    for frame in decode(path):
        red, green, _ = frame[frame.shape[0] // 2, frame.shape[1] // 2].astype(int)
        seen = round((red - 10) / 15), round((green - 10) / 15)
        assert abs(np.array(colour(*seen))[:2] - (red, green)).max() < 7, (red, green)
        found.append(seen)
    return found


def boxes(path: Path) -> list[str]:
    """The parts of an MP4 file, in order."""
    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        size, kind = struct.unpack_from(">I4s", content, at)
        found.append(kind.decode())
        at += size
    return found


def is_whole(path: Path) -> bool:
    """Whether its index comes first, and there is one only."""
    found = boxes(path)
    return "moof" not in found and found.index("moov") < found.index("mdat")


def full_disk(directory: Path) -> Path:
    """An ffmpeg for which there is room to encode, but none for a second file."""
    path = directory / "full_disk"
    no_room = 'case "$*" in *faststart*) echo "No space left on device" >&2; exit 1;; esac'
    path.write_text(f'#!/bin/sh\n{no_room}\nexec {find_ffmpeg()} "$@"\n')
    path.chmod(0o755)
    return path


def names(directory: Any) -> list[str]:
    """What a user sees; an open recorder has a hidden file, too."""
    return sorted(path.name for path in Path(directory).iterdir() if not path.name.startswith("."))


def until(is_so: Callable[[], Any]) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.002)
