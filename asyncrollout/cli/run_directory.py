"""The directory of a run: its name, its configuration, and its attempts."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from asyncrollout.config import Config, read_config, to_redacted_yaml
from asyncrollout.dropin.ragen.config_keys import RAGEN_KEYS
from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.files import whole_lines
from asyncrollout.journal.recorded_run import RecordedRun, read_run
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES, Lock
from asyncrollout.redaction import hide_in_document, known_secrets, named_secrets
from asyncrollout.rollouts.resume import MANIFEST

GIVEN = "config.yaml"
RESOLVED = "config.resolved.yaml"

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}\Z", re.ASCII)
_CLAIM = ".claim"


@contextmanager
def new_directory(runs: Path, name: str | None, fallback: str) -> Iterator[Path]:
    """A locked directory for a new run; without a name, the fallback with a number."""
    directory = _numbered(runs, re.sub(r"[^\w.-]", "_", fallback, flags=re.ASCII)) if name is None else runs / name
    if name is not None and not _NAME.match(name):
        raise UsageError(f"name: found {name!r}, expected up to 100 letters, digits and ._-")
    if name is not None and directory.exists() and not (directory / RESOLVED).exists():
        raise UsageError(f"{directory} exists and is not a run directory: choose another name")
    with claimed(directory):
        if has_played(directory):
            raise UsageError(_taken(directory))
        yield directory


def _taken(directory: Path) -> str:
    """Why the name of a run is taken, and what to do."""
    history = read_run(directory)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(history.last))
    other = "choose another name (name=...), or leave it out for a numbered one"
    if _is_complete(directory, history):
        look = f"asyncrollout report {directory}"
        return f"{directory} exists: a run that finished at {when}. To see it: `{look}`; for a new run, {other}"
    how_to_resume = f"asyncrollout resume {directory}"
    return f"{directory} exists: a run that stopped at {when}. To resume it: `{how_to_resume}`; for a new run, {other}"


def _is_complete(directory: Path, history: RecordedRun) -> bool:
    length = read_length(directory)
    if length.evaluate is not None:
        return history.last_evaluation is not None and history.last_evaluation.is_complete
    return len(history.batches) >= length.batches


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """The directory belongs to this process, from before its first file is written."""
    lock = Lock(directory, _CLAIM)
    try:
        yield
    finally:
        lock.release()


def _numbered(runs: Path, name: str) -> Path:
    number = 1
    while True:
        directory = runs / f"{name}-{number}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise JournalError(f"cannot write to {directory}: {error.strerror or error}") from error
        else:
            return directory


def has_played(directory: Path) -> bool:
    """Whether anything was played; a run with an impossible configuration fails before that."""
    words = (b'"event":"turn"', b'"event":"finished"')
    return any(any(word in line.content for word in words) for line in whole_lines(directory / JOURNAL))


def env_secrets(config: Config) -> list[str]:
    """Secrets among the arguments of envs."""
    return named_secrets([entry.env_kwargs for entry in config.entries])


def redacted_config(config: Config) -> str:
    """The configuration as written to disk: secrets of envs are hidden, others are refused."""
    text = to_redacted_yaml(config)
    for name, value in os.environ.items():
        if any(secret in text for secret in known_secrets({name: value})):
            raise UsageError(f"the configuration holds the value of ${name}, which must not be written to a file")
    return text


def write_config(directory: Path, config: Config, given: str | None) -> None:
    """Write the configuration as given, if it was a file, and as resolved."""
    resolved = redacted_config(config)
    try:
        for old in (JOURNAL, TRAJECTORIES, MANIFEST):  # of a run that failed before anything was played
            (directory / old).unlink(missing_ok=True)
        shown = resolved if given is None else hide_in_document(given, [*known_secrets(), *env_secrets(config)])
        (directory / GIVEN).write_text(shown, encoding="utf-8")
        write_resolved(directory, config)
    except OSError as error:
        raise JournalError(f"cannot write to {directory}: {error.strerror or error}") from error


def write_resolved(directory: Path, config: Config) -> None:
    part = directory / f"{RESOLVED}.part"
    try:
        part.write_text(redacted_config(config), encoding="utf-8")
        part.replace(directory / RESOLVED)
    except OSError as error:
        raise JournalError(f"cannot write to {directory}: {error.strerror or error}") from error


class Length(msgspec.Struct):
    """How much there is to play."""

    batches: int
    evaluate: int | None = None


def read_length(directory: Path) -> Length:
    """The length that a run began with; readable even without the secrets that are not in the file."""
    return msgspec.yaml.decode((directory / RESOLVED).read_bytes(), type=Length)


def read_back(directory: Path, overrides: tuple[str, ...] = ()) -> Config:
    """The configuration of a run to resume, with overrides."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a run directory")
    if not (directory / RESOLVED).exists():
        raise UsageError(f"{directory} is not a run of the command line: it has no {RESOLVED}")
    return read_config(directory / RESOLVED, overrides, dialect=RAGEN_KEYS)


def next_attempt(directory: Path) -> Path:
    """The directory for the logs of this attempt."""
    logs = directory / "logs"
    numbers = [int(path.name.removeprefix("attempt_")) for path in logs.glob("attempt_*") if path.name[8:].isdigit()]
    return logs / f"attempt_{max(numbers, default=0) + 1}"
