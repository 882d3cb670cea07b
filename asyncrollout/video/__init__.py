"""Episodes as MP4 files. Names load when they are first used: beside an env, only its camera is needed."""

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = {
    "VideoRecorder": "asyncrollout.video.recorder",
    "Recording": "asyncrollout.video.recording",
    "VideoWriter": "asyncrollout.video.writer",
}

__all__ = [*_MODULES]  # noqa: PLE0604

if TYPE_CHECKING:
    from asyncrollout.video.recorder import VideoRecorder as VideoRecorder
    from asyncrollout.video.recording import Recording as Recording
    from asyncrollout.video.writer import VideoWriter as VideoWriter


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
