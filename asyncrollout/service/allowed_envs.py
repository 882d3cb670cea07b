"""Which envs clients may open, and with which options."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec, find_env, is_import_path

_NAMES_OF_PATHS = ("path", "paths", "file", "files", "dir", "directory", "root")
_LONGEST = 250
_IMPORT_PATH = re.compile(r"[^\s:/]+:[^\W\d]\S*")  # module:attribute, and Gymnasium's module:namespace/Name-v0
_HARMLESS = bool | int | float | None
_OF_SERVERS = ("record", "worker", "beside")  # what `EnvPool.open` takes besides an env's own options
_SWITCHES = ("text", "expert")


def registered_env(name: str) -> EnvSpec:
    """The spec of a registered name; import paths are refused, because they run code."""
    if is_import_path(name):
        raise UsageError(f"env {name!r:.100} is an import path, and this server opens registered envs only")
    return find_env(name)


class Admission:
    """Admits the envs that `find` returns. Options that are paths must lie in `data_dir`, and are relative to it.

    Import paths among options and arguments are refused, too, unless `allow_import`.
    """

    def __init__(
        self,
        *,
        find: Callable[[str], EnvSpec] = registered_env,
        data_dir: str | os.PathLike[str] | None = None,
        allow_import: bool = False,
    ) -> None:
        self._find = find
        self._allow_import = allow_import
        self._data_dir = None if data_dir is None else Path(data_dir).resolve()
        if self._data_dir is not None and not self._data_dir.is_dir():
            raise UsageError(f"data_dir={str(data_dir)!r} is not a directory")

    def admit(self, name: Any, kwargs: Any) -> tuple[EnvSpec, dict[str, Any]]:
        """The spec and the options to open it with; a `UsageError` says what is refused."""
        if not isinstance(name, str):
            raise UsageError(f"the name of an env must be a text, not {name!r:.100}")
        if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
            raise UsageError(f"the options of env {name!r:.100} are not a dict: {kwargs!r:.100}")
        for key in kwargs.keys() & _OF_SERVERS:
            raise UsageError(f"env {name!r:.100}: {key} is not for clients of a server")
        for key in kwargs.keys() & _SWITCHES:
            if not isinstance(kwargs[key], bool):
                raise UsageError(f"env {name!r:.100}: {key}={kwargs[key]!r:.100} is neither true nor false")
        return self._find(name), {key: self.admit_value(key, value) for key, value in kwargs.items()}

    def admit_value(self, name: str, value: Any) -> Any:
        """An option or argument in the form that the env may get."""
        if isinstance(value, Mapping):
            inner = {key: name if _names_path(name) else str(key) for key in value}
            return {key: self.admit_value(inner[key], item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return type(value)(self.admit_value(name, item) for item in value)
        if not isinstance(value, str):
            if _names_path(name) and not isinstance(value, _HARMLESS):  # bytes, too, open files
                raise UsageError(f"{name}={value!r:.100} is not a path: write it as a text")
            return value
        if _IMPORT_PATH.fullmatch(value) and not self._allow_import:
            raise UsageError(f"{name}={value[:100]!r} is an import path, and this server imports nothing for clients")
        return str(self._inside(name, value)) if _names_path(name) else value

    def _inside(self, name: str, value: str) -> Path:
        given = f"{name}={value[:100]!r}"
        if self._data_dir is None:
            raise UsageError(f"{given}: this server reads no files for clients, unless it is started with --data-dir")
        if "\0" in value or len(value) > _LONGEST:
            raise UsageError(f"{given} is not a path")
        try:
            path = (self._data_dir / value).resolve()
        except (OSError, RuntimeError) as error:
            raise UsageError(f"{given} is not a path: {error}") from error
        if not path.is_relative_to(self._data_dir):
            raise UsageError(f"{given} lies outside the data directory of this server")
        return path


def _names_path(name: str) -> bool:
    return name.rpartition("_")[2].lower() in _NAMES_OF_PATHS
