"""Dynamic sampling as `bench_rollouts.py` measures it: what is delivered, what is wasted, what depends on timing."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import numpy as np

import asyncrollout as ar
from asyncrollout.seeding import training_seed
from benchmarks.rollout_envs import plan

GROUPS = 16
GROUP_SIZE = 2
SEED = 0
MEAN = 0.02  # seconds
TRAINING = 0.05  # seconds


class Sampled(NamedTuple):
    """What came of a run."""

    batches: int
    sizes: set[int]
    delivered: int
    distinct: int
    keep_rate: float
    waste: float  # of all rollouts, those cancelled at the end included
    mean_length: float
    population: float  # the mean length of all groups that were drawn and are to be kept
    balanced: bool

    @property
    def asked(self) -> int:
        return self.batches * GROUPS

    @property
    def exact(self) -> bool:
        return self.sizes == {GROUPS} and self.delivered == self.distinct == self.asked and self.balanced

    @property
    def bias(self) -> float:
        return self.mean_length / self.population - 1


def policy(latency_seed: int) -> ar.ScriptedPolicy:
    """Says something else in each turn of each rollout, after a time that depends on `latency_seed`, too."""

    async def reply(request: ar.Request) -> str:
        await anyio.sleep(random.Random(f"{latency_seed}-{request.sampling.seed}").expovariate(1 / MEAN))
        return f"{request.sampling.seed}"

    return ar.ScriptedPolicy(reply)


@asynccontextmanager
async def opened(workers: int | None, latency_seed: int, **options: Any) -> AsyncIterator[ar.Rollouts]:
    """Rollouts on so many worker processes; None is the event loop alone."""
    spec = ar.EnvSpec(
        name="uneven", factory="benchmarks.rollout_envs:Uneven", runs="light" if workers is None else "cpu"
    )
    async with ar.Rollouts(
        spec,
        policy=policy(latency_seed),
        group_size=GROUP_SIZE,
        keep=ar.filters.reward_varies,
        seed=SEED,
        workers=workers,
        **options,
    ) as rollouts:
        yield rollouts


async def in_finish_order(batches: int, *, new_weights: bool) -> Sampled:
    """Many batches; with new weights after each one, groups may become stale."""
    groups: list[ar.Group] = []
    sizes = set()
    async with opened(None, 0) as rollouts:
        async for batch in rollouts.batches(groups=GROUPS):
            groups += batch.groups
            sizes.add(len(batch.groups))
            if batch.index + 1 == batches:
                break
            if new_weights:
                await anyio.sleep(TRAINING)
                async with rollouts.weight_update(batch.index + 1):
                    pass
        drawn = rollouts.stats().drawn_groups
    plans = [plan(training_seed(SEED, "uneven", index)) for index in range(drawn)]
    ledger = rollouts.ledger
    return Sampled(
        batches,
        sizes,
        len(groups),
        len({group.id for group in groups}),
        keep_rate=float(np.mean([kept for _, kept in plans])),
        waste=(ledger.ends["cancelled"] + ledger.ends["stale"]) / ledger.dispatched_count,
        mean_length=float(np.mean([len(group.trajectories[0].turns) for group in groups])),
        population=float(np.mean([length for length, kept in plans if kept])),
        balanced=ledger.balanced and not ledger.open,
    )


async def in_start_order(batches: int, workers: int | None, latency_seed: int) -> list[Any]:
    """All that was seen, said and gained in the first batches."""
    reported = []
    async with opened(workers, latency_seed, order="start") as rollouts:
        async for batch in rollouts.batches(groups=GROUPS):
            reported.append([(group.id, [_told(member) for member in group.trajectories]) for group in batch.groups])
            if len(reported) == batches:
                return reported
    raise AssertionError("the batches came to an end")


def _told(trajectory: ar.Trajectory) -> list[Any]:
    turns = [(turn.observation, turn.reply, turn.reward) for turn in trajectory.turns]
    return [trajectory.uid, trajectory.seed, trajectory.final, trajectory.messages, turns]
