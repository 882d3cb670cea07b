"""A snapshot of `Rollouts`."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from asyncrollout.rollouts.delivery import Delivery
from asyncrollout.rollouts.engine import Engine
from asyncrollout.rollouts.episode.progress import POLICY, RESET, SCORE, STEP, Progress
from asyncrollout.rollouts.sampling.ledger import ENDS
from asyncrollout.rollouts.shards.shard_set import ShardStats
from asyncrollout.telemetry import Gauges
from asyncrollout.trajectories import DRAWN
from asyncrollout.types import PoolStats


class RolloutsStats(msgspec.Struct, frozen=True):
    """`dropped` counts groups by reason, `stale_groups` those that grew too old; `ends` rollouts by how they ended.

    `keep_rate` is the estimate that admission goes by: of the last 256 groups judged, (kept + 1) / (judged + 1), and at
    least 0.02. The share of all groups that were kept is `figures().keep_rate`.
    `dispatched`, `open_rollouts` and `ends` are the ledger's, and include evaluations.
    """

    version: int
    drawn_groups: int
    playing_groups: int
    buffered_groups: int
    keep_rate: float
    dropped: dict[str, int]
    dispatched: int
    open_rollouts: int
    ends: dict[str, int]
    stale_groups: int
    pool: PoolStats
    shards: tuple[ShardStats, ...] = ()


def read_stats(engine: Engine, delivery: Delivery) -> RolloutsStats:
    return RolloutsStats(
        version=engine.control.version,
        drawn_groups=engine.source.count,
        playing_groups=delivery.playing_groups,
        buffered_groups=delivery.buffered_groups,
        keep_rate=engine.keep_rate.now,
        dropped=dict(engine.keep_rate.dropped),
        dispatched=engine.ledger.dispatched_count,
        open_rollouts=len(engine.ledger.open),
        ends={end: engine.ledger.ends[end] for end in ENDS},
        stale_groups=engine.batch_stats.stale_groups,
        pool=engine.pool.stats() if engine.shards is None else engine.shards.pool_stats(engine.pool.stats()),
        shards=() if engine.shards is None else engine.shards.stats(),
    )


def read_gauges(engine: Engine, delivery: Delivery, wanted: tuple[int, int] | None) -> Gauges:
    """The same as gauges, for the metrics of a run; `wanted` are its batches, and the groups in each."""
    stats, ledger = read_stats(engine, delivery), engine.ledger
    training = (progress for uid, progress in ledger.open.items() if uid.startswith(DRAWN))
    waiting = waiting_for(training)
    return Gauges(
        wanted_batches=None if wanted is None else wanted[0],
        wanted_groups=None if wanted is None else wanted[0] * wanted[1],
        playing=stats.playing_groups,
        buffered=stats.buffered_groups,
        waiting_policy=waiting["policy"],
        waiting_env=waiting["env"],
        waiting_score=waiting["score"],
        waiting_else=waiting["else"],
        queued=stats.pool.queued,
        restarts=stats.pool.restarts,
        version=stats.version,
        shards=len(ready := [shard for shard in stats.shards if shard.state == "ready"]),
        nodes=len({shard.node for shard in ready}),
    )


def waiting_for(rollouts: Iterable[Progress]) -> Counter[str]:
    """How many of them wait for the `policy`, the `env`, their `score`, or something `else`."""
    return Counter(_kind_of_wait(progress.doing) for progress in rollouts)


def _kind_of_wait(doing: str) -> str:
    if doing == POLICY:
        return "policy"
    if doing in (RESET, STEP):
        return "env"
    if doing == SCORE:
        return "score"
    return "else" if doing else "over"
