"""The configuration of a meta-RL run, as its YAML file has it."""

import difflib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from asyncrollout.config.document import load
from asyncrollout.errors import UsageError

Count = Annotated[int, msgspec.Meta(ge=1)]


class _EnvSettings(msgspec.Struct, kw_only=True):
    env_type: str
    env_name: str
    max_rollouts_per_task: Count
    num_train_tasks: Count | None = None
    num_eval_tasks: Annotated[int, msgspec.Meta(ge=0)] | None = None
    num_parallel_workers: Annotated[int, msgspec.Meta(ge=0)] = 4


class _TrainSettings(msgspec.Struct, kw_only=True):
    num_rollouts_per_iter: Count


_PARTS: dict[str, type[msgspec.Struct]] = {"env": _EnvSettings, "train": _TrainSettings}
_CLOSE = 0.8


def read_settings(source: str | Path) -> dict[str, Any]:
    """A file, or the text of one, as a dict: `settings["env"]` is what `init_env` takes.

    Unknown keys are kept; one that is close to a known key is an error.
    """
    is_text = isinstance(source, str) and "\n" in source
    where = "settings" if is_text else str(source)
    try:
        text = str(source) if is_text else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror}") from None
    settings = load(text, where).value
    if not isinstance(settings, dict) or "env" not in settings:
        raise UsageError(f"{where}: the part 'env' is missing: add a line 'env:' with env_name below it")
    for part, kind in _PARTS.items():
        if part in settings:
            settings[part] = _checked(settings[part], kind, f"{where}: {part}")
    return settings


def _checked(values: Any, kind: type[msgspec.Struct], where: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UsageError(f"{where}: found {values!r:.100}, expected a mapping of keys to values")
    known = kind.__struct_fields__
    for key in values:
        if key not in known and (close := difflib.get_close_matches(str(key), known, 1, _CLOSE)):
            raise UsageError(f"{where}.{key}: no such key: did you mean {close[0]!r}?")
    try:
        read = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from None
    return {**values, **msgspec.structs.asdict(read)}
