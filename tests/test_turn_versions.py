"""How old a turn is: by the stamps of all replies that learn, live and from the journal, whatever is around them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

import asyncrollout as ar
from asyncrollout import BatchedPolicy, ChatAgent, Generation, Policy, Request, StalledError
from tests import test_journal
from tests.test_journal import events
from tests.test_journal_trouble import break_off
from tests.test_policy_agents import Relay
from tests.test_weights import Pausable, Weighty, rollouts
from tests.virtual_time import run_virtually
from tests.waiting import all_tasks_blocked


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
    async with batched() as model, rollouts(**made(model), group_size=2) as source:
        async with source.weight_update(3):
            pass
        batch = await source.collect(groups=2)
    assert [trajectory.version for trajectory in batch.trajectories] == [3] * 4
    assert {turn.learning_version for trajectory in batch.trajectories for turn in trajectory.turns} == {3}


async def test_a_frozen_policy_behind_a_cache_makes_nothing_stale() -> None:
    agent = Relay(ar.cached(ar.frozen(Weighty())), Weighty())
    async with rollouts(agent=agent) as source:
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


async def test_an_evaluation_names_all_versions_that_replied_within_a_turn() -> None:
    """Each turn has a reply of the old weights and one of the new."""
    may_reply = anyio.Event()
    agent = Relay(Weighty(), Weighty(go=may_reply))
    found: list[tuple[int, ...]] = []

    async def evaluate() -> None:
        found.append((await source.evaluate(2)).versions)

    async with rollouts(agent=agent, limits=ar.Limits(turns=1)) as source:
        with capture_logs() as logs:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(evaluate)
                await all_tasks_blocked()
                async with source.weight_update(3, mode="abort"):
                    may_reply.set()
    assert found == [(0, 3)]
    assert [log["versions"] for log in logs if log["event"] == "weights_changed_within_evaluation"] == [(0, 3)]


class NeverResuming(Pausable):
    async def resume(self, version: int | None) -> None:
        await anyio.sleep_forever()


@pytest.mark.parametrize("fails", [False, True])
def test_an_update_whose_policy_never_resumes_is_an_error(*, fails: bool) -> None:
    async def update() -> None:
        async with rollouts(NeverResuming()) as source, source.weight_update(1):
            if fails:
                raise ValueError("the weights are lost")

    error, says = (ValueError, "the weights are lost") if fails else (StalledError, "has not resumed within 60 s")
    with capture_logs() as logs, pytest.raises(error, match=says):
        run_virtually(update)
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["policy_not_resumed"] * fails


class OwnVersion(Pausable):
    """Stamps the replies of a policy that hears of no new weights, and waits for nothing."""

    def __init__(self, model: Policy) -> None:
        self._model = model

    async def generate(self, request: Request) -> Generation:
        return msgspec.structs.replace(await self._model.generate(request), version=self.version)


@pytest.mark.parametrize("made", [lambda policy: policy, ar.cached])
async def test_the_stamp_of_a_policy_with_its_own_pause_counts(made: Callable[[Policy], Policy]) -> None:
    async with batched() as model, rollouts(made(OwnVersion(model))) as source:
        async with source.weight_update(3):
            pass
        batch = await source.collect(groups=1)
    assert [turn.learning_version for turn in batch.trajectories[0].turns] == [3] * len(batch.trajectories[0].turns)


async def test_an_older_reply_of_a_policy_with_its_own_pause_counts() -> None:
    may_reply = anyio.Event()
    agent = Relay(OwnVersion(Weighty()), Weighty(go=may_reply))
    async with rollouts(agent=agent, limits=ar.Limits(turns=1)) as source, anyio.create_task_group() as tasks:
        batches: list[ar.Batch] = []

        async def collect() -> None:
            batches.append(await source.collect(groups=1))

        tasks.start_soon(collect)
        await all_tasks_blocked()
        async with source.weight_update(3, mode="abort"):
            may_reply.set()
    (turn,) = batches[0].trajectories[0].turns
    assert (turn.version, turn.oldest_version) == (3, 0)
