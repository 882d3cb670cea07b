"""VAGEN's interfaces: in a trainer, change the import line.

Names load when they are first used: a worker that runs the trainer's script again needs no HTTP client.
"""

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "BaseServiceConfig": "asyncrollout.service.config",
    "BatchEnvClient": "asyncrollout.dropin.vagen.client",
    "EnvService": "asyncrollout.dropin.vagen.service",
    "VideoEnvService": "asyncrollout.dropin.vagen.service",
}

__all__ = [*_HOME]  # noqa: PLE0604

if TYPE_CHECKING:
    from asyncrollout.dropin.vagen.client import BatchEnvClient as BatchEnvClient
    from asyncrollout.dropin.vagen.service import EnvService as EnvService
    from asyncrollout.dropin.vagen.service import VideoEnvService as VideoEnvService
    from asyncrollout.service.config import BaseServiceConfig as BaseServiceConfig


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
