"""From a file to a `Config`, and back."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

import msgspec
import yaml

from asyncrollout.config.checking import MOST_PROBLEMS, Checker, Problem
from asyncrollout.config.dialect import NATIVE, Dialect, Note
from asyncrollout.config.document import Document, Path, Place, load
from asyncrollout.config.overrides import expanded, override, undotted
from asyncrollout.config.schema import Config, Local
from asyncrollout.config.suggestions import shown
from asyncrollout.config.tasks import ENDINGS
from asyncrollout.errors import UsageError
from asyncrollout.logs import get_logger
from asyncrollout.redaction import named_secrets, without_secrets
from asyncrollout.registry import env_names
from asyncrollout.validation import did_you_mean

log = get_logger(__name__)

_LARGEST_FILE = 1_000_000  # bytes; PyYAML takes seconds for more
_LEAST = "write at least a line such as 'env: frozen_lake'"


def read_config(path: FilePath, overrides: Sequence[str] = (), *, dialect: Dialect = NATIVE) -> Config:
    """The configuration in a file, with overrides such as `group_size=4`; a `dialect` allows foreign keys in both."""
    return parse_config(read_text(FilePath(path)), overrides, str(path), dialect=dialect)


def parse_config(
    text: str, overrides: Sequence[str] = (), where: str = "config.yaml", *, dialect: Dialect = NATIVE
) -> Config:
    """As `read_config`; `where` is the file's name, for errors and for paths that are relative to it."""
    document = load_mapping(text, overrides, where, least=_LEAST, compose=dialect.compose)
    return _checked(document, where, dialect)


def as_config(
    values: dict[str, Any], overrides: Sequence[str] = (), where: str = "config", *, dialect: Dialect = NATIVE
) -> Config:
    """As `read_config`, of what a file would hold."""
    document = Document(values, {})
    for assignment in overrides:
        document = override(document, assignment)
    return _checked(document, where, dialect)


def _checked(document: Document, where: str, dialect: Dialect) -> Config:
    translated = dialect.translate(expanded(document.value))
    checker = Checker(Config, _placed(document.places, translated.origins), dialect.top_level)
    problems = [*translated.problems, *checker.problems(translated.values)]
    if not problems:
        config = msgspec.convert(translated.values, Config)
        config, problems = _resolved(config, FilePath(where).absolute().parent)
    if problems:
        raise UsageError(problems_text(where, problems, document.places, translated.origins))
    log_notes(translated.notes, dialect.name, where)
    return config


def log_notes(notes: Sequence[Note], dialect: str, where: str) -> None:
    """What became of foreign keys; those whose loss changes what is played, each as a warning."""
    mapped = [f"{note.key} -> {note.became}" for note in notes if note.became]
    unused = [f"{note.key}: {note.why}" for note in notes if not note.became and not note.warns]
    if mapped or unused:
        log.info("foreign_keys", dialect=dialect, file=where, mapped=mapped, unused=unused)
    for note in notes:
        if note.warns:
            log.warning("setting_not_applied", file=where, setting=note.key, why=note.why)


def load_mapping(
    text: str,
    overrides: Sequence[str],
    where: str,
    *,
    least: str,
    compose: Callable[[Document, str], Document] = NATIVE.compose,
) -> Document:
    """The values of a file with overrides; `least` is the hint for an empty file."""
    document = load(text, where)
    if document.value is None:
        if not overrides:
            raise UsageError(f"{where}: empty: {least}")
        document = Document({}, {})
    if not isinstance(document.value, dict):
        raise UsageError(f"{where}: found no mapping of keys to values: {least}")
    document = compose(undotted(document, where), where)
    for assignment in overrides:
        document = override(document, assignment)
    return document


def to_yaml(config: Config) -> str:
    """Every key with its value; reads back to an equal `Config`."""
    values = msgspec.to_builtins(config)
    for path in _hidden(values, without_secrets(values, ()), ()):
        raise UsageError(f"{shown(path)}: a key is never written into a file")
    return _dump(values)


def to_redacted_yaml(config: Config) -> str:
    """As `to_yaml`, with `[hidden]` for secrets of envs; elsewhere secrets are refused."""
    values = msgspec.to_builtins(config)
    redacted = without_secrets(values, named_secrets(values))
    for path in _hidden(values, redacted, ()):
        if "env_kwargs" not in path:
            raise UsageError(f"{shown(path)}: a key is never written into a file")
    return _dump(redacted)


def _dump(values: Any) -> str:
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write repeated values out in full."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """PyYAML loses line breaks other than a plain one, unless they are escaped."""
    style = None if text.replace("\n", "").isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def read_text(path: FilePath) -> str:
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 (these never raise)
        raise UsageError(f"{path}: {'a directory' if os.path.isdir(path) else 'no regular file'}")  # noqa: PTH112
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > _LARGEST_FILE:
        raise UsageError(
            f"{path}: larger than {_LARGEST_FILE} bytes: put tasks into a file of their own, as tasks: x.jsonl"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: not UTF-8 text") from None


def _resolved(config: Config, directory: FilePath) -> tuple[Config, list[Problem]]:
    """With absolute paths, and problems with what the values stand for."""
    problems: list[Problem] = []
    known = env_names()
    for index, entry in enumerate(config.entries):
        if ":" not in entry.env and entry.env not in known:
            places: dict[type, Path] = {str: ("env",), list: ("env", index, "env")}
            path = places.get(type(config.env), ("env", "env"))
            forms = " (or 'gymnasium:<id>', or 'module:Class')"
            problems.append(Problem(path, f"no env is called {entry.env!r}{did_you_mean(entry.env, known)}{forms}"))
    if isinstance(config.policy, Local) and config.policy.model is not None:
        policy = msgspec.structs.replace(config.policy, model=_absolute(directory, config.policy.model))
        config = msgspec.structs.replace(config, policy=policy)
    if isinstance(config.tasks, str):
        file = _absolute(directory, config.tasks)
        if not file.endswith(ENDINGS):
            problems.append(Problem(("tasks",), f"found {config.tasks!r}, expected a list, or a .jsonl or .json file"))
        elif not os.path.isfile(file):  # noqa: PTH113 (which never raises)
            problems.append(Problem(("tasks",), f"no such file: {file!r}"))
        config = msgspec.structs.replace(config, tasks=file)
    return config, problems


def _absolute(directory: FilePath, path: str) -> str:
    return os.path.normpath(directory / path)


def _placed(places: dict[Path, Place], origins: dict[Path, Path]) -> dict[Path, Place]:
    return {**places, **{native: places[source] for native, source in origins.items() if source in places}}


def problems_text(where: str, problems: list[Problem], places: dict[Path, Place], origins: dict[Path, Path]) -> str:
    """The problems as an error's text, each with its place."""
    lines = [_line(problem, places, origins) for problem in dict.fromkeys(problems)]
    if len(lines) > 1:
        count = f"{len(lines)} problems" if len(lines) < MOST_PROBLEMS else f"{len(lines)} problems and more"
        return "\n  ".join([f"{where}: {count}", *lines])
    return f"{where}, {lines[0]}" if lines[0].startswith(("line ", "override ")) else f"{where}: {lines[0]}"


def _line(problem: Problem, places: dict[Path, Place], origins: dict[Path, Path]) -> str:
    source = _source(problem.path, origins)
    ours = "" if source == problem.path else f" (as {shown(problem.path)})"
    key = "" if problem.names_key or not source else f"{shown(source)}{ours}: "
    place, other = _place(source, places), _place(problem.beside, places)
    beside = "" if other is None else f" ({shown(problem.beside)} is from {other.where})"
    return f"{'' if place is None else f'{place.where}: '}{key}{problem.text}{beside}"


def _place(path: Path, places: dict[Path, Place]) -> Place | None:
    """Where a value was written, or else what it is in."""
    return next((places[path[:end]] for end in range(len(path), 0, -1) if path[:end] in places), None)


def _source(path: Path, origins: dict[Path, Path]) -> Path:
    """Under which key a value of ours was written."""
    for end in range(len(path), 0, -1):
        if path[:end] in origins:
            return (*origins[path[:end]], *path[end:])
    return path


def _hidden(value: Any, redacted: Any, path: Path) -> Iterator[Path]:
    """Where the two differ."""
    if isinstance(value, dict) and isinstance(redacted, dict):
        for (key, item), (shown_key, other) in zip(value.items(), redacted.items(), strict=True):
            yield from [(*path, shown_key)] if key != shown_key else _hidden(item, other, (*path, key))
    elif isinstance(value, list | tuple) and isinstance(redacted, list | tuple):
        for index, (item, other) in enumerate(zip(value, redacted, strict=True)):
            yield from _hidden(item, other, (*path, index))
    elif value != redacted:
        yield path
