"""What a run has recorded, as trajectories and groups."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

from asyncrollout.batches.batch_json import decode_record, located_at
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.files import JournalLine
from asyncrollout.journal.recorded_run import read_files
from asyncrollout.trajectories import Group, Trajectory, Verdict, group_of


class RecordedRollout(NamedTuple):
    """A finished rollout, with the tag of its env."""

    tag: str
    trajectory: Trajectory


class RunRecords:
    """The records of a run; trajectories stay on disk until they are asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._run, self._file = read_files(directory)

    @property
    def given(self) -> dict[str, Any]:
        """What the run was last given."""
        return self._run.given

    def find(self, uid: str) -> RecordedRollout:
        """A finished rollout, by its uid."""
        line = self._file.groups.get(group_of(uid), {}).get(uid)
        if line is not None:
            return self._read(line)
        known = sorted((one for group in self._file.groups.values() for one in group), key=lambda one: (len(one), one))
        what = f"such as {', '.join(known[:3])}" if known else "none is finished yet"
        raise UsageError(f"{self._directory} has no finished rollout {uid!r}: {len(known)} are finished, {what}")

    def added_kwargs(self, recorded: RecordedRollout) -> Any:
        """What an evaluation added to its env's own arguments, in plain form; None if that is not recorded."""
        evaluation = self._run.evaluation_of(group_of(recorded.trajectory.uid))
        return {} if evaluation is None else evaluation.kwargs_of(recorded.tag)

    def batches(self) -> Iterator[tuple[int, list[Group]]]:
        """All delivered batches, in order."""
        for index, batch in sorted(self._run.batches.items()):
            yield index, [self._group(group) for group in batch.groups]

    def groups(self, ids: AbstractSet[str] | None = None) -> Iterator[Group]:
        """These groups, or all, in the order in which they were judged."""
        for group in self._run.verdicts:
            if ids is None or group in ids:
                yield self._group(group)

    def _group(self, group: str) -> Group:
        records = [self._read(line) for line in self._file.groups.get(group, {}).values()]
        if not records:
            raise JournalError(f"{self._file.path} lacks group {group}, which was delivered")
        members = sorted((record.trajectory for record in records), key=lambda member: member.member)
        verdict = self._run.verdicts.get(group)
        return Group(group, members, records[0].tag, None if verdict is None else Verdict(verdict.keep, verdict.reason))

    def _read(self, line: JournalLine) -> RecordedRollout:
        with located_at(line.place):
            _, tag, trajectory = decode_record(self._file.read(line))
        return RecordedRollout(tag, trajectory)
