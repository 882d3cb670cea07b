"""`report.html`: one file that needs nothing else, written from a run's directory."""

import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import msgspec
import yaml

from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.recorded_run import EvaluationRecord, RecordedRun, read_files
from asyncrollout.report.bias import bias_and_waste
from asyncrollout.report.blocks import Blocks, embedded
from asyncrollout.report.compared_run import ComparedRun, evaluation_side, side_of
from asyncrollout.report.formatting import as_line, shown_path
from asyncrollout.report.groups import PlayedGroup, decided, played_group
from asyncrollout.report.rollouts import Rollout, read_rollouts, shown
from asyncrollout.report.single_file import data, replacing, skeleton
from asyncrollout.report.summary import Totals, evaluations, rewards, tiles, totals
from asyncrollout.report.timeline import where_time_went
from asyncrollout.report.videos import videos_of

REPORT = "report.html"
CONFIG = "config.resolved.yaml"
"""In the directory of a run of the command line."""

Progress = Callable[[int, int], None]

_SCRIPT = "asyncrollout.report:page.js"
_LONGEST_CONFIG = 50_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # tasks may make it long


class LiveUpdates(msgspec.Struct, frozen=True):
    """What a served page has in addition, to ask for updates: a script, and its data."""

    script: str
    known: dict[str, Any]


class WrittenReport(msgspec.Struct, frozen=True):
    """A written report, and how much of the run is in it. `totals` are its headline figures."""

    path: Path
    groups: int
    rollouts: int
    bytes: int
    totals: Totals


def write_report(
    directory: Path,
    path: Path | None = None,
    progress: Progress = lambda _done, _all: None,
    *,
    served: LiveUpdates | None = None,
) -> WrittenReport:
    """Write the report of a run, which may still be playing; blocks, so call it in a thread.

    `progress` is called with the number of groups written, and of all; what it raises ends the report.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a run directory")
    path = directory / REPORT if path is None else path
    try:
        with replacing(path) as file:
            groups, found = _write(file, directory, progress, served)
        size = path.stat().st_size
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror or error}") from error
    return WrittenReport(path, len(groups), sum(len(group.members) for group in groups), size, found)


def _write(
    file: IO[bytes], directory: Path, progress: Progress, served: LiveUpdates | None
) -> tuple[list[PlayedGroup], Totals]:
    history, records = read_files(directory)
    scripts = [_SCRIPT] if served is None else [_SCRIPT, served.script]
    head, tail = skeleton(shown_path(directory.resolve().name), *scripts, asks_server=served is not None)
    file.write(head.encode())
    blocks = Blocks(lambda number, content: file.write(data(f"block-{number}", content).encode()))
    groups: list[PlayedGroup] = []
    places = {}
    names = dict.fromkeys([*history.groups, *records.groups])
    for group in names:
        progress(len(groups), len(names))
        members: list[Rollout] = []
        places[group] = blocks.number
        for rollout, record in read_rollouts(records, group, history.finished):
            blocks.add(rollout.uid, shown(record))
            members.append(rollout)
        blocks.end_group()
        groups.append(played_group(history, group, members))
    blocks.flush()
    groups = decided(groups)
    carried = {
        "summary": _summary(directory, history, groups, blocks.clipped),
        "groups": [_row(group, places[group.id]) for group in groups],
        "videos": [*map(shown_path, videos_of(directory))],
        "served": {} if served is None else served.known,
    }
    for name, value in carried.items():
        file.write(data(name, embedded(value)).encode())
    file.write(tail.encode())
    return groups, totals(side_of("", history, groups), _own(history, groups))


def _own(history: RecordedRun, groups: list[PlayedGroup]) -> list[PlayedGroup]:
    """The groups of the run itself: those of the last evaluation if it has no others."""
    evaluation = history.last_evaluation if history.evaluates_only else None
    return [group for group in groups if history.evaluation_of(group.id) is evaluation]


def _row(group: PlayedGroup, block: int) -> dict[str, Any]:
    """A row of the table of groups."""
    members = [
        {
            "uid": one.uid, "reward": one.reward, "passed": one.passed,
            "stop": one.stop, "error": one.error, "turns": one.turns, "tokens": one.tokens,
            "seconds": round(one.seconds, 4),
        }
        for one in group.members
    ]  # fmt: skip
    fate = group.fate
    return {
        "id": group.id, "env": group.env, "fate": fate.kind, "reason": fate.reason, "batch": fate.batch,
        "block": block, "members": members,
    }  # fmt: skip


def _summary(directory: Path, history: RecordedRun, groups: list[PlayedGroup], clipped: int) -> dict[str, Any]:
    config = _text_of(directory / CONFIG)
    wanted = _wanted_batches(config)
    played = [group for group in groups if group.members]
    side = side_of("", history, groups)
    sections = _sections(history, groups, side) if played else []
    return {
        "name": shown_path(directory.resolve().name),
        "what": _what(directory, history),
        "state": _state(history, side, played, wanted),
        "tiles": tiles(side, _own(history, groups), wanted),
        "facts": _facts(directory, history),
        "config": _clipped(config),
        "sections": sections,
        "note": f"{clipped:,} long texts or images are shortened or left out; the run's files have all of them."
        if clipped
        else "",
    }


def _sections(history: RecordedRun, groups: list[PlayedGroup], side: ComparedRun) -> list[dict[str, Any]]:
    own = _own(history, groups)
    time_spent = where_time_went(history, [group for group in own if group.members], side.evaluation)
    if side.evaluation is not None:
        return [rewards(side), time_spent]
    others = [evaluation_side("", history, groups, one) for one in history.evaluations.values()]
    evaluated = [evaluations(others)] if others else []
    return [rewards(side), *evaluated, bias_and_waste(history, own), time_spent]


def _state(history: RecordedRun, side: ComparedRun, played: list[PlayedGroup], wanted: int | None) -> str:
    if not played:
        return (
            f"No rollouts have finished yet, {len(history.in_flight):,} are in flight. Create the report again later."
        )
    if side.evaluation is not None:
        return _state_of_evaluation(history, side, side.evaluation)
    if wanted is not None and len(history.batches) >= wanted:
        return f"Complete: all {wanted:,} batches were delivered."
    of = "" if wanted is None else f" of {wanted:,}"
    return (
        f"{len(history.batches):,}{of} batches delivered. Last event: {_time(history.last)}. "
        f"Report created: {_time(time.time())}."
    )


def _state_of_evaluation(history: RecordedRun, side: ComparedRun, evaluation: EvaluationRecord) -> str:
    of = "" if evaluation.tasks is None else f" of {evaluation.tasks:,}"
    if evaluation.is_complete:
        return f"Complete: all {len(side.groups):,} tasks were evaluated."
    return (
        f"{len(side.groups):,}{of} tasks finished. Last event: {_time(history.last)}. Short tasks finish first: "
        "the final figures may differ."
    )


def _what(directory: Path, history: RecordedRun) -> str:
    """What was run, on one line."""
    given, command = history.given, _manifest(directory).get("command")
    envs = given.get("envs")
    parts = [
        " ".join(map(str, command)) if isinstance(command, list) else "",
        ", ".join(envs) if isinstance(envs, dict) else "",
        f"groups of {as_line(given['group_size'])}" if "group_size" in given else "",
        f"seed {as_line(given['seed'])}" if "seed" in given else "",
        f"started {_time(history.attempts[0][0])}",
    ]
    return " · ".join(part for part in parts if part)


def _facts(directory: Path, history: RecordedRun) -> list[list[str]]:
    manifest, given = _manifest(directory), history.given
    envs = given.get("envs")
    facts = {
        "directory": shown_path(directory),
        "attempts": str(len(history.attempts)),
        "order": as_line(given.get("order")),
        "limits": _listed(given.get("limits")),
        **({f"env {tag}": _listed(env) for tag, env in envs.items()} if isinstance(envs, dict) else {}),
        "retried": _listed(dict(history.retries.most_common())),
        "commit": as_line(manifest.get("git")),
        "software": _listed(manifest.get("packages")),
        "machine": f"Python {manifest['python']}, {manifest.get('platform', '')}" if "python" in manifest else "",
        "report": f"{_time(time.time())}, asyncrollout {metadata.version('asyncrollout')}",
    }
    return [[name, value] for name, value in facts.items() if value]


def _listed(plain: Any) -> str:
    """Names and values on one line, without unset ones."""
    if not isinstance(plain, dict):
        return as_line(plain)
    return ", ".join(f"{name} {as_line(value)}" for name, value in plain.items() if value not in (None, {}, []))


def _time(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at:g} seconds after 1970"


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode((directory / "manifest.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}  # it only describes the run


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return ""


def _clipped(config: str) -> str:
    """As much of the configuration as a page shows."""
    if len(config) <= _LONGEST_CONFIG:
        return config
    return f"{config[:_LONGEST_CONFIG]}\n[... {len(config) - _LONGEST_CONFIG:,} more characters are in {CONFIG} ...]\n"


def _wanted_batches(config: str) -> int | None:
    """How many batches a run is to deliver, if a configuration says so."""
    try:
        settings = yaml.load(config, Loader=_LOADER)  # noqa: S506 (as safe as the slow one)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date that there is not
        return None
    wanted = settings.get("batches") if isinstance(settings, dict) else None
    return wanted if isinstance(wanted, int) else None
