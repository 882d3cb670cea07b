"""The videos of a run."""

import math
from pathlib import Path
from typing import Any

from asyncrollout.report.formatting import as_number
from asyncrollout.video.files import VIDEOS

_KINDS = (".mp4", ".webm")


def videos_of(directory: Path) -> dict[str, Path]:
    """The videos in a run's directory, by name."""
    home = (directory / VIDEOS).resolve()
    try:
        found = sorted(path for path in home.iterdir() if path.suffix in _KINDS)
    except OSError:
        return {}
    return {path.name: path for path in found if path.resolve().parent == home and path.is_file()}


def shown_video(plain: Any) -> dict[str, Any] | None:
    """A record's video, for the page: its file, frames per second, and the first and last frame of each turn."""
    if not isinstance(plain, dict) or not isinstance(plain.get("file"), str):
        return None
    fps, frames = as_number(plain.get("fps")), plain.get("frames")
    turns = frames if isinstance(frames, list) and math.isfinite(fps) and fps > 0 else []
    return {
        "file": plain["file"],
        "fps": fps if turns else 1.0,
        "partial": plain.get("partial") is True,
        "turns": [turn if _is_range(turn) else None for turn in turns],
    }


def _is_range(turn: Any) -> bool:
    return isinstance(turn, list) and len(turn) == 2 and all(type(frame) is int and frame >= 0 for frame in turn)
