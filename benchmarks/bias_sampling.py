"""Episodes of lognormal lengths, played through `Rollouts` in virtual time: which of them reach the trainer.

A long episode takes longer, fails more often if so chosen, and gains less. What it would come to without a sampler
follows from its seed alone.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import anyio
import numpy as np

import asyncrollout as ar
from asyncrollout.seeding import sampling_seed, training_seed
from tests.virtual_time import run_virtually

SEED = 0
GROUPS, GROUP_SIZE = 16, 2  # of a batch, of a group
IN_FLIGHT = 64
MEDIAN, SIGMA, LONGEST = 3.0, 1.0, 60  # turns
TURN_LIMIT, SECONDS_LIMIT = 12, 18.0
SETTLED = 0.7  # of the draws; the rest may still be under way
KEEP_RATE = 0.3
TRAINING = 5.0  # seconds; a turn takes one on average
FAILS, FAILS_IN_A_TURN = 0.1, 0.05

Kind = Literal["none", "by chance", "by length", "batch"]
Limit = Literal["none", "turns", "seconds"]
Failing = Literal["none", "by chance", "by length"]


class Setting(NamedTuple):
    """How it is sampled."""

    max_lag: int | None
    order: Literal["finish", "start"]
    updates: bool
    keep: Kind = "none"
    limit: Limit = "none"
    failing: Failing = "none"


class Episode(NamedTuple):
    """What a task comes to if it is played to its end."""

    length: float
    is_long: float
    """Whether it has more than three medians of turns."""
    reward: float


@cache
def episode(seed: int, member: int) -> Episode:
    rng = random.Random(f"{seed}")
    scale = rng.lognormvariate(0, 0.8 * SIGMA)  # the task is hard for all of its group
    own = random.Random(f"{seed} {member}")
    length = min(max(round(MEDIAN * scale * own.lognormvariate(0, 0.6 * SIGMA)), 1), LONGEST)
    return Episode(length, length > 3 * MEDIAN, float(own.random() < MEDIAN / (MEDIAN + length)))


def played(seed: int, member: int, setting: Setting) -> Episode:
    """The same as it is played, without a sampler: a turn limit belongs to the task."""
    whole = episode(seed, member)
    if setting.limit != "turns" or whole.length <= TURN_LIMIT:
        return whole
    return Episode(TURN_LIMIT, TURN_LIMIT > 3 * MEDIAN, 0.0)


class Sampled(NamedTuple):
    """One row of numbers for each group that was drawn, the means of its members; and what became of it."""

    population: Any  # groups x 3
    is_eligible: Any
    """Whether the filter keeps it; 0.5 if a filter that keeps one half never came to judge it."""
    is_delivered: Any


class Lengthy:
    """Lasts as long as its seed says, and gives its reward in the end."""

    plays_by_chance = True  # members differ

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.episode, self.turn = episode(seed, options["member"]), 0
        return "begun", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        is_over = self.turn >= self.episode.length
        return f"turn {self.turn}", self.episode.reward * is_over, is_over, False, {}


LENGTHY = ar.EnvSpec(name="lengthy", factory="benchmarks.bias_sampling:Lengthy", runs="light")


class Replies:
    """Take a second each on average; some fail."""

    def __init__(self, failing: Failing) -> None:
        self._failing = failing
        self._asked = 0

    async def generate(self, request: ar.Request) -> ar.Generation:
        self._asked += 1
        rng = random.Random(f"{request.session} {request.turn} {self._asked}")
        await anyio.sleep(rng.expovariate(1.0))
        chance = {"none": 0.0, "by chance": FAILS if request.turn == 0 else 0.0, "by length": FAILS_IN_A_TURN}
        if rng.random() < chance[self._failing]:
            raise RuntimeError("no reply")
        return ar.Generation("on")


def _is_long(seed: int) -> bool:
    return float(np.mean([episode(seed, member).length for member in range(GROUP_SIZE)])) > MEDIAN


def _score(seed: int) -> float:
    """What filters go by that do not care for lengths."""
    return sampling_seed(seed, "score") / 2**31


class Filter:
    """Judges by chance, or by length, or the better half of a batch; and knows what it has said."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._halves: dict[int, bool] = {}

    @property
    def hook(self) -> Any:
        return {"none": None, "batch": ar.filters.BatchFilter(self._best_half)}.get(self.kind, self._judge)

    def weight(self, seed: int) -> float:
        """Whether it keeps the group, as far as that is known."""
        if self.kind == "batch":
            return float(self._halves.get(seed, 0.5))
        return float(self.kind == "none" or self._keeps(seed))

    def _keeps(self, seed: int) -> bool:
        return _score(seed) < KEEP_RATE if self.kind == "by chance" else _is_long(seed)

    def _judge(self, group: ar.Group) -> ar.Verdict:
        return ar.Verdict(self._keeps(group.trajectories[0].seed), self.kind)

    def _best_half(self, groups: Sequence[ar.Group]) -> list[ar.Verdict]:
        seeds = [group.trajectories[0].seed for group in groups]
        median = np.median([_score(seed) for seed in seeds])
        self._halves |= {seed: bool(_score(seed) >= median) for seed in seeds}
        return [ar.Verdict(self._halves[seed], "outranked") for seed in seeds]


def sample(setting: Setting, batches: int) -> Sampled:
    """So many batches, with a trainer that takes its time after each."""
    return run_virtually(lambda: _sample(setting, batches), patience=600.0)


async def _sample(setting: Setting, batches: int) -> Sampled:
    limits = {"none": ar.Limits(), "turns": ar.Limits(turns=TURN_LIMIT), "seconds": ar.Limits(seconds=SECONDS_LIMIT)}
    delivered: set[int] = set()
    keep = Filter(setting.keep)
    async with ar.Rollouts(
        LENGTHY,
        policy=Replies(setting.failing),
        group_size=GROUP_SIZE,
        keep=keep.hook,
        seed=SEED,
        limits=limits[setting.limit],
        order=setting.order,
        max_in_flight=IN_FLIGHT,
        max_lag=setting.max_lag,
        max_num_gen_batches=None,
    ) as rollouts:
        async for batch in rollouts.batches(groups=GROUPS):
            delivered |= {int(group.id[1:]) for group in batch.groups}
            for one in batch.trajectories:
                expected = played(one.seed, one.member, setting)
                assert (len(one.turns), one.reward) == (expected.length, expected.reward), one.uid
            if batch.index + 1 == batches:
                break
            await anyio.sleep(TRAINING)
            if setting.updates:
                async with rollouts.weight_update(batch.index + 1):
                    pass
        drawn = int(SETTLED * rollouts.stats().drawn_groups)
    seeds = [training_seed(SEED, LENGTHY.name, index) for index in range(drawn)]
    groups = [[played(seed, member, setting) for member in range(GROUP_SIZE)] for seed in seeds]
    return Sampled(
        np.array([np.mean(members, axis=0) for members in groups]),
        np.array([keep.weight(seed) for seed in seeds]),
        np.array([float(index in delivered) for index in range(drawn)]),
    )
