"""The videos of a group: which of its rollouts are recorded, and which videos are kept."""

from types import TracebackType
from typing import Self

import msgspec

from asyncrollout.successes import succeeded
from asyncrollout.trajectories import Group, Trajectory
from asyncrollout.video.recorder import VideoRecorder
from asyncrollout.video.recording import VideoRecording


class GroupVideos:
    """A context manager; videos that are not settled by its end were aborted."""

    def __init__(self, recorder: VideoRecorder | None, kind: str) -> None:
        self._recorder = recorder if recorder is not None and recorder.is_next(kind) else None
        self._kind = kind
        self._recordings: dict[str, VideoRecording] = {}

    def begin(self, uid: str) -> VideoRecording | None:
        """The recording to open the env with; if a rollout is retried, only its last video counts."""
        self._discard(uid)
        recording = None if self._recorder is None else self._recorder.record_rollout(uid, self._kind)
        if recording is not None:
            self._recordings[uid] = recording
        return recording

    def on_record(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory of an env that is closed, with its video."""
        recording = self._recordings.get(trajectory.uid)
        if recording is None:
            return trajectory
        return msgspec.structs.replace(trajectory, video=recording.video(len(trajectory.turns)))

    def settle(self, group: Group) -> Group:
        """Keep the videos that are wanted, also of earlier processes; the other trajectories lose theirs."""
        if self._recorder is None:
            return group
        wanted = _wanted(group.trajectories, self._recorder.keep)
        members = []
        for member in group.trajectories:
            recording = self._recordings.pop(member.uid, None)
            if recording is not None:
                recording.settle(keep=member.uid in wanted)
            if member.uid not in wanted:
                self._recorder.remove(member.uid)
            members.append(member if member.uid in wanted else msgspec.structs.replace(member, video=None))
        return msgspec.structs.replace(group, trajectories=members)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for recording in self._recordings.values():
            assert self._recorder is not None
            recording.settle(keep=self._recorder.keep == "all")

    def _discard(self, uid: str) -> None:
        recording = self._recordings.pop(uid, None)
        if recording is not None:
            recording.settle(keep=False)


def _wanted(members: list[Trajectory], keep: str) -> set[str]:
    if keep == "failures":
        return {member.uid for member in members} - succeeded(members)
    recorded = [member for member in members if member.video is not None]
    if keep == "extremes" and recorded:
        return {choose(recorded, key=lambda member: member.reward).uid for choose in (max, min)}
    return {member.uid for member in members}
