"""The directory of a run: its name, its configuration, and its attempts."""

import re
from pathlib import Path

from asyncrollout.config import Config, read_config, to_yaml
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES, Lock
from asyncrollout.rollouts.durable import MANIFEST

GIVEN = "config.yaml"
RESOLVED = "config.resolved.yaml"

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}\Z", re.ASCII)


def new_directory(runs: Path, name: str | None, fallback: str) -> Path:
    """Where a new run goes; without a name, the first free number is added to the fallback."""
    if name is None:
        number = 1
        while (runs / f"{fallback}-{number}").exists():
            number += 1
        name = f"{fallback}-{number}"
    if not _NAME.match(name):
        raise UsageError(f"name: found {name!r}, valid are up to 100 letters, digits and ._-, as for a directory")
    directory = runs / name
    if directory.exists() and not (directory / RESOLVED).exists():
        raise UsageError(f"{directory} exists, and holds no run: choose another name")
    if directory.exists() and not _is_unplayed(directory):
        go_on = f"go on with it by `asyncrollout resume {directory}`"
        raise UsageError(f"{directory} is in use: {go_on}, or give another name (name=...)")
    return directory


def _is_unplayed(directory: Path) -> bool:
    """Whether a run failed before anything was played, as one does that asks for something impossible."""
    Lock(directory).release()
    journal = directory / JOURNAL
    content = journal.read_bytes() if journal.exists() else b""
    return not any(word in content for word in (b'"event":"turn"', b'"event":"finished"'))


def write_config(directory: Path, config: Config, given: bytes | None) -> None:
    """The configuration as it was given, if it was a file, and as it is understood."""
    resolved = to_yaml(config)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in (JOURNAL, TRAJECTORIES, MANIFEST):  # of a run that failed before anything was played
            (directory / name).unlink(missing_ok=True)
        (directory / GIVEN).write_bytes(resolved.encode() if given is None else given)
        (directory / RESOLVED).write_text(resolved, encoding="utf-8")
        (directory / "videos").mkdir(exist_ok=True)
    except OSError as error:
        raise JournalError(f"cannot write to {directory}: {error.strerror or error}") from error


def read_back(directory: Path) -> Config:
    """The configuration of a run that is resumed."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory of a run")
    if not (directory / RESOLVED).exists():
        raise UsageError(f"{directory} holds no run of this command line: it has no {RESOLVED}")
    return read_config(directory / RESOLVED)


def next_attempt(directory: Path) -> Path:
    """Where the logs of this attempt at the run go."""
    logs = directory / "logs"
    numbers = [int(path.name.removeprefix("attempt_")) for path in logs.glob("attempt_*") if path.name[8:].isdigit()]
    return logs / f"attempt_{max(numbers, default=0) + 1}"
