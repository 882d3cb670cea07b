"""Batches in start order are what they were when whole groups waited for places: only who plays when has changed."""

import hashlib
import random
from typing import Any

import anyio
import pytest

from asyncrollout import Batch, ExhaustedError, Failures, Group, Request, Rollouts, ScriptedPolicy, Verdict
from asyncrollout.filters import BatchFilter
from tests.sampler_world import STEPS
from tests.virtual_time import run_virtually


async def reply(request: Request) -> str:
    """An action by the seed of the turn, after a time by its session; a few members fail, at first or always."""
    rng = random.Random(f"{request.session} {request.turn}")
    await anyio.sleep(rng.lognormvariate(0.0, 1.2))
    group, _, member = request.session.rpartition(".")
    fails = random.Random(f"fails {group}").random()
    if member == "0" and fails < 0.15 and (fails < 0.05 or request.session not in FAILED):
        FAILED.add(request.session)
        raise RuntimeError("no reply")
    assert request.sampling.seed is not None
    return str(request.sampling.seed % 3)


FAILED: set[str] = set()


def varies(group: Group) -> Verdict:
    return Verdict(len({*group.rewards.tolist()}) > 1, "constant")


def better_half(groups: Any) -> list[Verdict]:
    ranked = sorted(groups, key=lambda group: (-group.rewards.mean(), group.id))
    return [Verdict(group in ranked[: (len(ranked) + 1) // 2], "outranked") for group in groups]


PLAYED: dict[str, tuple[dict[str, Any], str, int]] = {
    "groups of 8": ({"group_size": 8, "max_in_flight": 32}, "batches", 5),
    "groups of 64": ({"group_size": 64, "max_in_flight": 64}, "batches", 3),
    "single rollouts": ({"group_size": 1, "max_in_flight": 7}, "batches", 9),
    "a filter": ({"group_size": 4, "max_in_flight": 24, "keep": varies, "max_lag": 2}, "batches", 6),
    "a batch filter": ({"group_size": 3, "max_in_flight": 9, "keep": BatchFilter(better_half)}, "batches", 4),
    "few draws, filled": (
        {"group_size": 2, "max_in_flight": 8, "keep": varies, "max_num_gen_batches": 1, "on_exhausted": "fill"},
        "batches", 4,
    ),
    "on policy": ({"group_size": 4, "max_in_flight": 16, "max_lag": 0, "order": "finish"}, "batches", 3),
    "collected": ({"group_size": 5, "max_in_flight": 20, "keep": varies, "order": "finish"}, "collect", 4),
    "some may fail": (
        {"group_size": 4, "max_in_flight": 12, "failures": Failures(retries=1, min_valid=2)}, "batches", 5,
    ),
    "tasks that end": ({"group_size": 3, "max_in_flight": 6, "tasks": [*range(17)]}, "batches", 4),
    "several envs": ({"group_size": 2, "max_in_flight": 10, "env": "shares"}, "batches", 6),
}  # fmt: skip

BEFORE = {
    "groups of 8": "4fd602fdb00e9f32",
    "groups of 64": "fd6e669448345fed",
    "single rollouts": "46437b739be1c1bc",
    "a filter": "5c14e8343b26c064",
    "a batch filter": "7280b5fd9b1e7ff6",
    "few draws, filled": "65997f16a98643a5",
    "on policy": "9d7edc2bdd15d329",
    "collected": "4b3734e8ec8523e6",
    "some may fail": "0140eab4811171aa",
    "tasks that end": "8cabed3ed87a9387",
    "several envs": "79b144d0ac28121e",
}
"""Recorded with the version before that gave places to single rollouts."""


def shown(batch: Batch) -> list[Any]:
    return [
        batch.index,
        [
            (
                group.id,
                group.tag,
                group.verdict and (group.verdict.keep, group.verdict.reason),
                [
                    (one.uid, one.seed, one.task, one.reward, one.stop_reason.value, [turn.reply for turn in one.turns])
                    for one in group.trajectories
                ],
            )
            for group in batch.groups
        ],
    ]


def digest(name: str) -> str:
    options, how, size = PLAYED[name]
    FAILED.clear()
    taken: list[Any] = []

    async def play() -> None:
        env = [{"env": STEPS, "tag": "a", "share": 3}, {"env": STEPS, "tag": "b"}] if "env" in options else STEPS
        given = {"order": "start", "seed": 11, **options, "env": env}
        async with Rollouts(policy=ScriptedPolicy(reply), **given) as source:
            stream = source.batches(size)
            for _ in range(6):
                try:
                    batch = await (source.collect(size) if how == "collect" else anext(stream))
                except (StopAsyncIteration, ExhaustedError) as error:
                    taken.append(type(error).__name__)
                    continue
                taken.append(shown(batch))
                await anyio.sleep(3.0)

    run_virtually(play)
    return hashlib.sha256(repr(taken).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", PLAYED)
def test_batches_in_start_order_are_those_of_before(name: str) -> None:
    assert digest(name) == BEFORE[name]
