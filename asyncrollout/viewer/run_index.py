"""The runs that a viewer lists, and the status of each. Nothing is locked or changed."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.journal.events import Began, Evaluated, decode
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.report.formatting import shown_path
from asyncrollout.telemetry import METRICS

State = Literal["playing", "complete", "stopped"]

_TAIL = 64 * 1024  # bytes at the end of the metrics; a line of them has about one thousand
_LAST_LINE = 4096  # more than the end of an evaluation has
_LONGEST_HEAD = 1024 * 1024
_QUIET_AFTER = 10.0  # seconds; a run that is played writes its metrics every two


class RunStatus(msgspec.Struct, frozen=True):
    """A run in the list. `figures` are the last ones it wrote, if any."""

    name: str
    state: State
    envs: list[str]
    began: float | None
    changed: float
    figures: dict[str, float]


class RunIndex:
    """Run directories, and directories of them, read again each time."""

    def __init__(self, places: Sequence[Path]) -> None:
        for place in places:
            if not place.is_dir():
                raise UsageError(f"{place} is not a directory: name a run directory, or a directory of runs")
        self._places = [place.resolve() for place in places]

    def runs(self) -> dict[str, Path]:
        """All runs by the name of their directory, with a number if names are equal."""
        return _named(dict.fromkeys(run for place in self._places for run in _runs_in(place)))

    def statuses(self) -> list[RunStatus]:
        """The status of each run, newest first."""
        found = [status_of(name, directory) for name, directory in self.runs().items()]
        return sorted(found, key=lambda one: (one.began or 0.0, one.name), reverse=True)


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    counts: Counter[str] = Counter()
    for path in paths:
        own = name = shown_path(path.name)
        while own in found:
            counts[name] += 1
            own = f"{name} ({counts[name] + 1})"
        found[own] = path
    return found


def status_of(name: str, directory: Path) -> RunStatus:
    began, envs = _head(directory / JOURNAL)
    changed = max((status.st_mtime for status in _statuses(directory, JOURNAL, TRAJECTORIES, METRICS)), default=0.0)
    figures = last_figures(directory)
    wanted = figures.get("wanted_batches")
    if wanted is not None and figures.get("batches", 0) >= wanted:
        state: State = "complete"
    elif not figures.get("groups") and _ends_evaluated(directory / JOURNAL):
        state = "complete"
    else:
        state = "playing" if time.time() - changed < _QUIET_AFTER else "stopped"
    return RunStatus(name, state, envs, began, changed, figures)


def last_figures(directory: Path) -> dict[str, float]:
    """The last readable line of the metrics; empty if there is none."""
    try:
        with (directory / METRICS).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - _TAIL, 0))
            lines = file.read(_TAIL).split(b"\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            figures = msgspec.json.decode(line, type=dict[str, float | None])
            return {name: value for name, value in figures.items() if value is not None}  # null: JSON has no infinity
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return {}


def version_of(directory: Path) -> str:
    """Changes whenever something is recorded."""
    found = _statuses(directory, JOURNAL, TRAJECTORIES)
    return "-".join(f"{status.st_size:x}.{status.st_mtime_ns:x}" for status in found)


def _runs_in(place: Path) -> Iterator[Path]:
    """The directory itself if it is a run, else the runs in it."""
    if _is_run(place):
        yield place
        return
    try:
        yield from (path for path in sorted(place.iterdir()) if _is_run(path))
    except OSError:
        return


def _is_run(path: Path) -> bool:
    try:
        return (path / JOURNAL).is_file()
    except OSError:  # not readable for us
        return False


def _head(journal: Path) -> tuple[float | None, list[str]]:
    """When the run began, and its envs, if its first line says so."""
    try:
        with journal.open("rb") as file:
            first = decode(file.readline(_LONGEST_HEAD))
    except (OSError, RolloutError, msgspec.MsgspecError):
        return None, []
    if not isinstance(first, Began):
        return None, []
    envs = first.given.get("envs")
    return first.at, [str(tag) for tag in envs] if isinstance(envs, dict) else []


def _ends_evaluated(journal: Path) -> bool:
    """Whether the last event is the end of an evaluation."""
    try:
        with journal.open("rb") as file:
            file.seek(max(file.seek(0, 2) - _LAST_LINE, 0))
            *_, last = file.read(_LAST_LINE).splitlines() or [b""]
            return isinstance(decode(last), Evaluated)
    except (OSError, RolloutError, msgspec.MsgspecError):
        return False


def _statuses(directory: Path, *names: str) -> Iterator[os.stat_result]:
    for name in names:
        try:
            yield (directory / name).stat()
        except OSError:
            continue
