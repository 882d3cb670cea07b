"""How `Rollouts` stand at one moment."""

import msgspec

from asyncrollout.types import PoolStats


class RolloutsStats(msgspec.Struct, frozen=True):
    """`dropped` counts groups by reason; `ends` counts rollouts by how they ended."""

    version: int
    drawn_groups: int
    playing_groups: int
    buffered_groups: int
    keep_rate: float
    dropped: dict[str, int]
    dispatched: int
    open_rollouts: int
    ends: dict[str, int]
    pool: PoolStats
