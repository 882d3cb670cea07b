"""Pictures of any kind, one after the other, into the file of one episode."""

from pathlib import Path
from typing import Any

from asyncrollout.errors import UsageError
from asyncrollout.video.captions import with_caption
from asyncrollout.video.encoder import Encoder
from asyncrollout.video.frames import PictureReader, declared_bounds, fitted, video_size


class EpisodeWriter:
    """Begins an encoder with the first picture, whose size all have; `trouble` says why there is nothing more."""

    def __init__(self, path: Path, *, fps: float, ffmpeg: str, max_bytes: int | None = None, space: Any = None) -> None:
        self.path = path
        self.fps = fps
        self._ffmpeg = ffmpeg
        self._max_bytes = max_bytes
        self._space = space  # of what the env observes, which may be what it shows
        self._reader: PictureReader | None = None
        self._size = (0, 0)
        self._encoder: Encoder | None = None
        self._trouble = ""

    @property
    def frames(self) -> int:
        return 0 if self._encoder is None else self._encoder.frames

    @property
    def written(self) -> int:
        """Bytes that the file has so far; frames may be on their way to it."""
        return 0 if self._encoder is None else self._encoder.written

    @property
    def trouble(self) -> str:
        return ("" if self._encoder is None else self._encoder.trouble) or self._trouble

    @property
    def doubt(self) -> str:
        """What may look wrong, though every frame is there."""
        return "" if self._reader is None else self._reader.doubt

    @property
    def is_behind(self) -> bool:
        return self._encoder is not None and self._encoder.is_behind

    def write(self, picture: Any, caption: str | None = None) -> None:
        """Take a picture; a `UsageError` says what is wrong with it. What goes wrong with the file is `trouble`."""
        if self._reader is None:
            self._reader = PictureReader(declared_bounds(self._space, picture))
        frame = self._reader.read(picture)
        if caption is not None:
            frame = with_caption(frame, caption)
        if self._encoder is None and not self._trouble:
            self._size = video_size(frame)
            try:
                self._encoder = Encoder(
                    self.path, *self._size, self.fps, ffmpeg=self._ffmpeg, max_bytes=self._max_bytes
                )
            except (OSError, RuntimeError) as error:  # no directory, no room, no more threads
                self._trouble = f"cannot write to {self.path.parent}: {getattr(error, 'strerror', None) or error}"
        if self._encoder is not None and not self.trouble:
            self._encoder.write(fitted(frame, *self._size))

    def fail(self, trouble: str) -> None:
        self._trouble = self._trouble or trouble

    def catch_up(self) -> None:
        if self._encoder is not None:
            self._encoder.catch_up()

    def end(self) -> None:
        if self._encoder is not None:
            self._encoder.end()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether the file is closed."""
        return self._encoder is None or self._encoder.wait(seconds)


def check_fps(fps: object) -> float:
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 1000:
        raise UsageError(f"fps={fps!r} is not a number of frames a second, above 0 and up to 1000")
    return float(fps)
