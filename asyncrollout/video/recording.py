"""The video of one env, from its camera to its files."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from asyncrollout.trajectories import Video
from asyncrollout.video.camera import DEFAULT_FPS, CameraOptions, Footage
from asyncrollout.video.files import count_frames, parts_in, size_of, until_released, whole_file

if TYPE_CHECKING:
    from asyncrollout.video.recorder import VideoRecorder

_CAMERA = "asyncrollout.video.camera:EnvCamera"


class VideoRecording:
    """The video of one env that is opened with `record=`. Made by `VideoRecorder.record`."""

    def __init__(self, recorder: "VideoRecorder", options: CameraOptions, kind: str, *, hold: bool) -> None:
        self.options = options
        self.kind = kind
        self.footage: list[Footage] = []
        self.has_ended = False
        self.is_held = hold
        self.kept_bytes = 0  # that it has since it ended
        self._recorder = recorder
        self._end_camera: Callable[[tuple[str, Any]], Awaitable[Any]] | None = None
        self._is_settled = False

    @property
    def camera(self) -> tuple[str, CameraOptions]:
        """What makes the camera where the env lives, and its options."""
        return _CAMERA, self.options

    @property
    def path(self) -> Path:
        """Where the video of the first episode will be."""
        return whole_file(self.options.directory, self.options.name)

    def opened(self, end_video: Callable[[tuple[str, Any]], Awaitable[Any]]) -> None:
        """The env has a handle, by which its camera can be ended before the env is."""
        self._end_camera = end_video

    async def end_recording(self, seconds: float) -> None:
        """Stop recording an env that is still open; a camera that does not answer in time is left to its worker."""
        if self.has_ended:
            return
        footage = None
        if self._end_camera is not None:
            with anyio.move_on_after(seconds):
                footage = await self._end_camera((_CAMERA, msgspec.structs.replace(self.options, is_over=True)))
        self.ended(footage)

    def ended(self, footage: list[Any] | None) -> None:
        """The env is closed or no longer recorded; `footage` is its camera's, if it could be asked."""
        if self.has_ended:
            return
        self.has_ended = True
        self._end_camera = None
        if footage is not None:
            self.footage = msgspec.convert(footage, list[Footage])
            self.kept_bytes = sum(size_of(self.options.directory / one.part) for one in self.footage)
        self._recorder.note(self)
        if not self.is_held:
            self.settle(keep=True)

    def settle(self, *, keep: bool) -> None:
        """Whether the video is kept; only the first call counts."""
        if not self._is_settled:
            self._is_settled = True
            self._recorder.settle(self, keep=keep)

    def video(self, turns: int) -> Video | None:
        """The record for a rollout with so many turns, once it has ended; None if it has no frame."""
        if not self.footage:  # the env was lost
            return Video(self.path.name, self.options.fps or DEFAULT_FPS, [], partial=True) if turns else None
        last = self.footage[-1]
        if not last.frames:
            return None
        ends = [*last.ends, *[last.frames - 1] * turns][: turns + 1]
        frames = [[max(first, 0), max(last, 0)] for first, last in pairwise(ends)]
        return Video(f"{last.stem}.mp4", last.fps, frames, partial=bool(last.trouble) or -1 in ends)

    def parts(self) -> dict[str, list[Path]]:
        """The files of each episode; several, if the env was moved, or its process killed."""
        return parts_in(self.options.directory, self.options.name, self.options.take)

    async def best_of(self, parts: list[Path], is_late: Callable[[], bool]) -> tuple[Path, int] | None:
        """Once its encoder has ended: the part that the camera reported, or else the longest; None if all are empty.

        And how many of its frames are missing, if that was not known when the env was closed.
        """
        reported = {one.part for one in self.footage}
        candidates = [part for part in parts if part.name in reported] or parts
        for part in candidates:
            await until_released(part, is_late)
        lengths = await anyio.to_thread.run_sync(lambda: {part: count_frames(part) for part in candidates})
        best = max(candidates, key=lambda part: lengths[part])
        promised = next((one.frames for one in self.footage if one.part == best.name and not one.trouble), 0)
        return (best, max(promised - lengths[best], 0)) if lengths[best] else None
