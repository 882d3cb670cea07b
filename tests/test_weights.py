"""New weights: who is held back, where, for how long, and what version each reply tells."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import asyncrollout as ar
from asyncrollout import (
    BatchedPolicy,
    ChatAgent,
    Generation,
    LimitError,
    Limits,
    OpenAIPolicy,
    Outcome,
    ProviderError,
    Request,
    Rollouts,
    ScriptedPolicy,
    StalledError,
    UsageError,
    cached,
    fallback,
    limited,
    run_rollout,
)
from asyncrollout.policies.gate import GatedPolicy
from asyncrollout.policies.holding import rollout_clock
from tests.envs.rollout import WALK
from tests.llm_faults import Answer, Hold
from tests.llm_server import llm_server
from tests.playing import PATIENCE
from tests.virtual_time import run_virtually
from tests.waiting import all_tasks_blocked

ASKED = Request(messages=[{"role": "user", "content": "Hello"}])


class Weighty:
    """Its replies are its weights. Each call waits for `go`, if there is one, and notes what changes meanwhile."""

    def __init__(self, go: anyio.Event | None = None) -> None:
        self.weights = 0
        self.pushing = self.running = self.calls = self.torn = 0
        self._go = go

    async def generate(self, request: Request) -> Generation:
        self.calls += 1
        self.running += 1
        weights = self.weights
        try:
            self.torn += bool(self.pushing)
            await (anyio.lowlevel.checkpoint() if self._go is None else self._go.wait())
            self.torn += bool(self.pushing) or weights != self.weights
        finally:
            self.running -= 1
        return Generation(f"go {weights}")

    async def push(self, weights: int, until: anyio.Event | None = None) -> None:
        self.pushing += 1
        await (anyio.lowlevel.checkpoint() if until is None else until.wait())
        self.weights = weights
        self.pushing -= 1


class Pausable:
    """A policy with a way of its own, which never answers."""

    version = 0

    async def generate(self, request: Request) -> Generation:
        raise ProviderError("it never answers")

    async def pause(self, mode: str) -> None: ...

    async def resume(self, version: int | None) -> None:
        self.version = self.version if version is None else version


async def never(_: Any) -> str:
    await anyio.sleep_forever()
    return ""


def rollouts(policy: Any = None, **options: Any) -> Rollouts:
    given = {"policy": policy} if "agent" not in options else {}
    return Rollouts(WALK, **{"group_size": 1, "max_lag": None, **given, **options})


async def let_pass(seconds: float) -> None:
    """As long as it takes until another rollout has used up its limit."""
    async with ar.EnvPool(backend="inline") as pool, pool.open(WALK) as env:
        other = await run_rollout(env, ChatAgent(ScriptedPolicy(never)), seed=0, limits=Limits(seconds=seconds))
    assert isinstance(other.error, LimitError)


async def test_one_update_at_a_time() -> None:
    model, first, second = Weighty(), anyio.Event(), anyio.Event()

    async def update(version: int, until: anyio.Event) -> None:
        async with source.weight_update(version):
            await model.push(version, until)

    async def consume() -> None:
        async for batch in source.batches(groups=2):
            seen.extend(turn for trajectory in batch.trajectories for turn in trajectory.turns)
            if source.version == 2:
                return

    seen: list[Any] = []
    with anyio.fail_after(PATIENCE):
        async with rollouts(model) as source, anyio.create_task_group() as tasks:
            tasks.start_soon(update, 1, first)
            await all_tasks_blocked()
            tasks.start_soon(update, 2, second)
            tasks.start_soon(consume)
            await all_tasks_blocked()
            assert (model.pushing, model.calls) == (1, 0)
            first.set()
            await all_tasks_blocked()
            assert (source.version, model.pushing, model.running) == (1, 1, 0)
            second.set()
    assert model.torn == 0
    assert {(turn.reply, turn.version) for turn in seen} <= {("go 1", 1), ("go 2", 2)}


def test_update_that_never_ends_is_an_error_of_the_next() -> None:
    async def update_twice() -> None:
        async with rollouts(Weighty(), stall_seconds=60) as source, source.weight_update(1):
            with pytest.raises(StalledError, match="another weight_update of this policy has not ended within 60 s"):
                async with source.weight_update(2):
                    pass

    run_virtually(update_twice)


async def test_versions_only_rise() -> None:
    model, go = Weighty(), anyio.Event()
    async with rollouts(model) as source, anyio.create_task_group() as tasks:
        async with source.weight_update(3):
            pass
        async with source.weight_update(3):  # the same again
            pass
        with pytest.raises(UsageError, match="version=2 of the weights is below 3"):
            async with source.weight_update(2):
                raise AssertionError

        async def update(version: int) -> None:
            async with source.weight_update(version):
                await go.wait()

        tasks.start_soon(update, 5)
        await all_tasks_blocked()

        async def late() -> None:
            with pytest.raises(UsageError, match="below 5"):
                async with source.weight_update(4):
                    raise AssertionError

        tasks.start_soon(late)
        await all_tasks_blocked()
        go.set()
    for policy in (
        GatedPolicy(Weighty()),
        BatchedPolicy(lambda requests: []),
        OpenAIPolicy("http://127.0.0.1:9/v1", "m"),
    ):
        policy.version = 4
        with pytest.raises(UsageError, match="below 4"):
            await policy.resume(3)


async def test_every_part_of_a_policy_is_held_back_and_stamped() -> None:
    model = Weighty()
    async with rollouts(fallback(Pausable(), model), group_size=2, max_lag=0) as source:
        for version in range(1, 5):
            async with source.weight_update(version):
                await model.push(version)
            batch = await source.collect(groups=3)
            turns = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
            assert {(turn.reply, turn.version) for turn in turns} == {(f"go {version}", version)}
        assert source.ledger.ends["stale"] == 0
    assert model.torn == 0


async def test_part_without_a_version_has_that_of_the_others() -> None:
    served = Pausable()
    served.version = 7
    async with rollouts(fallback(served, Weighty())) as source:
        batch = await source.collect(groups=1)
    assert batch.groups[0].version == source.version == 7


async def test_frozen_part_is_let_be() -> None:
    learner, teacher = Weighty(), Weighty()
    turns: list[Any] = []

    @dataclass
    class Alternating:
        policies: Sequence[Any]

        async def generate(self, request: Request) -> Generation:
            generation: Generation = await self.policies[request.turn % 2].generate(request)
            return generation

    policy = Alternating([learner, ar.frozen(teacher)])
    async with rollouts(policy, max_lag=0) as source:
        for version in (3, 6):
            async with source.weight_update(version):
                await learner.push(version)
            batch = await source.collect(groups=2)
            assert [group.version for group in batch.groups] == [version] * 2
            turns += [turn for trajectory in batch.trajectories for turn in trajectory.turns]
        assert source.ledger.ends["stale"] == 0
    reported = {(turn.reply, turn.version, turn.frozen) for turn in turns}
    assert reported == {("go 3", 3, False), ("go 6", 6, False), ("go 0", 0, True)}


async def test_frozen_part_answers_while_others_are_held_back() -> None:
    async with rollouts(fallback(ar.frozen(Weighty()), Pausable())) as source:
        async with source.weight_update(1):
            with anyio.fail_after(PATIENCE):
                batch = await source.collect(groups=1)
        assert (source.version, batch.groups[0].version) == (1, None)
        assert all(turn.frozen for turn in batch.trajectories[0].turns)


async def test_frozen_part_that_cannot_be() -> None:
    model = Weighty()
    with pytest.raises(UsageError, match="both as a frozen part and as one that learns"):
        rollouts(fallback(limited(model, 1), ar.frozen(model)))
    with pytest.raises(UsageError, match="not a policy"):
        ar.frozen("a teacher")  # type: ignore[arg-type]
    async with rollouts(ar.frozen(model)) as source:
        with pytest.raises(UsageError, match="this agent exposes none"):
            async with source.weight_update(1):
                pass


@pytest.mark.parametrize("wrap", [lambda model: limited(model, 1), lambda model: cached(limited(model, 1))])
async def test_update_waits_for_calls_that_run_and_not_for_the_queue(wrap: Any) -> None:
    go = anyio.Event()
    model = Weighty(go)
    seen: list[Any] = []

    async def consume() -> None:
        seen.append(await source.collect(groups=4))

    with anyio.fail_after(PATIENCE):
        async with rollouts(wrap(model)) as source, anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            await all_tasks_blocked()
            assert (model.calls, model.running) == (1, 1)
            go.set()
            async with source.weight_update(1):
                assert model.calls == 1
                await model.push(1)
    turns = [turn for trajectory in seen[0].trajectories for turn in trajectory.turns]
    assert [turn.version for turn in turns].count(0) == 1
    assert all(turn.reply == f"go {turn.version}" for turn in turns)
    assert model.torn == 0


@pytest.mark.parametrize("mode", ["wait", "abort"])
async def test_batches_are_held_back_where_they_begin(mode: Any) -> None:
    weights = 0
    begun: list[int] = []
    started, go = anyio.Event(), anyio.Event()

    def model(requests: list[Request]) -> list[str]:
        begun.append(weights)
        if len(begun) == 1:
            anyio.from_thread.run_sync(started.set)
            anyio.from_thread.run(go.wait)
        return [f"go {weights}"] * len(requests)

    answers: list[Generation] = []

    async def ask() -> None:
        answers.append(await policy.generate(ASKED))

    with anyio.fail_after(PATIENCE):
        async with BatchedPolicy(model, max_batch=1) as policy, anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
            await started.wait()
            go.set()
            await policy.pause(mode)
            assert len(begun) == 1
            weights = 1
            await policy.resume(1)
    assert sorted((answer.text, answer.version) for answer in answers) == [("go 0", 0)] + 3 * [("go 1", 1)]
    assert begun == [0, 1, 1, 1]


async def test_batched_policy_that_is_held_back_can_be_closed() -> None:
    async def ask() -> None:
        with pytest.raises(ar.ClosedError):
            await policy.generate(ASKED)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, _batched() as policy:
            await policy.pause()
            tasks.start_soon(ask)
            await all_tasks_blocked()


def _batched() -> Any:
    return BatchedPolicy(lambda requests: ["go 1"] * len(requests))


@pytest.mark.parametrize("make", [Weighty, lambda: limited(Weighty(), 1), _batched])
async def test_limit_of_time_does_not_run_while_the_policy_is_held_back(make: Any) -> None:
    seen: list[Any] = []

    async def consume() -> None:
        seen.append(await source.collect(groups=3))

    with anyio.fail_after(PATIENCE):
        async with (
            rollouts(make(), limits=Limits(seconds=0.5)) as source,
            anyio.create_task_group() as tasks,
            source.weight_update(1),
        ):
            tasks.start_soon(consume)
            await let_pass(0.6)
        assert source.ledger.ends["failed"] == 0
    assert len(seen[0].trajectories) == 3


async def test_limit_of_time_does_not_run_in_a_queue() -> None:
    go = anyio.Event()
    policy = limited(Weighty(go), 1)
    seen: list[Any] = []

    async def consume() -> None:
        seen.append(await source.collect(groups=2))

    with anyio.fail_after(PATIENCE):
        async with rollouts(policy, limits=Limits(seconds=0.5)) as source, anyio.create_task_group() as tasks:
            async with policy.slots:
                tasks.start_soon(consume)
                await let_pass(0.6)
            go.set()
        assert source.ledger.ends["failed"] == 0
    assert len(seen[0].trajectories) == 2


async def test_limit_of_time_does_not_run_in_the_queue_of_an_env() -> None:
    class Queued:
        """An env that is waited for, and does nothing."""

        name = "queued"
        worked = 0.0

        async def reset(self, *, seed: int, task: Any, member: int) -> Outcome:
            return Outcome("start")

        async def step(self, action: Any) -> Outcome:
            await let_pass(0.4)
            return Outcome("on")

    agent = ChatAgent(ScriptedPolicy(["go 1"]))
    trajectory = await run_rollout(Queued(), agent, seed=0, limits=Limits(seconds=0.6, turns=2))
    assert trajectory.stop_reason == "turns"


async def test_seconds_of_a_request_do_not_run_while_it_is_held_back() -> None:
    async with (
        llm_server() as server,
        OpenAIPolicy(server.url, "m") as served,
        BatchedPolicy(lambda requests: ["go"] * len(requests)) as batched,
    ):
        policies: list[tuple[Any, Any]] = [(served, served), (batched, batched)]
        gated = GatedPolicy(ScriptedPolicy(["go"]))
        policies += [(gated, limited(gated, 1)), (served, fallback(limited(served, 1), batched))]
        for held, asked in policies:
            answers: list[Generation] = []

            async def ask(asked: Any = asked, answers: list[Generation] = answers) -> None:
                answers.append(await asked.generate(Request(messages=ASKED.messages, seconds=0.5)))

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    await held.pause()
                    tasks.start_soon(ask)
                    tasks.start_soon(ask)
                    await let_pass(0.6)
                    await held.resume()
            assert len(answers) == 2


async def test_calls_that_stand_still_on_the_server_are_not_charged() -> None:
    go = anyio.Event()
    answers: list[Generation] = []

    async def ask() -> None:
        answers.append(await served.generate(ASKED))

    async with llm_server("vllm", [Hold(until=go)]) as server:
        async with OpenAIPolicy(server.url, "m", kind="vllm", attempt_seconds=0.5, attempts=1) as served:
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask)
                    await server.until(lambda: server.in_flight == 1)
                    await served.pause("continue")
                    go.set()
                    await let_pass(0.6)
                    await served.resume(1)
        assert [answer.version for answer in answers] == [0]


async def test_seconds_of_a_request_do_not_run_while_it_rests_and_is_held_back() -> None:
    answers: list[Generation] = []

    async def ask() -> None:
        answers.append(await served.generate(Request(messages=ASKED.messages, seconds=2)))

    async with (
        llm_server(script=[Answer(503, headers={"Retry-After": "3"})]) as server,
        OpenAIPolicy(server.url, "m", kind="openai") as served,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ask)
        await server.until(lambda: any(seen.done for seen in server.requests))
        await served.pause()
        await let_pass(2.5)
        await served.resume(1)
    assert [answer.version for answer in answers] == [1]


async def test_call_that_stood_still_and_is_stopped_then_was_not_too_slow() -> None:
    answers: list[Generation] = []

    async def ask() -> None:
        answers.append(await served.generate(ASKED))

    async with (
        llm_server("vllm", [Hold()]) as server,
        OpenAIPolicy(server.url, "m", kind="vllm", attempt_seconds=0.5, attempts=1) as served,
    ):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await server.until(lambda: server.in_flight == 1)
                await served.pause("continue")
                await let_pass(0.6)
                await served.resume(1)
                await served.pause("abort")
                await served.resume(2)
        assert served.endpoints[0].losses == 0
    assert [answer.version for answer in answers] == [2]


@pytest.mark.parametrize(("places", "given"), [(3, 4), (1, 5)])
def test_time_of_calls_that_are_made_again_is_given_back_once(places: int, given: float) -> None:
    """However many a rollout has under way, and also if they spent it in a queue, where two of three still are."""

    async def slow(_: Any) -> str:
        await anyio.sleep(10)
        return "go"

    async def play() -> float:
        gated = GatedPolicy(limited(ScriptedPolicy(slow), places))
        with rollout_clock() as held:
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(gated.generate, ASKED)
                await anyio.sleep(4)
                await gated.pause("abort")
                await gated.resume(1)
                await anyio.sleep(1)
                given_back = held.seconds()
                tasks.cancel_scope.cancel()
        return given_back

    assert run_virtually(play) == pytest.approx(given)


async def test_longer_seconds_of_a_request_hold() -> None:
    go = anyio.Event()
    answers: list[Generation] = []

    async def ask() -> None:
        answers.append(await served.generate(Request(messages=ASKED.messages, seconds=PATIENCE)))

    async with (
        llm_server(script=[Hold(until=go), Hold()]) as server,
        OpenAIPolicy(server.url, "m", kind="openai", seconds=0.3) as served,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ask)
        await server.until(lambda: server.in_flight == 1)
        with pytest.raises(ProviderError, match=r"no response within 0.3 s"):
            await served.generate(ASKED)
        go.set()
    assert answers


async def test_two_rollouts_with_one_policy_share_its_gate_and_its_version() -> None:
    model, go = Weighty(), anyio.Event()
    seen: list[Any] = []

    async def evaluate() -> None:
        seen.append(await evaluator.evaluate(4))

    with anyio.fail_after(PATIENCE):
        async with rollouts(model) as trainer, rollouts(limited(model, 2)) as evaluator:
            async with anyio.create_task_group() as tasks:
                async with trainer.weight_update(1):
                    tasks.start_soon(evaluate)
                    await all_tasks_blocked()
                    assert model.calls == 0
                    await model.push(1)
                await all_tasks_blocked()
            assert trainer.version == evaluator.version == 1
            async with anyio.create_task_group() as tasks:

                async def update() -> None:
                    async with trainer.weight_update(2):
                        await go.wait()

                tasks.start_soon(update)
                await all_tasks_blocked()
                with anyio.move_on_after(0) as scope:
                    async with evaluator.weight_update(3):
                        raise AssertionError
                assert scope.cancelled_caught
                go.set()
    turns = [turn for trajectory in seen[0].trajectories for turn in trajectory.turns]
    assert {(turn.reply, turn.version) for turn in turns} == {("go 1", 1)}
    assert model.torn == 0


async def test_equal_policies_are_not_one() -> None:
    @dataclass(frozen=True)
    class Same:
        name: str = "same"

        async def generate(self, request: Request) -> Generation:
            return Generation("go 1")

    one, other = Same(), Same()
    async with rollouts(one) as first, rollouts(other) as second:
        async with first.weight_update(4):
            pass
        assert (first.version, second.version) == (4, 0)


async def test_cache_keeps_no_reply_of_old_weights() -> None:
    go = anyio.Event()
    model = Weighty(go)
    policy = cached(model)
    seen: list[Any] = []

    async def consume() -> None:
        seen.append(await source.evaluate(1))

    with anyio.fail_after(PATIENCE):
        async with rollouts(agent=ChatAgent(policy, seeded=False), limits=Limits(turns=1)) as source:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume)
                await all_tasks_blocked()
                async with source.weight_update(1, "continue"):
                    model.weights = 1
                go.set()
            await consume()
    reported = [[(turn.reply, turn.version) for turn in one.trajectories[0].turns] for one in seen]
    assert reported == [[("go 0", 0)], [("go 1", 1)]]


async def test_cache_asks_once_after_a_failure() -> None:
    go = anyio.Event()
    calls: list[int] = []

    async def reply(_: Any) -> str:
        calls.append(len(calls))
        if len(calls) == 1:
            await anyio.lowlevel.checkpoint()
            raise ProviderError("not now")
        await go.wait()
        return f"go {len(calls)}"

    policy = cached(ScriptedPolicy(reply))
    replies: list[str] = []

    async def ask() -> None:
        with suppress(ProviderError):
            replies.append((await policy.generate(ASKED)).text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await all_tasks_blocked()
        tasks.start_soon(ask)
        await all_tasks_blocked()
        go.set()
    assert replies == ["go 2", "go 2"]
    assert not policy._asking


async def test_cache_of_others_knows_of_new_weights_of_the_same_version() -> None:
    model = Weighty()
    policy = ChatAgent(cached(model), seeded=False)
    async with rollouts(model) as trainer, rollouts(agent=policy, limits=Limits(turns=1)) as evaluator:
        before = await evaluator.evaluate(1)
        async with trainer.weight_update(0):
            await model.push(1)
        after = await evaluator.evaluate(1)
    assert [one.trajectories[0].turns[0].reply for one in (before, after)] == ["go 0", "go 1"]


async def test_cache_goes_by_the_version_of_what_is_inside() -> None:
    async with llm_server() as server, OpenAIPolicy(server.url, "m", kind="openai") as served:
        policy = cached(limited(served, 2))
        assert [(await policy.generate(ASKED)).version for _ in range(2)] == [0, 0]
        await served.pause()
        await served.resume(1)
        assert [(await policy.generate(ASKED)).version for _ in range(2)] == [1, 1]
        assert len(server.requests) == 2


class PlainAgent:
    """Neither a dataclass nor an agent that asks by its attribute `policy` alone."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self._chat = ChatAgent(policy)

    def open(self, session: str, seed: int) -> Any:
        return self._chat.open(session, seed)


@pytest.mark.parametrize("mode", ["wait", "abort"])
async def test_agent_of_any_class_can_be_held_back(mode: Any) -> None:
    model = Weighty()
    async with rollouts(agent=PlainAgent(model), max_lag=0) as source:
        for version in (1, 2):
            async with source.weight_update(version, mode):
                await model.push(version)
            batch = await source.collect(groups=2)
            turns = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
            assert {(turn.reply, turn.version) for turn in turns} == {(f"go {version}", version)}
    async with rollouts(agent=PlainAgent(fallback(Pausable(), model))) as source:
        with pytest.raises(UsageError, match="dataclass"):
            async with source.weight_update(3):
                pass


async def test_policy_around_others_of_any_class_is_held_back_as_a_whole() -> None:
    class Around:
        def __init__(self, inner: Any) -> None:
            self.inner = inner
            self.calls = 0

        async def generate(self, request: Request) -> Generation:
            self.calls += 1
            generation: Generation = await self.inner.generate(request)
            return generation

    around = Around(Weighty())
    async with rollouts(around) as source:
        async with source.weight_update(1):
            await around.inner.push(1)
        batch = await source.collect(groups=1)
    assert batch.groups[0].version == 1
    assert around.calls == around.inner.calls > 0
    async with rollouts(Around(fallback(Pausable(), Weighty()))) as source:
        with pytest.raises(UsageError, match="dataclass"):
            async with source.weight_update(1):
                pass


async def test_agents_still_see_their_policy() -> None:
    class Named(Weighty):
        name = "mine"

    policies: list[Any] = [GatedPolicy(Named()), ar.frozen(Named())]
    for policy in policies:
        assert policy.name == "mine"
        with pytest.raises(AttributeError):
            policy.nothing  # noqa: B018


async def test_time_until_which_the_policy_was_held_back_is_known() -> None:
    async with rollouts(fallback(Pausable(), Weighty())) as source:
        last_held = source._engine.control.last_held
        assert last_held() == float("-inf")
        reported: list[float] = []
        go = anyio.Event()

        async def update() -> None:
            async with source.weight_update(1):
                await go.wait()
                reported.append(last_held())  # within its own update, nothing that it waits for can come

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(update)
            await all_tasks_blocked()
            reported += [last_held(), last_held()]
            go.set()
        after = last_held()
        assert reported[0] < reported[1] < after == last_held()
        assert reported[2] == float("-inf")


async def test_policy_is_let_go_when_rollouts_that_drained_it_are_closed() -> None:
    model = Weighty()
    async with rollouts(model) as source:
        await source.drain(PATIENCE)
    with anyio.fail_after(PATIENCE):
        async with rollouts(model) as source:
            await source.collect(groups=1)
