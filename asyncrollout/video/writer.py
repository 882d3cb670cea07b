"""A video from your own loop."""

import os
import weakref
from os import PathLike
from pathlib import Path
from typing import Any, Self

from asyncrollout.errors import ClosedError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.video.episode_writer import EpisodeWriter
from asyncrollout.video.ffmpeg import check_fps, find_ffmpeg
from asyncrollout.video.files import check_name, count_frames, finish, new_part, new_take, whole_file

log = get_logger(__name__)


class VideoWriter:
    """An MP4, image by image: grey, RGB or RGBA, of uint8 or floats, of any size; a context manager.

    Frames go to an encoder of its own, which `write` waits for if it is far behind. `close` waits until the file is
    whole; one that is forgotten is closed as garbage, or when the program ends. If the encoder fails, `trouble` says
    why, and what was written until then is kept.
    """

    def __init__(self, path: str | PathLike[str], *, fps: float = 10.0, max_bytes: int | None = None) -> None:
        self.path = Path(path)
        if self.path.suffix != ".mp4":
            raise UsageError(f"{str(path)!r} is not an .mp4 file")
        stem = check_name(self.path.stem)
        directory = self.path.parent
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make {directory}: {error.strerror or error}") from error
        ffmpeg = find_ffmpeg()
        part = new_part(directory, stem, new_take())
        self._writer = EpisodeWriter(part, fps=check_fps(fps), ffmpeg=ffmpeg, max_bytes=max_bytes)
        self._finish = weakref.finalize(self, _finish, self._writer, directory, stem, ffmpeg, os.getpid())

    @property
    def frames(self) -> int:
        """How many were taken."""
        return self._writer.frames

    @property
    def trouble(self) -> str:
        """Why the video is not whole; empty if it is."""
        return self._writer.trouble

    @property
    def doubt(self) -> str:
        """What may look wrong, such as pictures whose range of values changed; it is logged, too."""
        return self._writer.doubt

    def write(self, picture: Any) -> None:
        if not self._finish.alive:
            raise ClosedError(f"{self.path} is closed: make another VideoWriter")
        self._writer.write(picture)
        if self._writer.is_behind:
            self._writer.catch_up()

    def close(self) -> None:
        """Wait until the file is whole; without any picture there is none, and `trouble` says so."""
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _finish(writer: EpisodeWriter, directory: Path, stem: str, ffmpeg: str, pid: int) -> None:
    if os.getpid() != pid:  # a copy in a forked process, which has no encoder
        return
    writer.end()
    writer.wait()
    if writer.doubt:
        log.warning("video_in_doubt", name=stem, reason=writer.doubt)
    part = writer.path
    try:
        if count_frames(part):
            finish(ffmpeg, part, whole_file(directory, stem))
        elif not writer.trouble:
            writer.fail("no frame was written, so there is no file")
        part.unlink(missing_ok=True)
    except OSError as error:
        writer.fail(str(error))
