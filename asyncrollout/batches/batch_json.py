"""A batch as JSON: a header that lists its groups, and one record per trajectory, in order."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.serialization import from_plain, to_plain
from asyncrollout.trajectories import Group, Trajectory, Verdict

FORMAT = "asyncrollout.batch"
VERSION = 1

Contents = tuple[int, list[Group], dict[str, float]]
"""A batch's index, groups and stats."""


class _GroupHeader(msgspec.Struct):
    """A group without its trajectories."""

    id: str
    tag: str
    verdict: Verdict | None
    size: Annotated[int, msgspec.Meta(ge=0)]


class _BatchHeader(msgspec.Struct):
    index: int
    stats: dict[str, Any]
    groups: list[_GroupHeader]


def encode_header(index: int, groups: list[Group], stats: dict[str, float]) -> bytes:
    parts = [
        {"id": group.id, "tag": group.tag, "verdict": group.verdict, "size": len(group.trajectories)}
        for group in groups
    ]
    header = {"format": FORMAT, "version": VERSION, "index": int(index), "stats": stats, "groups": parts}
    return msgspec.json.encode(to_plain(header))


def encode_record(group: str, tag: str, trajectory: Trajectory) -> bytes:
    with located_at(f"trajectory {trajectory.uid!r}"):
        return msgspec.json.encode(to_plain({"group": group, "tag": tag}) | to_plain(trajectory))


def decode_record(raw: bytes | str) -> tuple[str, str, Trajectory]:
    """The id and tag of a trajectory's group, and the trajectory."""
    record = msgspec.json.decode(raw, type=dict[str, Any])
    group, tag = from_plain(record.pop("group", None)), from_plain(record.pop("tag", None))
    trajectory = from_plain(record)
    if not isinstance(trajectory, Trajectory):
        raise UsageError("not a trajectory")
    return group, tag, trajectory


def assemble(path: str, header: tuple[str, bytes], records: Iterable[tuple[str, bytes | str]]) -> Contents:
    """A batch from its header and records, each with its place in the file, for errors."""
    with located_at(f"{path}, {header[0]}"):
        found = _decode_header(header[1])
    groups = [Group(part.id, [], part.tag, part.verdict) for part in found.groups]
    owners = (group for group, part in zip(groups, found.groups, strict=True) for _ in range(part.size))
    for place, raw in records:
        with located_at(f"{path}, {place}"):
            owner = next(owners, None)
            if owner is None:
                raise UsageError("more trajectories than the header lists")
            group, tag, trajectory = decode_record(raw)
            if (group, tag) != (owner.id, owner.tag):
                raise UsageError(f"a trajectory of group {group!r} (tag {tag!r}), where the header says {owner.id!r}")
            owner.trajectories.append(trajectory)
    read, written = sum(len(group.trajectories) for group in groups), sum(part.size for part in found.groups)
    if read < written:
        raise UsageError(f"{path} has {read} of {written} trajectories: its end is missing")
    return found.index, groups, found.stats


@contextmanager
def located_at(place: str) -> Iterator[None]:
    """Errors begin with the place."""
    try:
        yield
    except (UsageError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{place}: {error}") from error


def _decode_header(raw: bytes) -> _BatchHeader:
    header = msgspec.json.decode(raw)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UsageError(f"not a batch file of asyncrollout: a header with format={FORMAT!r} is missing")
    if header.get("version") != VERSION:
        version = header.get("version")
        raise UsageError(
            f"version {version!r} of the format is not supported: this asyncrollout reads version {VERSION}"
        )
    return msgspec.convert(from_plain(header), _BatchHeader)
