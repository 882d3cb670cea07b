"""Files of tasks: JSON, or one JSON value a line."""

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.config.schema import Config
from asyncrollout.errors import UsageError

ENDINGS = (".jsonl", ".json")


def read_tasks(config: Config) -> list[Any] | None:
    """The tasks of a run, read from their file if they are in one; None if episodes differ by their seed alone."""
    if not isinstance(config.tasks, str):
        return config.tasks
    path = Path(config.tasks)
    try:
        content = path.read_bytes().removeprefix(BOM_UTF8)  # which Windows editors write
    except OSError as error:
        raise UsageError(f"tasks: {path} cannot be read: {error.strerror}") from None
    if path.suffix == ".json":
        tasks = _decode(content, str(path))
        if not isinstance(tasks, list):
            raise UsageError(f"tasks: {path}: found a {type(tasks).__name__}, expected a list of tasks")
    else:
        lines = enumerate(content.splitlines(), 1)
        tasks = [_decode(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not tasks:
        raise UsageError(f"tasks: {path} has no tasks in it")
    return tasks


def _decode(content: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"tasks: {where}: not valid JSON: {error}") from None
