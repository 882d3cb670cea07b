"""The videos of a run."""

import math
from pathlib import Path
from typing import Any

from asyncrollout.report.formatting import as_number
from asyncrollout.video.files import VIDEOS

_KINDS = (".mp4", ".webm")


def recordings(directory: Path) -> dict[str, Path]:
    """Videos of a run by name, and none that lies elsewhere."""
    home = (directory / VIDEOS).resolve()
    try:
        found = sorted(path for path in home.iterdir() if path.suffix in _KINDS)
    except OSError:
        return {}
    return {path.name: path for path in found if path.resolve().parent == home and path.is_file()}


def shown_video(plain: Any) -> dict[str, Any] | None:
    """What a record tells of its film, for the page: the file, frames a second, and first and last frame of turns."""
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
