"""`report.html`: one file that needs nothing else, written from a run's directory."""

import base64
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import msgspec
import yaml

from asyncrollout.errors import JournalError, UsageError
from asyncrollout.report.bias import bias_and_waste
from asyncrollout.report.blocks import Blocks, embedded
from asyncrollout.report.groups import PlayedGroup
from asyncrollout.report.history import History, read_history
from asyncrollout.report.readable import as_line
from asyncrollout.report.rollouts import Records, Rollout
from asyncrollout.report.summary import rewards, tiles
from asyncrollout.report.timeline import where_time_went

REPORT = "report.html"

Progress = Callable[[int, int], None]

_VIDEOS = (".mp4", ".webm")
_LONGEST_CONFIG = 50_000


class Written(msgspec.Struct, frozen=True):
    """A report that was written, and how much of the run is in it."""

    path: Path
    groups: int
    rollouts: int
    bytes: int


def write_report(directory: Path, path: Path | None = None, progress: Progress = lambda _done, _all: None) -> Written:
    """Write the report of a run, which may still go on; takes as long as it takes, so call it in a thread.

    `progress` is told how many groups of how many are written; what it raises ends the matter.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory of a run")
    history = read_history(directory)
    records = Records(directory)
    path = directory / REPORT if path is None else path
    try:
        with _replacing(path) as file:
            groups = _write(file, directory, history, records, progress)
        size = path.stat().st_size
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror or error}") from error
    return Written(path, len(groups), sum(len(group.members) for group in groups), size)


def _write(
    file: IO[bytes], directory: Path, history: History, records: Records, progress: Progress
) -> list[PlayedGroup]:
    head, body = _skeleton(_shown_path(directory.resolve().name))
    file.write(head.encode())
    blocks = Blocks(lambda number, content: file.write(_data(f"block-{number}", content)))
    groups: list[PlayedGroup] = []
    places = {}
    names = dict.fromkeys([*history.groups, *records.groups])
    for group in names:
        progress(len(groups), len(names))
        members: list[Rollout] = []
        places[group] = blocks.number
        for rollout, shown in records.read(group):
            blocks.add(rollout.uid, shown)
            history.under_way.pop(rollout.uid, None)  # its end is just being written
            members.append(rollout)
        blocks.end_group()
        groups.append(_played(history, group, members))
    blocks.flush()
    summary = _summary(directory, history, groups, blocks.clipped)
    index = [_row(group, places[group.id]) for group in groups]
    file.write(_data("summary", embedded(summary)))
    file.write(_data("groups", embedded(index)))
    file.write(_data("videos", embedded(_videos(directory))))
    file.write(body.encode())
    return groups


def _played(history: History, group: str, members: list[Rollout]) -> PlayedGroup:
    env = history.groups.get(group) or (members[0].env if members else "")
    verdict = history.verdicts.get(group)
    ends = [history.finished[member.uid] for member in members if member.uid in history.finished]
    at = verdict.at if verdict is not None else max(ends, default=None)
    return PlayedGroup(group, env, history.fate(group), None if at is None else history.clock(at), members)


def _row(group: PlayedGroup, block: int) -> dict[str, Any]:
    """A group in the table."""
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


def _summary(directory: Path, history: History, groups: list[PlayedGroup], clipped: int) -> dict[str, Any]:
    config = _text_of(directory / "config.resolved.yaml")
    wanted = _wanted_batches(config)
    played = [group for group in groups if group.members]
    sections = (
        [rewards(history, played), bias_and_waste(history, groups), where_time_went(history, played)] if played else []
    )
    return {
        "name": _shown_path(directory.resolve().name),
        "what": _what(directory, history),
        "state": _state(history, played, wanted),
        "tiles": tiles(history, groups, wanted),
        "facts": _facts(directory, history),
        "config": config,
        "sections": sections,
        "note": f"{clipped:,} long texts or pictures are not shown whole; the run's files have them."
        if clipped
        else "",
    }


def _state(history: History, played: list[PlayedGroup], wanted: int | None) -> str:
    if not played:
        return f"No rollout is finished yet, and {len(history.under_way):,} under way: make the report again later."
    if wanted is not None and len(history.batches) >= wanted:
        return f"Complete: all {wanted:,} batches were delivered."
    done = f"{len(history.batches):,} batches were delivered" + ("" if wanted is None else f" of {wanted:,}")
    return f"{done}; the last event is of {_time(history.last)}, and this report of {_time(time.time())}."


def _what(directory: Path, history: History) -> str:
    """What was run, in a line."""
    given, command = history.given, _manifest(directory).get("command")
    envs = given.get("envs")
    parts = [
        " ".join(map(str, command)) if isinstance(command, list) else "",
        ", ".join(envs) if isinstance(envs, dict) else "",
        f"groups of {as_line(given['group_size'])}" if "group_size" in given else "",
        f"seed {as_line(given['seed'])}" if "seed" in given else "",
        f"began {_time(history.attempts[0][0])}",
    ]
    return " · ".join(part for part in parts if part)


def _facts(directory: Path, history: History) -> list[list[str]]:
    manifest, given = _manifest(directory), history.given
    envs = given.get("envs")
    facts = {
        "directory": _shown_path(directory),
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
    """Names and values on a line, without those that are not set."""
    if not isinstance(plain, dict):
        return as_line(plain)
    return ", ".join(f"{name} {as_line(value)}" for name, value in plain.items() if value not in (None, {}, []))


def _shown_path(path: Path | str) -> str:
    """A name of the file system, which need not be text."""
    return os.fsencode(path).decode("utf-8", "replace")


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode((directory / "manifest.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}  # it explains the run, and is no part of it


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:_LONGEST_CONFIG]
    except OSError:
        return ""


def _wanted_batches(config: str) -> int | None:
    try:
        told = yaml.safe_load(config)
    except yaml.YAMLError:
        return None
    wanted = told.get("batches") if isinstance(told, dict) else None
    return wanted if isinstance(wanted, int) else None


def _videos(directory: Path) -> list[str]:
    """The names of recordings beside the report."""
    found = directory / "videos"
    return (
        sorted(_shown_path(path.name) for path in found.iterdir() if path.suffix in _VIDEOS) if found.is_dir() else []
    )


def _skeleton(name: str) -> tuple[str, str]:
    """The page before its data and after it."""
    here = files("asyncrollout.report")
    page, style, plots, script = (
        (here / part).read_text(encoding="utf-8") for part in ("page.html", "page.css", "plots.js", "page.js")
    )
    script = f"{plots}\n{script}"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "media-src 'self' file: blob:; base-uri 'none'; form-action 'none'"
    )
    title = "".join(f"&#{ord(char)};" for char in name)
    page = page.replace("{{policy}}", policy).replace("{{title}}", title).replace("{{style}}", style)
    head, tail = page.split("{{data}}")
    return head, tail.replace("{{script}}", script)


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _data(name: str, content: str) -> bytes:
    return f'<script type="application/json" id="{name}">{content}</script>\n'.encode()


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place only when all of it is written."""
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
