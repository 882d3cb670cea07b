"""What a service is made with, in the form of VAGEN."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BaseServiceConfig:
    """How many envs a service has at work at a time."""

    max_workers: int = 10

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)
