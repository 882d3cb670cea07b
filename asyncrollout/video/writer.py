"""A video in a loop of one's own."""

from os import PathLike
from pathlib import Path
from typing import Any, Self

from asyncrollout.errors import ClosedError, UsageError
from asyncrollout.video.encoder import find_ffmpeg
from asyncrollout.video.files import check_name, count_frames, finish, new_part, new_take, whole_file
from asyncrollout.video.reel import Reel, check_fps


class VideoWriter:
    """An MP4, picture by picture: grey, RGB or RGBA, of uint8 or floats, of any size; a context manager.

    Frames go to an encoder of its own, which `write` waits for if it is far behind. `close` waits until the file is
    whole. If the encoder fails, `trouble` says why, and what was written until then is kept.
    """

    def __init__(self, path: str | PathLike[str], *, fps: float = 10.0, max_bytes: int | None = None) -> None:
        self.path = Path(path)
        if self.path.suffix != ".mp4":
            raise UsageError(f"a video is an .mp4 file, and not {str(path)!r}")
        self._stem = check_name(self.path.stem)
        directory = self.path.parent
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make {directory}: {error.strerror or error}") from error
        self._ffmpeg = find_ffmpeg()
        part = new_part(directory, self._stem, new_take())
        self._reel = Reel(part, fps=check_fps(fps), ffmpeg=self._ffmpeg, max_bytes=max_bytes)
        self._is_open = True

    @property
    def frames(self) -> int:
        """How many were taken."""
        return self._reel.frames

    @property
    def trouble(self) -> str:
        """Why the video is not whole; empty if it is."""
        return self._reel.trouble

    def write(self, picture: Any) -> None:
        if not self._is_open:
            raise ClosedError(f"{self.path} is closed: make another VideoWriter")
        self._reel.write(picture)
        if self._reel.is_behind:
            self._reel.catch_up()

    def close(self) -> None:
        """Without any picture there is no file."""
        if not self._is_open:
            return
        self._is_open = False
        self._reel.end()
        self._reel.wait()
        part = self._reel.path
        try:
            if count_frames(part):
                finish(self._ffmpeg, part, whole_file(self.path.parent, self._stem))
            part.unlink(missing_ok=True)
        except OSError as error:
            self._reel.fail(str(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
