"""Configurations as other systems hand them around: dicts, objects with attributes, OmegaConf's."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """Mappings, sequences, objects with attributes and enums, all the way down, as dicts, lists and values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(inner) for inner in value]
    if hasattr(value, "__dict__") and not callable(value):
        return {key: plain(inner) for key, inner in vars(value).items() if not key.startswith("_")}
    return value
