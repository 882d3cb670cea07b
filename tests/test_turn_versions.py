"""How old a turn is: by the stamps of all replies that learn, live and from the journal, whatever is around them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

import asyncrollout as ar
from asyncrollout import BatchedPolicy, ChatAgent, Generation, Policy, Request
from tests import test_journal
from tests.test_journal import events
from tests.test_journal_trouble import break_off
from tests.test_policy_agents import Relay
from tests.test_weights import Weighty, rollouts


class Hiding:
    """Asks a policy that nobody else sees, and that hears of no new weights."""

    def __init__(self, model: Policy) -> None:
        self._model = model

    async def generate(self, request: Request) -> Generation:
        return await self._model.generate(request)


class Opaque:
    """An agent in which no other policy can be put."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def open(self, session: str, seed: int) -> Any:
        return ChatAgent(self.policy).open(session, seed)


class Rewriting:
    """Its reply is one of its own, without a version."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner

    async def generate(self, request: Request) -> Generation:
        return Generation((await self.inner.generate(request)).text.strip())


@asynccontextmanager
async def batched() -> AsyncIterator[BatchedPolicy]:
    async with BatchedPolicy(lambda requests: ["go"] * len(requests)) as policy:
        yield policy


def opaque(policy: Policy) -> dict[str, Any]:
    return {"agent": Opaque(Hiding(policy))}


def hiding(policy: Policy) -> dict[str, Any]:
    return {"policy": Hiding(policy)}


def rewriting(policy: Policy) -> dict[str, Any]:
    return {"policy": Rewriting(policy)}


def cached(policy: Policy) -> dict[str, Any]:
    return {"policy": ar.cached(Rewriting(policy))}


@pytest.mark.parametrize("made", [hiding, opaque, rewriting, cached])
async def test_a_policy_beneath_another_counts_by_the_stamp_of_what_is_updated(
    made: Callable[[Policy], dict[str, Any]],
) -> None:
    async with batched() as model, rollouts(**made(model), group_size=2, max_lag=0) as source:
        async with source.weight_update(3):
            pass
        batch = await source.collect(groups=2)
    assert [trajectory.version for trajectory in batch.trajectories] == [3] * 4
    assert {turn.learning_version for trajectory in batch.trajectories for turn in trajectory.turns} == {3}


async def test_a_frozen_policy_behind_a_cache_makes_nothing_stale() -> None:
    agent = Relay(ar.cached(ar.frozen(Weighty())), Weighty())
    async with rollouts(agent=agent, max_lag=0) as source:
        async with source.weight_update(3):
            pass
        batch = await source.collect(groups=1)
    assert batch.groups[0].version == 3
    async with rollouts(ar.cached(ar.frozen(Weighty()))) as source:
        batch = await source.collect(groups=1)
    assert batch.groups[0].version is None


@dataclass(frozen=True)
class Team:
    """Two policies as one: the second one's reply is that of both, or a new one without a version."""

    policies: tuple[Policy, ...]
    rewrites: bool

    async def generate(self, request: Request) -> Generation:
        for policy in self.policies:
            generation = await policy.generate(request)
        return Generation(generation.text) if self.rewrites else generation


@pytest.mark.parametrize("kind", ["frozen", "rewritten"])
async def test_a_recorded_reply_is_as_old_as_when_it_was_given(tmp_path: Path, kind: str) -> None:
    """Of two policies in one, the second is frozen, or the reply has no version: the journal knows the first's."""

    def begun(last: Weighty, **options: Any) -> ar.Rollouts:
        second = ar.frozen(Weighty()) if kind == "frozen" else Weighty()
        team = Team((Weighty(), second), rewrites=kind == "rewritten")
        return test_journal.rollouts(tmp_path, agent=Relay(team, last), group_size=1, max_lag=None, **options)

    async def update_and_collect(source: ar.Rollouts) -> None:
        async with source.weight_update(3):
            pass
        await source.collect(groups=1)

    await break_off(begun(Weighty(go=anyio.Event())), update_and_collect)
    assert len(events(tmp_path, "turn")) == 1  # of the two
    async with begun(Weighty(), resume=True) as source:
        async with source.weight_update(5):
            pass
        (trajectory,) = (await source.collect(groups=1)).trajectories
    assert [turn.learning_version for turn in trajectory.turns] == [3] + [5] * (len(trajectory.turns) - 1)
