"""Which episodes are recorded, within which limits, and what becomes of their files."""

import math
import os
from collections import Counter
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import anyio
import anyio.to_thread

from asyncrollout import validation
from asyncrollout.concurrency import Background, run_to_end
from asyncrollout.errors import ClosedError, JournalError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.video.budget import OVER_BUDGET, Budget, BudgetShare
from asyncrollout.video.camera import CameraOptions, Footage
from asyncrollout.video.ffmpeg import check_fps, find_ffmpeg
from asyncrollout.video.files import (
    budget_file,
    check_name,
    claim,
    finish,
    finish_left_parts,
    may_share_a_file,
    name_for,
    new_take,
    parts_in,
    size_of,
    whole_file,
)
from asyncrollout.video.recording import VideoRecording

log = get_logger(__name__)

Keep = Literal["all", "failures", "extremes"]

_FINISHED_AT_ONCE = 2  # each is a process at work
_END_GRACE = 60.0  # seconds
_END_WAIT = 15.0  # of these, for envs and encoders that are at work
_ABORTED_GRACE = 4.0
_ABORTED_WAIT = 2.0
_LEAST_BYTES = 16 << 10  # less is not worth a video
_MOST_TOLD = 100


class VideoRecorder:
    """Records envs, an MP4 for each episode, in a directory; an async context manager, which `Rollouts` enters itself.

    One of `every` so many groups of an env is recorded. `keep` is what is kept of these: "all", the "failures", or the
    "extremes", best and worst of each group. `fps` defaults to the env's own (`metadata["render_fps"]`, or 10).
    `overlay` writes turn, action and reward above the image. At most `max_encoders` episodes are recorded at a time,
    and all files have about `max_bytes` at most: an episode beyond that is not recorded, or not to its end, and counted
    in `skipped`.
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
        validation.check_int("every", every, 1)
        validation.check_choice("keep", keep, ("all", "failures", "extremes"))
        validation.check_int("max_encoders", max_encoders, 1)
        validation.check_int("max_bytes", max_bytes, 1)
        self.directory = None if directory is None else Path(directory).absolute()
        self.every = every
        self.keep = keep
        self.skipped: Counter[str] = Counter()
        """Episodes that were not recorded, or not to their end, by limit."""
        self.finished = 0
        """Files that were made whole."""
        self.is_shared: bool | None = None
        """Whether, when it was opened, another recorder had the same directory; None if that cannot be known."""
        self._fps = None if fps is None else check_fps(fps)
        self._overlay = overlay
        self._max_encoders = max_encoders
        self._max_bytes = max_bytes
        self._budget: Budget | None = None
        self._recordings: dict[str, VideoRecording] = {}  # by name: of several attempts at an episode, the last counts
        self._unsettled: set[VideoRecording] = set()
        self._shares: dict[VideoRecording, BudgetShare] = {}  # of those whose encoders may be at work
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
        self._is_late_at = math.inf
        self.is_open = False

    async def __aenter__(self) -> Self:
        directory = self._video_directory()
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
            self._budget = Budget(budget_file(directory, self._takes), self._max_bytes, self._max_encoders)
            self._budget.keep(sum(size_of(path) for path in directory.glob("*.mp4")))
        except OSError:
            os.close(self._claim)
            raise
        if recovered:
            log.info("videos_recovered", videos=recovered, directory=str(directory))

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """End the videos of envs that are still open, and make the files whole.

        An env that is at work is waited for, but not for long; what takes too long is left as it is, and can be played.
        """
        wait, grace = (_END_WAIT, _END_GRACE) if kind is None else (_ABORTED_WAIT, _ABORTED_GRACE)
        self._is_late_at = anyio.current_time() + wait
        for recording in [*self._unsettled]:
            recording.settle(keep=self.keep == "all" or not recording.is_held)
        self.is_open = False
        try:
            await run_to_end(self._wait_settled, grace)
        finally:
            for scope in self._at_work:
                scope.cancel()
            try:
                await self._work.close(error)
            finally:
                self._leave_directory()

    async def _wait_settled(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            while self._unsettled:
                self._all_settled = anyio.Event()
                await self._all_settled.wait()

    def _leave_directory(self) -> None:
        self._funds.close()
        if self._unsettled:
            left = len(self._unsettled)
            log.warning("videos_not_finished", videos=left, hint="they play as they are, and a resume finishes them")
        else:
            for parts in parts_in(
                self._video_directory(), take=self._takes
            ).values():  # of workers that were given up, and awoke
                for part in parts:
                    _unlink(part)
        os.close(self._claim)

    def record(self, name: str, *, kind: str = "", hold: bool = False) -> VideoRecording | None:
        """What `pool.open(..., record=)` takes; None if a limit is reached.

        Envs of a `kind` that cannot be rendered are not recorded again. What is held is kept or not when its
        `settle` is called; else it is kept.
        """
        if not self.is_open:
            raise ClosedError("this VideoRecorder is not open: use it within 'async with'")
        directory, name = self._video_directory(), check_name(name)
        other = self._recorded_as(name)
        if other is not None:
            raise UsageError(f"{other!r} is being recorded, and two videos cannot share a file: choose another name")
        if kind and kind in self._sightless:
            return None
        share = self._funds.take_share() if self._funds.left >= _LEAST_BYTES else None
        if share is None:
            self._skip(name, "max_bytes" if self._funds.left < _LEAST_BYTES else "max_encoders")
            return None
        take = f"{self._takes}.{next(self._numbers)}."
        options = CameraOptions(directory, name, take, self._ffmpeg, self._fps, self._overlay, share)
        recording = self._recordings[name] = VideoRecording(self, options, kind, hold=hold)
        self._unsettled.add(recording)
        self._shares[recording] = share
        return recording

    def record_rollout(self, uid: str, kind: str) -> VideoRecording | None:
        """As `record`, held; the file is named after the rollout. Of two at a time with one uid, one is recorded."""
        name = name_for(uid)
        if self._recorded_as(name) is not None:
            self._tell_once("another rollout of the same uid is being recorded", "episode_not_recorded", name=name)
            return None
        return self.record(name, kind=kind, hold=True)

    def _recorded_as(self, name: str) -> str | None:
        """The name of a recording in progress that may have a file of this name, if there is one."""
        active = [other for other, recording in self._recordings.items() if not recording.has_ended]
        return next((other for other in active if may_share_a_file(name, other)), None)

    def remove(self, uid: str) -> None:
        """A rollout's whole video, if there is one: an earlier process has left it, and it is not wanted any more."""
        path = whole_file(self._video_directory(), name_for(uid))
        self._funds.keep(-size_of(path))
        _unlink(path)

    def is_next(self, kind: str) -> bool:
        """Whether another group of envs of this kind is recorded: the first is, and one of `every` more."""
        self._groups[kind] += 1
        return self._groups[kind] % self.every == 1 % self.every

    def note(self, recording: VideoRecording) -> None:
        """A recording has ended: say what went wrong, but once; and let another one begin."""
        if recording.footage:
            self._funds.keep(recording.kept_bytes)
            self._give_back(recording)
        for footage in recording.footage:
            if footage.doubt:
                self._tell_once(footage.doubt, "video_in_doubt", name=footage.stem)
            if footage.sightless:
                self._note_sightless(recording.kind, footage)
            elif footage.trouble:
                self.skipped["max_bytes"] += footage.trouble == OVER_BUDGET
                event = "video_not_whole" if footage.frames else "episode_not_recorded"
                self._tell_once(footage.trouble, event, name=footage.stem, frames=footage.frames)

    def _note_sightless(self, kind: str, footage: Footage) -> None:
        if kind not in self._sightless:
            self._sightless.add(kind)
            report = log.info if kind else log.warning  # it was asked for by name
            report("env_not_recorded", env=kind, name=footage.stem, reason=footage.trouble)

    def settle(self, recording: VideoRecording, *, keep: bool) -> None:
        """Make its files whole or remove them, in the background."""
        self._work.start_soon(self._settle_to_the_end, recording, keep)

    async def _settle_to_the_end(self, recording: VideoRecording, keep: bool) -> None:
        """Also if whoever records is cancelled, until it takes too long."""
        with anyio.CancelScope(shield=True) as scope:
            self._at_work.add(scope)
            try:
                await self._settle(recording, keep)
            finally:
                self._at_work.discard(scope)
        if not self._at_work:
            self._all_settled.set()

    async def _settle(self, recording: VideoRecording, keep: bool) -> None:
        name = recording.options.name
        await recording.end_recording(max(min(self._is_late_at - anyio.current_time(), _END_WAIT), 0.0))
        found = await anyio.to_thread.run_sync(recording.parts)
        if keep and not found and not any(footage.trouble for footage in recording.footage):
            self._tell_once("no frame was recorded: was its env reset?", "episode_not_recorded", name=name)
        for stem, parts in found.items():
            is_wanted = keep and self._recordings.get(name) is recording
            best, missing = (await recording.best_of(parts, self._is_late) if is_wanted else None) or (None, 0)
            if missing:
                self._tell_once("its encoder ended before the env", "video_not_whole", name=stem, missing=missing)
            if best is not None:
                await self._finish(best, whole_file(self._video_directory(), stem))
            for part in parts:
                if part != best:
                    _unlink(part)
        self._unsettled.discard(recording)
        self._funds.keep(-recording.kept_bytes)
        self._give_back(recording)
        if self._recordings.get(name) is recording:
            del self._recordings[name]

    async def _finish(self, part: Path, whole: Path) -> None:
        before = size_of(whole)
        try:
            await anyio.to_thread.run_sync(finish, self._ffmpeg, part, whole, limiter=self._slots)
            self.finished += 1
        except OSError as error:
            self._tell_once("it cannot be made whole", "video_not_whole", name=whole.stem, error=str(error))
        self._funds.keep(size_of(whole) + size_of(part) - before)

    def _give_back(self, recording: VideoRecording) -> None:
        share = self._shares.pop(recording, None)
        if share is not None:
            self._funds.give_back(share)

    def _is_late(self) -> bool:
        return anyio.current_time() >= self._is_late_at

    @property
    def _funds(self) -> Budget:
        assert self._budget is not None, "open it first"
        return self._budget

    def _skip(self, name: str, bound: str) -> None:
        self.skipped[bound] += 1
        given = {"max_encoders": self._max_encoders, "max_bytes": self._max_bytes}[bound]
        self._tell_once(f"{bound}={given}", "episode_not_recorded", name=name, hint="more of them are only counted")

    def _tell_once(self, reason: str, event: str, **where: Any) -> None:
        if reason not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(reason)
            log.warning(event, reason=reason, **where)

    def _video_directory(self) -> Path:
        if self.directory is None:
            raise UsageError("VideoRecorder needs a directory: pass one, or a run_dir to Rollouts")
        return self.directory


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("video_not_removed", path=str(path), error=error.strerror)
