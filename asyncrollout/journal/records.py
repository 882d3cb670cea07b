"""What a run has delivered, read from its directory."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

from asyncrollout.batches.records import decode_record, located_at
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.events import Began, Cancelled, Delivered, Evaluating, Judged, TakenBack, decode
from asyncrollout.journal.files import read_head, whole_lines
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.trajectories import Group, Trajectory, Verdict, group_of


class RecordedRollout(NamedTuple):
    """A finished rollout, with the tag of its env."""

    tag: str
    trajectory: Trajectory


class RunRecords:
    """The records of a run; the trajectories stay on disk until they are asked for."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / TRAJECTORIES
        self.given: dict[str, object] = {}
        self._batches: dict[int, list[str]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._evaluations: dict[str, Any] = {}
        self._places: dict[str, dict[str, int]] = {}  # by group and uid: where the last record begins
        if not (directory / JOURNAL).exists():
            raise UsageError(f"{directory} holds no run: it has no {JOURNAL}")
        for line in whole_lines(directory / JOURNAL):
            with located_at(line.place):
                self._add(decode(line.content))
        for line in whole_lines(self._path):
            head = read_head(line)
            self._places.setdefault(head.group, {})[head.uid] = line.start

    def find(self, uid: str) -> RecordedRollout:
        """A finished rollout, by its uid."""
        for members in self._places.values():
            if uid in members:
                return self._read(members[uid])
        known = sorted((one for members in self._places.values() for one in members), key=lambda one: (len(one), one))
        what = f"such as {', '.join(known[:3])}" if known else "none is finished yet"
        raise UsageError(f"{self._path.parent} has no finished rollout {uid!r}: {len(known)} are finished, {what}")

    def added_kwargs(self, uid: str) -> Any:
        """What an evaluation added to its env's own arguments, in plain form; None if that is not recorded."""
        return self._evaluations.get(group_of(uid).rpartition("-")[0], {})

    def batches(self) -> Iterator[tuple[int, list[Group]]]:
        """All that was delivered, in order."""
        for index, groups in sorted(self._batches.items()):
            yield index, [self._group(group) for group in groups]

    def groups(self, ids: AbstractSet[str] | None = None) -> Iterator[Group]:
        """These groups, or all, in the order in which they were judged."""
        for group in self._verdicts:
            if ids is None or group in ids:
                yield self._group(group)

    def _add(self, event: object) -> None:
        match event:
            case Began(given=given):
                self.given = self.given or given
            case Delivered(batch=batch, groups=groups):
                self._batches[batch] = groups
            case TakenBack(batch=batch):
                self._batches.pop(batch, None)
            case Evaluating(name=name, env_kwargs=env_kwargs):
                self._evaluations[name] = env_kwargs
            case Judged(group=group, keep=keep, reason=reason):
                self._verdicts[group] = Verdict(keep, reason)
            case Cancelled(group=group):
                self._verdicts.pop(group, None)

    def _group(self, group: str) -> Group:
        records = [self._read(place) for place in self._places.get(group, {}).values()]
        if not records:
            raise JournalError(f"{self._path} lacks group {group}, which was delivered")
        members = sorted((record.trajectory for record in records), key=lambda member: member.member)
        return Group(group, members, records[0].tag, self._verdicts.get(group))

    def _read(self, place: int) -> RecordedRollout:
        with self._path.open("rb") as file:
            file.seek(place)
            _, tag, trajectory = decode_record(file.readline())
        return RecordedRollout(tag, trajectory)
