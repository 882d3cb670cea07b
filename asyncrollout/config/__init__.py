"""A run's configuration: one YAML file, decoded strictly into typed structures. Names load when they are first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrollout.config.reading import parse_config as parse_config
    from asyncrollout.config.reading import read_config as read_config
    from asyncrollout.config.reading import to_redacted_yaml as to_redacted_yaml
    from asyncrollout.config.reading import to_yaml as to_yaml
    from asyncrollout.config.schema import Config as Config
    from asyncrollout.config.tasks import read_tasks as read_tasks

_HOME = {
    "Config": "schema",
    "parse_config": "reading",
    "read_config": "reading",
    "read_tasks": "tasks",
    "to_redacted_yaml": "reading",
    "to_yaml": "reading",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"asyncrollout.config.{_HOME[name]}"), name)
    raise AttributeError(f"module 'asyncrollout.config' has no attribute {name!r}")
