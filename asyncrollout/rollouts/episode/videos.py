"""The films of a group: which of its rollouts are filmed, and which films are kept."""

from types import TracebackType
from typing import Self

import msgspec

from asyncrollout.successes import succeeded
from asyncrollout.trajectories import Group, Trajectory
from asyncrollout.video.recorder import VideoRecorder
from asyncrollout.video.recording import VideoRecording


class GroupVideos:
    """A context manager: what is not `settle`d when it is left was broken off."""

    def __init__(self, recorder: VideoRecorder | None, kind: str) -> None:
        self._recorder = recorder if recorder is not None and recorder.is_next(kind) else None
        self._kind = kind
        self._films: dict[str, VideoRecording] = {}

    def begin(self, uid: str) -> VideoRecording | None:
        """What to open the env with; of a rollout that is played once more, only the last film counts."""
        self._discard(uid)
        film = None if self._recorder is None else self._recorder.record_rollout(uid, self._kind)
        if film is not None:
            self._films[uid] = film
        return film

    def on_record(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory of an env that is closed, with its film."""
        film = self._films.get(trajectory.uid)
        if film is None:
            return trajectory
        return msgspec.structs.replace(trajectory, video=film.video(len(trajectory.turns)))

    def settle(self, group: Group) -> Group:
        """Keep what is wanted, of earlier processes, too; the others' trajectories tell of no film any more."""
        if self._recorder is None:
            return group
        wanted = _wanted(group.trajectories, self._recorder.keep)
        members = []
        for member in group.trajectories:
            film = self._films.pop(member.uid, None)
            if film is not None:
                film.settle(keep=member.uid in wanted)
            if member.uid not in wanted:
                self._recorder.remove(member.uid)
            members.append(member if member.uid in wanted else msgspec.structs.replace(member, video=None))
        return msgspec.structs.replace(group, trajectories=members)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for film in self._films.values():
            assert self._recorder is not None
            film.settle(keep=self._recorder.keep == "all")

    def _discard(self, uid: str) -> None:
        film = self._films.pop(uid, None)
        if film is not None:
            film.settle(keep=False)


def _wanted(members: list[Trajectory], keep: str) -> set[str]:
    if keep == "failures":
        return {member.uid for member in members} - succeeded(members)
    filmed = [member for member in members if member.video is not None]
    if keep == "extremes" and filmed:
        return {choose(filmed, key=lambda member: member.reward).uid for choose in (max, min)}
    return {member.uid for member in members}
