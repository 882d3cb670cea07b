"""Records an env, in the env's own process; a failure to record never affects the episode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.video.budget import BudgetShare
from asyncrollout.video.episode_writer import EpisodeWriter
from asyncrollout.video.ffmpeg import check_fps
from asyncrollout.video.files import new_part, stem_of

DEFAULT_FPS = 10.0

_LONGEST_ACTION = 60
_MOST_ENDING = 2  # encoders of earlier episodes, each a process
_ENDING_PATIENCE = 15.0  # seconds; more than an encoder is given to end


class CameraOptions(msgspec.Struct, frozen=True):
    """Options of a camera; sent to the env's process."""

    directory: Path
    name: str
    take: str
    ffmpeg: str
    fps: float | None = None
    overlay: bool = False
    share: BudgetShare | None = None
    is_over: bool = False
    """Record nothing more: the recorder was left."""


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
    doubt: str = ""
    """What may look wrong, though every frame is there."""


class EnvCamera:
    """Records an env's episodes, one file each. Made by the pool, as `EnvCamera(env, options, tell)`."""

    def __init__(self, env: Any, options: CameraOptions, tell: Callable[[Any], str] = str) -> None:
        self._options = options
        self._fps = options.fps or _own_fps(env)
        self._space = _observed(env)
        self._tell = tell
        self._writer: EpisodeWriter | None = None
        self._stem = ""
        self._ends: list[int] = []
        self._reward = 0.0
        self._is_start = True
        self._is_sightless = False
        self._is_over = options.is_over
        self._bytes_ended = 0  # in files whose encoders have ended
        self._told = 0  # of all bytes, those that the other cameras know of
        self._past: list[Footage] = []
        self._ending: list[EpisodeWriter] = []

    @property
    def is_recording(self) -> bool:
        """Whether another picture is wanted."""
        return self._writer is not None and not self._writer.trouble

    @property
    def is_behind(self) -> bool:
        """Whether too many frames, or files of earlier episodes, wait for encoders: `catch_up` before the next call."""
        return len(self._ending) > _MOST_ENDING or (self._writer is not None and self._writer.is_behind)

    def catch_up(self) -> None:
        late = self._ending[:-_MOST_ENDING]
        for writer in late:
            writer.wait(_ENDING_PATIENCE)
        self._forget(late)
        if self._writer is not None:
            self._writer.catch_up()

    def begin(self, episode: int, turns_before: int = 0) -> None:
        """An episode begins, or continues after some turns; the video of the one before is complete."""
        self._cut()
        if self._is_over:
            return
        options = self._options
        self._stem = stem_of(options.name, episode)
        path = new_part(options.directory, self._stem, options.take)
        self._writer = EpisodeWriter(path, fps=self._fps, ffmpeg=options.ffmpeg, space=self._space)
        self._ends = [-1] * turns_before
        self._is_start = True
        self._reward = 0.0

    def shoot(self, picture: Any, action: Any = None, reward: float = 0.0) -> None:
        """Take what the env shows now; after an action, if there was one."""
        if self._writer is None:
            return
        self._reward += reward
        self._check_share(self._writer)
        if self._writer.trouble:
            return
        caption = self._caption(action) if self._options.overlay else None
        try:
            self._writer.write(picture, caption)
        except UsageError as error:
            self._writer.fail(str(error))
        except Exception as error:  # of an env's own kind of picture  # noqa: BLE001
            self._writer.fail(f"what render() gives is not a picture: {error!r:.300}")

    def fail(self, trouble: str, *, for_good: bool = False) -> None:
        self._is_sightless |= for_good
        if self._writer is not None:
            self._writer.fail(trouble)

    def end_turn(self) -> None:
        """The reset, or a turn, is over."""
        if self._writer is not None:
            self._ends.append(self._writer.frames - 1)
            self._is_start = False

    def end(self) -> list[Any]:
        """What was recorded; nothing more will be. The files are closed in the background."""
        self._cut()
        self._is_over = True
        footage: list[Any] = msgspec.to_builtins(self._past)
        return footage

    def wait(self, seconds: float) -> None:
        """Until the files are closed."""
        for writer in self._ending:
            writer.wait(seconds)

    def _cut(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.end()
        self._forget([other for other in self._ending if other.wait(0)])
        self._ending.append(writer)
        part, is_sightless = writer.path.name, self._is_sightless
        self._past.append(
            Footage(self._stem, part, writer.fps, self._ends, writer.frames, writer.trouble, is_sightless, writer.doubt)
        )

    def _forget(self, ended: list[EpisodeWriter]) -> None:
        self._bytes_ended += sum(writer.written for writer in ended)
        self._ending = [writer for writer in self._ending if writer not in ended]

    def _check_share(self, writer: EpisodeWriter) -> None:
        """At the first frame, and whenever so much was written since that others should know."""
        share, written = self._options.share, self._written()
        if share is not None and (not writer.frames or written - self._told >= share.step):
            self._told = written
            writer.fail(share.trouble(written))

    def _written(self) -> int:
        """Bytes of all files so far."""
        present = 0 if self._writer is None else self._writer.written
        return self._bytes_ended + sum(writer.written for writer in self._ending) + present

    def _caption(self, action: Any) -> str:
        if self._is_start:
            return "start"
        turn = len(self._ends) - 1  # as everywhere, the first is 0
        try:
            action_text = self._tell(action)[:_LONGEST_ACTION]
        except Exception:  # an env's own words for its action  # noqa: BLE001
            action_text = str(action)[:_LONGEST_ACTION]
        return f"{turn} {action_text} {self._reward:+.2f}"


def _observed(env: Any) -> Any:
    """The space of an env's observations, if it has one."""
    try:
        return getattr(env, "observation_space", None)
    except Exception:  # an env's own property  # noqa: BLE001
        return None


def _own_fps(env: Any) -> float:
    metadata: Any = getattr(env, "metadata", None)
    fps: Any = metadata.get("render_fps") if hasattr(metadata, "get") else None
    try:
        return check_fps(fps)
    except UsageError:
        return DEFAULT_FPS
