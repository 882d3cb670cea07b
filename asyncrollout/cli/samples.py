"""What a run has delivered, as samples to train on: conversations with their rewards and advantages."""

from pathlib import Path

import msgspec

from asyncrollout import rewards
from asyncrollout.arrays.batch import Batch
from asyncrollout.config import Config
from asyncrollout.errors import JournalError
from asyncrollout.journal.batches import RunRecords
from asyncrollout.trajectories import Group

SAMPLES = "samples.jsonl"


def write_samples(directory: Path, config: Config) -> None:
    """If the configuration asks for advantages or normalised rewards: all batches so far, from what is recorded."""
    if config.advantage is None and config.reward_normalization is None:
        return
    path = directory / SAMPLES
    beside = path.with_suffix(".part")
    try:
        with beside.open("wb") as file:
            for index, groups in RunRecords(directory).batches():
                file.writelines(_lines(index, groups, config))
        beside.replace(path)
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror or error}") from error


def _lines(index: int, groups: list[Group], config: Config) -> list[bytes]:
    arrays = Batch(index, groups).to_arrays(config.advantage, form="texts")
    members = [(group, member) for group in groups for member in group.trajectories]
    scores: dict[str, float] = {}
    if (normal := config.reward_normalization) is not None:
        found = rewards.normalize(
            [member.reward for _, member in members],
            groups=[group.id for group, _ in members],
            tags=[group.tag for group, _ in members],
            grouping=normal.grouping,
            method=normal.method,
            valid=[member.valid for _, member in members],
        )
        scores = {member.uid: float(score) for (_, member), score in zip(members, found, strict=True)}
    tags = {member.uid: group.tag for group, member in members}
    lines = []
    for row, uid in enumerate(arrays["uids"]):
        sample = {"batch": index, "uid": uid, "tag": tags[uid], "reward": float(arrays["reward"][row])}
        if scores:
            sample["score"] = scores[uid]
        if "advantage" in arrays:
            sample["advantage"] = float(arrays["advantage"][row])
        lines.append(msgspec.json.encode({**sample, "messages": arrays["messages"][row]}) + b"\n")
    return lines
