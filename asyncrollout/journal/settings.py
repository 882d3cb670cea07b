"""What a run was given, and whether that has changed since."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrollout.batches.batch_json import located_at
from asyncrollout.journal.events import Began, decode
from asyncrollout.journal.files import whole_lines
from asyncrollout.journal.writer import JOURNAL
from asyncrollout.redaction import HIDDEN, without_secrets


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of settings that differ; those that only one side has, as after an update, are not compared."""
    return [name for name, value in now.items() if name in then and _differs(name, then[name], value)]


def _differs(name: str, then: Any, now: Any) -> bool:
    """Secrets may differ, and an older version may have written what is hidden now."""
    return bool(then != now) and not _fits(without_secrets({name: then}), without_secrets({name: now}))


def _fits(then: Any, now: Any) -> bool:
    """Whether they are equal but for hidden texts: which are hidden depends on the environment variables."""
    if isinstance(then, dict) and isinstance(now, dict):
        return then.keys() == now.keys() and all(_fits(value, now[name]) for name, value in then.items())
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(map(_fits, then, now))
    if isinstance(then, str) and isinstance(now, str):
        return _fits_text(then, now) or _fits_text(now, then)
    return bool(then == now)


def _fits_text(hidden: str, text: str) -> bool:
    pattern = "(?s:.*)".join(map(re.escape, hidden.split(HIDDEN)))
    return re.fullmatch(pattern, text) is not None


def read_given(directory: Path) -> dict[str, Any]:
    """What a run was last given; empty if it was killed before its first event."""
    given: dict[str, Any] = {}
    for line in whole_lines(directory / JOURNAL):
        if b'"event":"began"' in line.content:
            with located_at(line.place):
                event = decode(line.content)
            given |= event.given if isinstance(event, Began) else {}
    return given
