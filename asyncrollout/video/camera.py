"""What films an env, beside it, in its own process; it hurts no episode, whatever goes wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.video.budget import BudgetShare
from asyncrollout.video.episode_writer import EpisodeWriter, check_fps
from asyncrollout.video.files import new_part, stem_of

DEFAULT_FPS = 10.0

_LONGEST_ACTION = 60
_MOST_ENDING = 2  # encoders of earlier episodes, each a process
_ENDING_PATIENCE = 15.0  # seconds; more than an encoder is given to end


class CameraOptions(msgspec.Struct, frozen=True):
    """What a camera is told; it travels to the env's process."""

    directory: Path
    name: str
    take: str
    ffmpeg: str
    fps: float | None = None
    overlay: bool = False
    share: BudgetShare | None = None
    is_over: bool = False
    """Nothing is filmed any more: the recorder was left."""


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
    """Films an env's episodes, one file each. Made by the pool, as `EnvCamera(env, options, tell)`."""

    def __init__(self, env: Any, options: CameraOptions, tell: Callable[[Any], str] = str) -> None:
        self._options = options
        self._fps = options.fps or _own_fps(env)
        self._space = _observed(env)
        self._tell = tell
        self._reel: EpisodeWriter | None = None
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
    def is_filming(self) -> bool:
        """Whether another picture is wanted."""
        return self._reel is not None and not self._reel.trouble

    @property
    def is_behind(self) -> bool:
        """Whether too many frames, or files of earlier episodes, wait for encoders: `catch_up` before the next call."""
        return len(self._ending) > _MOST_ENDING or (self._reel is not None and self._reel.is_behind)

    def catch_up(self) -> None:
        late = self._ending[:-_MOST_ENDING]
        for reel in late:
            reel.wait(_ENDING_PATIENCE)
        self._forget(late)
        if self._reel is not None:
            self._reel.catch_up()

    def begin(self, episode: int, turns_before: int = 0) -> None:
        """An episode begins, or continues after some turns; what was filmed of one before is complete."""
        self._cut()
        if self._is_over:
            return
        options = self._options
        self._stem = stem_of(options.name, episode)
        path = new_part(options.directory, self._stem, options.take)
        self._reel = EpisodeWriter(path, fps=self._fps, ffmpeg=options.ffmpeg, space=self._space)
        self._ends = [-1] * turns_before
        self._is_start = True
        self._reward = 0.0

    def shoot(self, picture: Any, action: Any = None, reward: float = 0.0) -> None:
        """Take what the env shows now; after an action, if there was one."""
        if self._reel is None:
            return
        self._reward += reward
        self._check_share(self._reel)
        if self._reel.trouble:
            return
        caption = self._caption(action) if self._options.overlay else None
        try:
            self._reel.write(picture, caption)
        except UsageError as error:
            self._reel.fail(str(error))
        except Exception as error:  # of an env's own kind of picture  # noqa: BLE001
            self._reel.fail(f"what render() gives is not a picture: {error!r:.300}")

    def fail(self, trouble: str, *, for_good: bool = False) -> None:
        self._is_sightless |= for_good
        if self._reel is not None:
            self._reel.fail(trouble)

    def end_turn(self) -> None:
        """The reset, or a turn, is over."""
        if self._reel is not None:
            self._ends.append(self._reel.frames - 1)
            self._is_start = False

    def end(self) -> list[Any]:
        """What was filmed, and nothing more will be; the files are closed by and by."""
        self._cut()
        self._is_over = True
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
        self._forget([other for other in self._ending if other.wait(0)])
        self._ending.append(reel)
        part, is_sightless = reel.path.name, self._is_sightless
        self._past.append(
            Footage(self._stem, part, reel.fps, self._ends, reel.frames, reel.trouble, is_sightless, reel.doubt)
        )

    def _forget(self, ended: list[EpisodeWriter]) -> None:
        self._bytes_ended += sum(reel.written for reel in ended)
        self._ending = [reel for reel in self._ending if reel not in ended]

    def _check_share(self, reel: EpisodeWriter) -> None:
        """At the first frame, and whenever so much was written since that others should know."""
        share, written = self._options.share, self._written()
        if share is not None and (not reel.frames or written - self._told >= share.step):
            self._told = written
            reel.fail(share.trouble(written))

    def _written(self) -> int:
        """Bytes of all files so far."""
        present = 0 if self._reel is None else self._reel.written
        return self._bytes_ended + sum(reel.written for reel in self._ending) + present

    def _caption(self, action: Any) -> str:
        if self._is_start:
            return "start"
        turn = len(self._ends) - 1  # as everywhere, the first is 0
        try:
            told = self._tell(action)[:_LONGEST_ACTION]
        except Exception:  # an env's own words for its action  # noqa: BLE001
            told = str(action)[:_LONGEST_ACTION]
        return f"{turn} {told} {self._reward:+.2f}"


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
