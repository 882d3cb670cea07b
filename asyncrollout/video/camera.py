"""What films an env, beside it, in its own process; it hurts no episode, whatever goes wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.video.files import new_part, stem_of
from asyncrollout.video.reel import Reel, check_fps

DEFAULT_FPS = 10.0

_LONGEST_ACTION = 60


class CameraOptions(msgspec.Struct, frozen=True):
    """What a camera is told; it travels to the env's process."""

    directory: Path
    name: str
    take: str
    ffmpeg: str
    fps: float | None = None
    overlay: bool = False
    max_bytes: int | None = None


class Footage(msgspec.Struct, frozen=True, array_like=True):
    """What a camera has of an episode: its last frame after the reset, and after each turn; -1 is before any."""

    stem: str
    part: str
    fps: float
    ends: list[int]
    frames: int
    trouble: str = ""
    sightless: bool = False
    """Such an env never has a picture."""


class Camera:
    """Films an env's episodes, one file each. Made by the pool, as `Camera(env, options, tell)`."""

    def __init__(self, env: Any, options: CameraOptions, tell: Callable[[Any], str] = str) -> None:
        self._options = options
        self._fps = options.fps or _own_fps(env)
        self._tell = tell
        self._reel: Reel | None = None
        self._stem = ""
        self._ends: list[int] = []
        self._reward = 0.0
        self._is_sightless = False
        self._past: list[Footage] = []
        self._ending: list[Reel] = []

    @property
    def is_filming(self) -> bool:
        """Whether another picture is wanted."""
        return self._reel is not None and not self._reel.trouble

    @property
    def is_behind(self) -> bool:
        """Whether frames wait for their encoder, so many that the next call should `catch_up` first."""
        return self._reel is not None and self._reel.is_behind

    def catch_up(self) -> None:
        if self._reel is not None:
            self._reel.catch_up()

    def begin(self, episode: int, turns_before: int | None = None) -> None:
        """An episode begins, or is gone on with after some turns; what was filmed of one before is complete."""
        self._cut()
        options = self._options
        self._stem = stem_of(options.name, episode)
        path = new_part(options.directory, self._stem, options.take)
        self._reel = Reel(path, fps=self._fps, ffmpeg=options.ffmpeg, max_bytes=options.max_bytes)
        self._ends = [] if turns_before is None else [-1] * (turns_before + 1)
        self._reward = 0.0

    def shoot(self, picture: Any, action: Any = None, reward: float = 0.0) -> None:
        """Take what the env shows now; after an action, if there was one."""
        if self._reel is None:
            return
        self._reward += reward
        caption = self._caption(action) if self._options.overlay else None
        try:
            self._reel.write(picture, caption)
        except UsageError as error:
            self._reel.fail(str(error))
        except Exception as error:  # of an env's own kind of picture  # noqa: BLE001
            self._reel.fail(f"what render() gives is no picture: {error!r:.300}")

    def fail(self, trouble: str, *, for_good: bool = False) -> None:
        self._is_sightless |= for_good
        if self._reel is not None:
            self._reel.fail(trouble)

    def end_turn(self) -> None:
        """The reset, or a turn, is over."""
        if self._reel is not None:
            self._ends.append(self._reel.frames - 1)

    def end(self) -> list[Any]:
        """What was filmed; the files are closed by and by."""
        self._cut()
        footage: list[Any] = msgspec.to_builtins(self._past)
        return footage

    def wait(self, seconds: float) -> None:
        """Until the files are closed."""
        for reel in self._ending:
            reel.wait(seconds)

    def _cut(self) -> None:
        reel, self._reel = self._reel, None
        if reel is None:
            return
        reel.end()
        self._ending = [*(other for other in self._ending if not other.wait(0)), reel]
        self._past.append(
            Footage(self._stem, reel.path.name, reel.fps, self._ends, reel.frames, reel.trouble, self._is_sightless)
        )

    def _caption(self, action: Any) -> str:
        turn = len(self._ends) - 1  # as everywhere, the first is 0
        if turn < 0:
            return "start"
        try:
            told = self._tell(action)[:_LONGEST_ACTION]
        except Exception:  # an env's own words for its action  # noqa: BLE001
            told = str(action)[:_LONGEST_ACTION]
        return f"{turn} {told} {self._reward:+.2f}"


def _own_fps(env: Any) -> float:
    metadata: Any = getattr(env, "metadata", None)
    fps: Any = metadata.get("render_fps") if hasattr(metadata, "get") else None
    try:
        return check_fps(fps)
    except UsageError:
        return DEFAULT_FPS
