"""The delivered batches of a run as training samples: conversations with rewards and advantages."""

from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.batches.batch import Batch
from asyncrollout.config import Config
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.records import RunRecords
from asyncrollout.trajectories import Group

SAMPLES = "samples.jsonl"


def write_samples(directory: Path, config: Config) -> None:
    """Write all recorded batches, if the configuration asks for advantages or normalised rewards."""
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
    normal = config.reward_normalization
    arrays = Batch(index, groups).to_arrays(
        config.advantage, form="texts", reward_normalization=None if normal is None else msgspec.to_builtins(normal)
    )
    tags = {member.uid: group.tag for group in groups for member in group.trajectories}
    lines = []
    for row, uid in enumerate(arrays["uids"]):
        sample = {"batch": index, "uid": uid, "tag": tags[uid], "reward": float(arrays["rewards"][row])}
        if "scores" in arrays:
            sample["score"] = float(arrays["scores"][row])
        if "advantages" in arrays:
            sample["advantage"] = float(arrays["advantages"][row])
        lines.append(_encoded({**sample, "messages": arrays["messages"][row]}) + b"\n")
    return lines


def _encoded(sample: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(sample)
    except UnicodeEncodeError:
        return msgspec.json.encode(_whole(sample))
    except TypeError as error:
        raise UsageError(f"{sample['uid']}: its messages cannot be written to {SAMPLES}: {error}") from error


def _whole(value: Any) -> Any:
    """Replace lone surrogates, which JSON cannot hold, by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return [*map(_whole, value)] if isinstance(value, list | tuple) else value
