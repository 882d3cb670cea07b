"""Agents of any class that show their policies: replies recorded, weights updated, runs resumed without new calls."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

import asyncrollout as ar
from asyncrollout import ChatAgent, Generation, Move, Outcome, Policy, PolicyAgent, Request, Sampling, UsageError
from asyncrollout.journal.recorded_run import read_run
from asyncrollout.protocols import policies_of, replace_policies
from asyncrollout.seeding import sampling_seed
from tests import test_journal, test_weights
from tests.test_journal import events
from tests.test_journal_trouble import Stopping, break_off
from tests.test_rollouts import Model, transcripts
from tests.test_weights import Weighty
from tests.waiting import all_tasks_blocked


class Plain:
    """A plain class, whose policy is in none of the places where one would look for it."""

    def __init__(self, policy: Policy) -> None:
        self._model = policy

    def policies(self) -> Sequence[Policy]:
        return [self._model]

    def with_policies(self, policies: Sequence[Policy]) -> "Plain":
        return type(self)(*policies)

    def open(self, session: str, seed: int) -> Any:
        return ChatAgent(self._model).open(session, seed)


class Pair:
    """Asks both of its policies the same at once, and plays what they say together."""

    asks_once = True

    def __init__(self, planner: Policy, actor: Policy) -> None:
        self._planner, self._actor = planner, actor

    def policies(self) -> Sequence[Policy]:
        return [self._planner, self._actor]

    def with_policies(self, policies: Sequence[Policy]) -> "Pair":
        return Pair(*policies)

    def open(self, session: str, seed: int) -> "PairPlayer":
        return PairPlayer(self.policies(), session, seed)


class PairPlayer:
    def __init__(self, policies: Sequence[Policy], session: str, seed: int) -> None:
        self.messages: list[dict[str, Any]] = []
        self._policies = policies
        self._session = session
        self._seed = seed
        self._turn = 0

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        sampling = Sampling(seed=sampling_seed(self._seed, self._turn))
        messages = [{"role": "user", "content": outcome.observation.text}]
        request = Request(messages, sampling=sampling, session=self._session, turn=self._turn)
        replies: dict[int, Generation] = {}

        async def ask(place: int) -> None:
            replies[place] = await self._policies[place].generate(request)

        async with anyio.create_task_group() as asking:
            for place in range(2):
                asking.start_soon(ask, place)
        self._turn += 1
        plan, action = replies[0], replies[1]
        return Move(f"{action.text} as {plan.text} says", action)


class Named(Stopping):
    """Says who it is, after so many turns of the loop."""

    def __init__(self, name: str, waits: int = 0, turn: int = 10**6) -> None:
        super().__init__(turn)
        self._name = name
        self._waits = waits

    async def generate(self, request: Request) -> Generation:
        for _ in range(self._waits):
            await anyio.lowlevel.checkpoint()
        generation = await super().generate(request)
        return Generation(f"{generation.text} {self._name}")


async def test_plain_agent_that_shows_its_policy_is_resumed_without_asking_again(tmp_path: Path) -> None:
    async with test_journal.rollouts(tmp_path / "whole", agent=Plain(Model())) as source:
        whole = transcripts((await source.collect(groups=2)).groups)
    with capture_logs() as logs:
        broken = test_journal.rollouts(tmp_path / "run", agent=Plain(Stopping(1)))
        await break_off(broken, lambda source: source.collect(groups=2))
    assert logs == []
    before = len(events(tmp_path / "run", "turn"))
    model = Model(spread=9)
    async with test_journal.rollouts(tmp_path / "run", agent=Plain(model), resume=True) as source:
        assert transcripts((await source.collect(groups=2)).groups) == whole
    assert before == 4
    assert model.calls == sum(len(replies) for _, group in whole for replies in group) - before
    assert not any("policy" in event for event in events(tmp_path / "run", "turn"))


async def test_replies_of_two_policies_that_are_asked_the_same_are_not_mixed_up(tmp_path: Path) -> None:
    def played(groups: list[ar.Group]) -> list[Any]:
        return [[turn.action for turn in one.turns] for group in groups for one in group.trajectories]

    async with test_journal.rollouts(tmp_path / "whole", agent=Pair(Named("planner"), Named("actor"))) as source:
        whole = await source.collect(groups=2)
    # the actor is the first to answer here, and both of them stop in the second turn
    pair = Pair(Named("planner", waits=9, turn=1), Named("actor", turn=1))
    await break_off(test_journal.rollouts(tmp_path / "run", agent=pair), lambda source: source.collect(groups=2))
    assert {one.turns for one in read_run(tmp_path / "run").in_flight.values()} == {1}  # with two replies each
    places = [event.get("policy", 0) for event in events(tmp_path / "run", "turn")]
    assert sorted(places) == [0] * 4 + [1] * 4
    assert places[0] == 1
    planner, actor = Named("planner"), Named("actor")
    async with test_journal.rollouts(tmp_path / "run", agent=Pair(planner, actor), resume=True) as source:
        batch = await source.collect(groups=2)
    assert transcripts(batch.groups) == transcripts(whole.groups)
    assert played(batch.groups) == played(whole.groups)
    turns = sum(len(one.turns) for one in whole.trajectories)
    assert planner.calls == actor.calls == turns - 4


async def test_policies_that_change_places_are_refused(tmp_path: Path) -> None:
    class Served(Named):
        def __init__(self, model: str) -> None:
            super().__init__(model, turn=1)
            self._model = model

    pair = Pair(Served("large"), Served("small"))
    await break_off(test_journal.rollouts(tmp_path, agent=pair), lambda source: source.collect(groups=1))
    with pytest.raises(UsageError, match="cannot be resumed with other settings: policy="):
        async with test_journal.rollouts(tmp_path, agent=Pair(Served("small"), Served("large")), resume=True):
            pass


async def test_policies_of_an_agent_are_updated_together() -> None:
    planner, actor = Weighty(), Weighty()
    async with test_weights.rollouts(agent=Pair(planner, actor), max_lag=0) as source:
        for version in (1, 2):
            async with source.weight_update(version):
                assert planner.running == actor.running == 0
                await planner.push(version)
                await actor.push(version)
            batch = await source.collect(groups=2)
            turns = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
            assert {(turn.reply, turn.version) for turn in turns} == {(f"go {version}", version)}
        assert source.version == 2
    assert planner.torn == actor.torn == 0


class Relay:
    """Asks its planner, then its actor; the move has the actor's reply alone."""

    def __init__(self, planner: Policy, actor: Policy) -> None:
        self._planner, self._actor = planner, actor

    def policies(self) -> Sequence[Policy]:
        return [self._planner, self._actor]

    def with_policies(self, policies: Sequence[Policy]) -> "Relay":
        return Relay(*policies)

    def open(self, session: str, seed: int) -> "RelayPlayer":
        return RelayPlayer(self.policies(), session)


class RelayPlayer:
    def __init__(self, policies: Sequence[Policy], session: str) -> None:
        self.messages: list[dict[str, Any]] = []
        self._policies = policies
        self._session = session
        self._turn = 0

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        request = Request([{"role": "user", "content": "go"}], session=self._session, turn=self._turn)
        for policy in self._policies:
            generation = await policy.generate(request)
        self._turn += 1
        return Move(generation.text, generation)


@pytest.mark.parametrize("kind", ["plain", "cached", "frozen"])
async def test_a_turn_of_several_replies_is_as_old_as_the_oldest_of_them(tmp_path: Path, kind: str) -> None:
    planner, actor = Weighty(), Weighty()
    asked = anyio.Event()
    actor_may_go = anyio.Event()

    class Second:
        """The agent's second policy: not asked before weights have changed."""

        async def generate(self, request: Request) -> Generation:
            asked.set()
            await actor_may_go.wait()
            return await actor.generate(request)

    first: Policy = planner
    if kind != "plain":
        first = ar.cached(planner) if kind == "cached" else ar.frozen(planner)
    agent = Relay(first, Second())
    async with test_journal.rollouts(tmp_path, agent=agent, group_size=1, max_lag=None) as source:
        async with anyio.create_task_group() as playing:
            batches: list[ar.Batch] = []

            async def collect() -> None:
                batches.append(await source.collect(groups=1))

            playing.start_soon(collect)
            await asked.wait()
            async with source.weight_update(3, mode="abort"):
                pass
            actor_may_go.set()
        (trajectory,) = batches[0].trajectories
    oldest = 3 if kind == "frozen" else 0
    assert {turn.version for turn in trajectory.turns} == {3}  # the reply that is played is the second one
    assert [turn.learning_version for turn in trajectory.turns] == [oldest] + [3] * (len(trajectory.turns) - 1)
    assert trajectory.version == oldest
    assert len(trajectory.turns) > 1


async def test_a_recorded_reply_counts_with_its_own_version(tmp_path: Path) -> None:
    def resumed(actor: Weighty, **options: Any) -> ar.Rollouts:
        agent = Relay(Weighty(), actor)
        return test_journal.rollouts(tmp_path, agent=agent, group_size=1, max_lag=None, **options)

    async with resumed(Weighty(go=anyio.Event())) as source, anyio.create_task_group() as tasks:
        tasks.start_soon(source.collect, 1)
        await all_tasks_blocked()
        async with source.weight_update(3, mode="abort"):
            pass
        await all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert len(events(tmp_path, "turn")) == 1  # of the planner
    async with resumed(Weighty(), resume=True) as source:
        (trajectory,) = (await source.collect(groups=1)).trajectories
    assert {turn.version for turn in trajectory.turns} == {3}
    assert [turn.learning_version for turn in trajectory.turns] == [0] + [3] * (len(trajectory.turns) - 1)


async def test_one_policy_of_an_agent_may_be_frozen() -> None:
    judge, actor = Weighty(), Weighty()
    async with test_weights.rollouts(agent=Pair(ar.frozen(judge), actor), max_lag=0) as source:
        async with source.weight_update(7):
            await actor.push(7)
        batch = await source.collect(groups=1)
    assert batch.groups[0].version == 7
    with pytest.raises(UsageError, match="both as a frozen part and as one that learns"):
        test_weights.rollouts(agent=Pair(ar.frozen(actor), actor))


async def test_weights_of_a_plain_agent_are_known_when_a_run_is_resumed(tmp_path: Path) -> None:
    async with test_journal.rollouts(tmp_path, agent=Plain(Model()), max_lag=0) as source:
        async with source.weight_update(4):
            pass
        await source.collect(groups=1)
    async with test_journal.rollouts(tmp_path, agent=Plain(Model()), max_lag=0, resume=True) as source:
        assert source.version == 4
        assert (await source.collect(groups=1)).groups[0].version == 4


async def test_policies_that_an_agent_shows_are_opened_once() -> None:
    class Opened(Model):
        opened = 0

        async def __aenter__(self) -> None:
            self.opened += 1

        async def __aexit__(self, *_: object) -> None: ...

    model = Opened()
    async with test_weights.rollouts(agent=Pair(model, model)) as source:
        assert model.opened == 1
        async with source.weight_update(1):
            pass
        assert (await source.collect(groups=1)).groups[0].version == 1


async def test_a_run_knows_its_agents_policies(tmp_path: Path) -> None:
    class Other(Plain): ...

    async with test_journal.rollouts(tmp_path, agent=Plain(Model())) as source:
        await source.collect(groups=1)
    with pytest.raises(UsageError, match="agent='Other'"):
        async with test_journal.rollouts(tmp_path, agent=Other(Model()), resume=True):
            pass
    with pytest.raises(UsageError, match="ScriptedPolicy"):
        async with test_journal.rollouts(tmp_path, agent=Plain(ar.ScriptedPolicy(["go 1"])), resume=True):
            pass


def test_agents_that_do_not_keep_to_it() -> None:
    class Stubborn(Plain):
        def with_policies(self, policies: Sequence[Policy]) -> Plain:
            return self

    class Wrong(Plain):
        def with_policies(self, policies: Sequence[Policy]) -> Any:
            return policies

    for agent, message in ((Stubborn(Model()), "those that it was given"), (Wrong(Model()), "must return an agent")):
        with pytest.raises(UsageError, match=message):
            test_weights.rollouts(agent=agent)
    nothing: Any = 7
    with pytest.raises(UsageError, match=r"Plain.policies\(\): 7 has no generate"):
        test_weights.rollouts(agent=Plain(nothing))


def test_where_policies_are_found() -> None:
    first, second = Model(), Model()
    plain: PolicyAgent = Plain(first)
    assert policies_of(plain) == [first]
    assert policies_of(replace_policies(plain, [second])) == [second]
    assert policies_of(replace_policies(ChatAgent(first), [second])) == [second]
    assert policies_of(test_weights.PlainAgent(first)) == [first]
    assert replace_policies(test_weights.PlainAgent(first), [second]) is None
    assert policies_of(ar.RandomAgent([1])) == []
    assert policies_of(object()) == []
