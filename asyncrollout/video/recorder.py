"""Which episodes are filmed, within which bounds, and what becomes of their files."""

import os
from collections import Counter
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import anyio
import anyio.to_thread
import structlog

from asyncrollout import checks
from asyncrollout.errors import ClosedError, JournalError, UsageError
from asyncrollout.tasks import Background
from asyncrollout.video.camera import CameraOptions
from asyncrollout.video.encoder import find_ffmpeg
from asyncrollout.video.files import (
    check_name,
    claim,
    finish,
    finish_left_parts,
    name_for,
    new_take,
    parts_in,
    size_of,
    whole_file,
)
from asyncrollout.video.recording import Recording
from asyncrollout.video.reel import check_fps

log = structlog.get_logger(__name__)

Keep = Literal["all", "failures", "extremes"]

_FINISHED_AT_ONCE = 2  # each is a process at work
_END_GRACE = 60.0  # seconds
_BROKEN_OFF_GRACE = 3.0
_MOST_TOLD = 100


class VideoRecorder:
    """Films envs, an MP4 for each episode, in a directory; an async context manager, which `Rollouts` enters itself.

    Of `every` so many groups of an env, one is filmed. `keep` is what is kept of these: "all", the "failures", or the
    "extremes", best and worst of each group. `fps` is the env's own (`metadata["render_fps"]`, or 10) if not given.
    `overlay` writes turn, action and reward above the picture. At most `max_encoders` episodes are filmed at a time,
    and all files have at most `max_bytes`: an episode beyond that is not filmed, and counted in `skipped`.
    """

    def __init__(
        self,
        directory: str | PathLike[str] | None = None,
        *,
        every: int = 1,
        keep: Keep = "all",
        fps: float | None = None,
        overlay: bool = False,
        max_encoders: int = 32,
        max_bytes: int = 4 << 30,
    ) -> None:
        checks.whole("every", every, 1)
        checks.one_of("keep", keep, ("all", "failures", "extremes"))
        checks.whole("max_encoders", max_encoders, 1)
        checks.whole("max_bytes", max_bytes, 1)
        self.directory = None if directory is None else Path(directory).absolute()
        self.every = every
        self.keep = keep
        self.skipped: Counter[str] = Counter()
        """Episodes that were not filmed, by reason."""
        self.finished = 0
        """Files that were made whole."""
        self.is_shared: bool | None = None
        """Whether, when it was opened, another recorder had the same directory; None if that cannot be known."""
        self._fps = None if fps is None else check_fps(fps)
        self._overlay = overlay
        self._max_encoders = max_encoders
        self._max_bytes = max_bytes
        self._used = 0  # bytes of whole files
        self._filming: dict[str, Recording] = {}  # by name: of several attempts at an episode, the last counts
        self._unsettled: set[Recording] = set()
        self._at_work: set[anyio.CancelScope] = set()
        self._all_settled = anyio.Event()
        self._sightless: set[str] = set()
        self._groups: Counter[str] = Counter()
        self._told: set[str] = set()
        self._takes = new_take()
        self._numbers = count()
        self._work = Background()
        self._slots = anyio.CapacityLimiter(_FINISHED_AT_ONCE)
        self._ffmpeg = ""
        self._claim = -1
        self.is_open = False

    async def __aenter__(self) -> Self:
        directory = self._home()
        self._ffmpeg = await anyio.to_thread.run_sync(find_ffmpeg)
        try:
            await anyio.to_thread.run_sync(self._prepare, directory)
        except OSError as error:
            raise JournalError(f"cannot record videos in {directory}: {error.strerror or error}") from error
        await self._work.open()
        self.is_open = True
        return self

    def _prepare(self, directory: Path) -> None:
        """An error now is better than one with every episode."""
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".{new_take()}"
        probe.touch()
        probe.unlink()
        self._claim, self.is_shared = claim(directory)
        try:
            recovered = finish_left_parts(self._ffmpeg, directory) if self.is_shared is False else 0
        except OSError:
            os.close(self._claim)
            raise
        if recovered:
            log.info("videos_recovered", videos=recovered, directory=str(directory))
        self._used = sum(size_of(path) for path in directory.glob("*.mp4"))

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Files are made whole first; what takes too long is left as it is, and can be played."""
        for recording in [*self._unsettled]:
            recording.ended(None)
            recording.settle(keep=self.keep == "all")
        self.is_open = False
        with anyio.move_on_after(_END_GRACE if kind is None else _BROKEN_OFF_GRACE, shield=True):
            while self._unsettled:
                self._all_settled = anyio.Event()
                await self._all_settled.wait()
        for scope in self._at_work:
            scope.cancel()
        await self._work.close()
        if self._unsettled:
            left = len(self._unsettled)
            log.warning("videos_not_finished", videos=left, hint="they play as they are, and a resume finishes them")
        else:
            for parts in parts_in(self._home(), take=self._takes).values():  # of workers that were given up, and awoke
                for part in parts:
                    _unlink(part)
        os.close(self._claim)

    def film(self, name: str, *, kind: str = "", hold: bool = False) -> Recording | None:
        """What `pool.open(..., record=)` takes; None if there is no room for another film.

        Envs of a `kind` that had no pictures to show are not filmed again. What is held is kept or not when its
        `settle` is called; else it is kept.
        """
        if not self.is_open:
            raise ClosedError("this VideoRecorder is not open: use it within 'async with'")
        directory, name = self._home(), check_name(name)
        if kind and kind in self._sightless:
            return None
        slots = self._max_encoders - sum(not other.has_ended for other in self._unsettled)
        free = self._max_bytes - self._used - sum(other.bytes for other in self._unsettled)
        if slots < 1 or free < slots:
            self._skip(name, "max_encoders" if slots < 1 else "max_bytes")
            return None
        take = f"{self._takes}.{next(self._numbers)}."
        options = CameraOptions(directory, name, take, self._ffmpeg, self._fps, self._overlay, free // slots)
        recording = self._filming[name] = Recording(self, options, kind, hold=hold)
        self._unsettled.add(recording)
        return recording

    def film_rollout(self, uid: str, kind: str) -> Recording | None:
        """As `film`, held; the file is named after the rollout."""
        return self.film(name_for(uid), kind=kind, hold=True)

    def remove(self, uid: str) -> None:
        """A rollout's whole video, if there is one: an earlier process has left it, and it is not wanted any more."""
        path = whole_file(self._home(), name_for(uid))
        self._used -= size_of(path)
        _unlink(path)

    def is_next(self, kind: str) -> bool:
        """Whether another group of envs of this kind is one to be filmed: the first is, and one of `every` more."""
        self._groups[kind] += 1
        return self._groups[kind] % self.every == 1 % self.every

    def note(self, recording: Recording) -> None:
        """A recording has ended: say what went wrong, but once."""
        if not recording.footage or not recording.footage[-1].trouble:
            return
        last = recording.footage[-1]
        if not last.sightless:
            event = "video_not_whole" if last.frames else "episode_not_recorded"
            self._tell_once(last.trouble, event, name=last.stem, frames=last.frames)
        elif recording.kind not in self._sightless:
            self._sightless.add(recording.kind)
            tell = log.info if recording.kind else log.warning  # it was asked for by name
            tell("env_not_recorded", env=recording.kind, name=last.stem, reason=last.trouble)

    def settle(self, recording: Recording, *, keep: bool) -> None:
        """Make its files whole, or remove them, by and by."""
        self._work.start_soon(self._settle_to_the_end, recording, keep)

    async def _settle_to_the_end(self, recording: Recording, keep: bool) -> None:
        """Also if whoever records is cancelled, until it takes too long."""
        with anyio.CancelScope(shield=True) as scope:
            self._at_work.add(scope)
            try:
                await self._settle(recording, keep)
            finally:
                self._at_work.discard(scope)
        if not self._at_work:
            self._all_settled.set()

    async def _settle(self, recording: Recording, keep: bool) -> None:
        name = recording.options.name
        for stem, parts in (await anyio.to_thread.run_sync(recording.parts)).items():
            is_wanted = keep and self._filming.get(name) is recording
            best, missing = (await recording.best_of(parts) if is_wanted else None) or (None, 0)
            if missing:
                self._tell_once("its encoder ended before the env", "video_not_whole", name=stem, missing=missing)
            if best is not None:
                await self._finish(best, whole_file(self._home(), stem))
            for part in parts:
                if part != best:
                    _unlink(part)
        self._unsettled.discard(recording)
        if self._filming.get(name) is recording:
            del self._filming[name]

    async def _finish(self, part: Path, whole: Path) -> None:
        before = size_of(whole)
        try:
            await anyio.to_thread.run_sync(finish, self._ffmpeg, part, whole, limiter=self._slots)
            self.finished += 1
        except OSError as error:
            self._tell_once("it cannot be made whole", "video_not_whole", name=whole.stem, error=str(error))
        self._used += size_of(whole) + size_of(part) - before

    def _skip(self, name: str, bound: str) -> None:
        self.skipped[bound] += 1
        given = {"max_encoders": self._max_encoders, "max_bytes": self._max_bytes}[bound]
        self._tell_once(f"{bound}={given}", "episode_not_recorded", name=name, hint="more of them are only counted")

    def _tell_once(self, reason: str, event: str, **where: Any) -> None:
        if reason not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(reason)
            log.warning(event, reason=reason, **where)

    def _home(self) -> Path:
        if self.directory is None:
            raise UsageError("VideoRecorder: where do the videos go? Give it a directory, or Rollouts a run_dir")
        return self.directory


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("video_not_removed", path=str(path), error=error.strerror)
