"""The videos of a run."""

from pathlib import Path

VIDEOS = "videos"

_KINDS = (".mp4", ".webm")


def recordings(directory: Path) -> dict[str, Path]:
    """Videos of a run by name, and none that lies elsewhere."""
    home = (directory / VIDEOS).resolve()
    try:
        found = sorted(path for path in home.iterdir() if path.suffix in _KINDS)
    except OSError:
        return {}
    return {path.name: path for path in found if path.resolve().parent == home and path.is_file()}
