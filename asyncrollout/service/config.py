"""The options of a service, in VAGEN's form."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BaseServiceConfig:
    """How many envs of a service work at a time."""

    max_workers: int = 10

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)
