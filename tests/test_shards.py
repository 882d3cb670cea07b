"""Groups played by shards: the same batches as without, whatever happens to them. Here they share one event loop."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import (
    Batch,
    BatchedPolicy,
    Failures,
    Generation,
    Group,
    OpenAIPolicy,
    PoolError,
    Request,
    Rollouts,
    ScriptedPolicy,
    SolverPolicy,
    UsageError,
    filters,
    frozen,
)
from asyncrollout.journal.files import whole_lines
from asyncrollout.journal.recorded_run import read_run
from asyncrollout.journal.writer import JOURNAL
from asyncrollout.report.statistics import Span
from asyncrollout.report.timeline import _nodes
from asyncrollout.rollouts.shards import shard_set
from asyncrollout.rollouts.shards.least_loaded import LeastLoaded
from asyncrollout.rollouts.shards.local_shards import LocalShardProcess, LocalShards
from tests.envs.rollout import WALK
from tests.llm_server import llm_server
from tests.sampler_checks import shown
from tests.sharding import KillableShards, all_settled

SEED = 3


class Model:
    """A model that others ask through copies of `Client`, as a server is asked; counts what it has replied."""

    def __init__(self) -> None:
        self.replies: Counter[tuple[str, int]] = Counter()
        self.open = anyio.Event()
        self.open.set()
        self.waiting = 0
        self.version = 0
        self.begun: list[int] = []  # the version that was loaded when a call began
        MODELS.append(self)


MODELS: list[Model] = []


class Client:
    """Goes by the sampling seed; a copy asks the same model."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def generate(self, request: Request) -> Generation:
        model = MODELS[self.number]
        begun = model.version
        model.waiting += 1
        try:
            await model.open.wait()
        finally:
            model.waiting -= 1
        model.replies[request.session, request.turn] += 1
        assert request.sampling.seed is not None
        return Generation(f"go {request.sampling.seed % 4}", reasoning=f"by {begun}")


def client() -> tuple[Model, Client]:
    model = Model()
    return model, Client(len(MODELS) - 1)


SHARDS: list[KillableShards] = []


def process_of(name: str) -> LocalShardProcess:
    return SHARDS[-1].process_of(name)


def killable(count: int) -> KillableShards:
    SHARDS.append(KillableShards(count))
    return SHARDS[-1]


def make(policy: Any, shards: int, **options: Any) -> Rollouts:
    given = {"group_size": 2, "seed": SEED, "shards": killable(shards) if shards else None, **options}
    return Rollouts(WALK, policy=policy, **given)


async def play(shards: int, batches: int = 3, **options: Any) -> list[Any]:
    """Batches, with an update of the weights after each one."""
    model, policy = client()
    found = []
    async with make(policy, shards, **options) as rollouts:
        for _ in range(batches):
            batch = await anext(rollouts.batches(groups=3))
            found.append(without_time(batch.groups))
            async with rollouts.weight_update(rollouts.version + 1):
                model.version += 1
        assert rollouts.ledger.balanced
        for group in batch.groups:
            for trajectory in group.trajectories:
                assert all(turn.reasoning == f"by {turn.version}" for turn in trajectory.turns)
    assert not rollouts.ledger.open
    assert model.waiting == 0
    return found


async def take(rollouts: Rollouts, groups: int) -> Batch:
    return await anext(rollouts.batches(groups))


def without_time(groups: list[Group]) -> list[Any]:
    return [
        (one.uid, one.reward, [(turn.reply, turn.observation) for turn in one.turns], group.verdict)
        for group in groups
        for one in group.trajectories
    ]


@pytest.mark.parametrize("options", [
    {"order": "start"},
    {"order": "start", "keep": filters.reward_varies},
    {"max_lag": 0, "keep": filters.reward_varies},
], ids=["start order", "with a filter", "no lag"])  # fmt: skip
async def test_batches_are_the_same_with_any_number_of_shards(options: dict[str, Any]) -> None:
    assert await play(0, **options) == await play(1, **options) == await play(2, **options)


@given(st.lists(st.tuples(st.sampled_from(["add", "change", "discard"]), st.integers(0, 5), st.integers(-3, 9))))
def test_the_least_loaded_member_is_found(steps: list[tuple[str, int, int]]) -> None:
    found, loads = LeastLoaded[int](), dict[int, int]()
    for step, member, number in steps:
        if step == "add":
            found.add(member, number)
            loads[member] = number
        elif step == "change":
            found.change(member, number)
            loads |= {member: loads[member] + number} if member in loads else {}
        else:
            found.discard(member)
            loads.pop(member, None)
        first = found.first()
        assert (first is None) == (not loads)
        assert first is None or loads[first] == min(loads.values())


async def test_groups_of_a_killed_shard_continue_elsewhere_and_nothing_is_asked_twice() -> None:
    model, policy = client()
    undisturbed = await play(0, batches=1, max_lag=0)
    async with make(policy, 2, max_lag=0) as rollouts, anyio.create_task_group() as tasks:
        batches: list[Any] = []

        async def take() -> None:
            batches.append(await anext(rollouts.batches(groups=3)))

        tasks.start_soon(take)
        while not model.replies:
            await anyio.lowlevel.checkpoint()
        model.open = anyio.Event()  # from here on, calls wait: some turns are recorded, others are in flight
        await all_settled()
        asked, in_flight = dict(model.replies), model.waiting
        assert asked
        assert in_flight
        process_of("0").die()
        await all_settled()
        model.open.set()
    assert without_time(batches[0].groups) == undisturbed[0]
    assert max(model.replies.values()) == 1
    assert rollouts.ledger.balanced
    assert rollouts.ledger.dispatched_count == 6


async def test_a_shard_that_is_lost_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_set, "_FIRST_WAIT", 0.0)
    _, policy = client()
    async with make(policy, 1) as rollouts:
        await rollouts.collect(groups=1)
        process_of("0").die()
        assert len((await rollouts.collect(groups=2)).groups) == 2
        (shard,) = rollouts.stats().shards
    assert shard.restarts == 1


async def test_a_group_that_kills_each_shard_fails_and_the_run_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_set, "_FIRST_WAIT", 0.0)
    model, policy = client()
    async with make(policy, 1, failures=Failures(retries=0, min_valid=1), max_in_flight=2) as rollouts:
        await rollouts.collect(groups=1)
        model.open = anyio.Event()
        deaths = 0

        async def kill() -> None:
            nonlocal deaths
            while deaths < 5:
                while not model.waiting:  # noqa: ASYNC110 (it comes when another shard is ready)
                    await anyio.sleep(0.001)
                process_of("0").die()
                deaths += 1
                while model.waiting:  # noqa: ASYNC110 (likewise)
                    await anyio.sleep(0.001)
            model.open.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            batch = await rollouts.collect(groups=1)
    assert batch.groups[0].id == "g2"
    assert rollouts.stats().dropped == {"failed": 1}
    assert rollouts.ledger.ends["failed"] == 2


async def test_shards_are_added_and_removed_while_groups_play() -> None:
    model, policy = client()
    async with make(policy, 1, max_in_flight=8, max_lag=None) as rollouts, anyio.create_task_group() as tasks:
        model.open = anyio.Event()

        async def take() -> None:
            batch = await anext(rollouts.batches(groups=8))
            assert len(batch.groups) == 8

        tasks.start_soon(take)
        await all_settled()
        await rollouts.scale(shards=3)
        assert [shard.state for shard in rollouts.stats().shards] == ["ready"] * 3
        assert max(shard.groups for shard in rollouts.stats().shards) == 4
        await rollouts.scale(shards=1, drain=False)  # the busy one stays
        assert [(shard.name, shard.groups) for shard in rollouts.stats().shards] == [("0", 4)]
        await rollouts.scale(shards=2)
        process_of("0").die()
        await all_settled()
        model.open.set()
    assert max(model.replies.values()) == 1


async def test_a_shard_that_is_drained_plays_its_groups_to_their_end() -> None:
    model, policy = client()
    async with make(policy, 2, max_in_flight=8, max_lag=None) as rollouts, anyio.create_task_group() as tasks:
        model.open = anyio.Event()
        tasks.start_soon(take, rollouts, 4)
        await all_settled()
        tasks.start_soon(rollouts.scale, 1)
        await all_settled()
        assert sorted(shard.state for shard in rollouts.stats().shards) == ["leaving", "ready"]
        model.open.set()
    assert max(model.replies.values()) == 1
    assert rollouts.ledger.balanced


async def test_a_shard_that_joins_during_an_update_starts_paused_and_with_the_new_version() -> None:
    model, policy = client()
    async with make(policy, 1, max_lag=None) as rollouts, anyio.create_task_group() as tasks:
        await rollouts.collect(groups=1)
        async with rollouts.weight_update(version=7):
            tasks.start_soon(take, rollouts, 6)
            await rollouts.scale(shards=2)
            process_of("0").die()
            await all_settled()
            assert model.waiting == 0
            before = model.replies.total()
            model.version = 7
        batch = await rollouts.collect(groups=4)
        assert model.replies.total() > before
    turns = [turn for group in batch.groups for one in group.trajectories for turn in one.turns]
    assert {(turn.version, turn.reasoning) for turn in turns} == {(7, "by 7")}


async def test_a_shard_that_does_not_pause_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_set, "_HEAR_SECONDS", 0.05)
    monkeypatch.setattr(shard_set, "_FIRST_WAIT", 0.0)
    model, policy = client()
    async with make(policy, 2, max_lag=None) as rollouts, anyio.create_task_group() as tasks:
        model.open = anyio.Event()
        taken = []

        async def take() -> None:
            taken.append(await anext(rollouts.batches(groups=2)))

        tasks.start_soon(take)
        await all_settled()
        deaf = process_of("0")
        deaf.inner_channel.hold(is_held=True)  # as if it were frozen: it reads nothing, and goes on asking
        async with rollouts.weight_update(version=1, mode="abort"):
            assert rollouts.stats().shards[0].state == "starting" or process_of("0") is not deaf
            model.version = 1
        model.open.set()
    versions = {turn.version for group in taken[0].groups for one in group.trajectories for turn in one.turns}
    assert versions == {1}


async def test_an_evaluation_uses_shards_and_the_slots_are_those_of_all() -> None:
    model, policy = client()
    async with make(policy, 2, max_in_flight=4) as rollouts:
        model.open = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rollouts.evaluate, 6)
            tasks.start_soon(take, rollouts, 4)
            await all_settled()
            assert model.waiting == 4
            model.open.set()
        again = await rollouts.evaluate(6)
    async with make(policy, 0, max_in_flight=4) as rollouts:
        here = await rollouts.evaluate(6)
    assert [one.reward for one in again.trajectories] == [one.reward for one in here.trajectories]


async def test_a_run_continues_with_another_number_of_shards(tmp_path: Path) -> None:
    undisturbed = await play(0, batches=2, max_lag=0, run_dir=tmp_path / "whole")
    model, policy = client()
    async with make(policy, 2, max_lag=0, run_dir=tmp_path / "run") as rollouts:
        first = await anext(rollouts.batches(groups=3))
    model.version = 0
    for shards in (0, 1):
        async with make(policy, shards, max_lag=0, run_dir=tmp_path / "run", resume=0) as rollouts:
            assert shown((await anext(rollouts.batches(groups=3))).groups) == shown(first.groups)
    assert max(model.replies.values()) == 1
    assert without_time(first.groups) == undisturbed[0]
    lines = [line.content for line in whole_lines(tmp_path / "run" / JOURNAL)]
    finished = [line for line in lines if b'"finished"' in line]
    assert finished
    assert all(b'"shard":"' in line and b'"node":"node0"' in line for line in finished)
    history = read_run(tmp_path / "run")
    span = Span(0.0, 4.0, [("LLM", 1.0), ("env", 3.0)])
    (nodes,) = _nodes(history, [(uid, span) for uid in history.finished])
    assert nodes["rows"][0][:6] == ["node0", 2, 6, 0.25, 0.0, 0.75]


async def test_only_the_trainer_notifies_the_server_of_new_weights() -> None:
    async with llm_server("vllm", lambda *_: None) as server:
        policy = OpenAIPolicy(server.url, "small", api_key="key", kind="vllm")
        async with make(policy, 2, max_lag=0) as rollouts:
            for version in (1, 2):
                await anext(rollouts.batches(groups=2))
                async with rollouts.weight_update(version):
                    pass
    paths = Counter(seen.path for seen in server.requests)
    assert paths["/pause"] == paths["/resume"] == 2


@pytest.mark.parametrize(("options", "said"), [
    ({"policy": BatchedPolicy(lambda requests: ["go 1"] * len(requests))}, "which new weights never reach: serve"),
    ({"policy": ScriptedPolicy(["go 1"]), "score": "reward"}, "is not a function"),
    ({"policy": ScriptedPolicy(["go 1"]), "record": True}, "record= writes videos beside the envs"),
    ({"policy": ScriptedPolicy(["go 1"]), "shards": 2}, r"write shards=RayShards\(2\)"),
], ids=["a model here", "no function", "videos", "a number"])  # fmt: skip
async def test_what_shards_cannot_have_is_refused_with_advice(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        async with Rollouts(WALK, group_size=2, **{"shards": LocalShards(1), **options}):
            pass


async def test_what_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    policy = ScriptedPolicy(lambda request: f"go {lock.locked():d}")
    with pytest.raises(UsageError, match=r"policy ScriptedPolicy cannot be sent to a shard: .*lock"):
        async with make(policy, 1):
            pass


async def test_a_frozen_model_may_be_copied() -> None:
    async with make(frozen(BatchedPolicy(answer)), 2) as rollouts:
        assert len((await rollouts.collect(groups=2)).groups) == 2


def answer(requests: list[Request]) -> list[str]:
    return ["go 1"] * len(requests)


async def test_a_shard_that_cannot_start_is_an_error_of_the_opening() -> None:
    with pytest.raises(PoolError, match="there are no nodes"):
        async with Rollouts(WALK, policy=SolverPolicy(), shards=LocalShards(2, nodes=0)):
            pass


async def test_an_error_of_a_hook_reaches_the_trainer_with_its_traceback() -> None:
    async with make(ScriptedPolicy(["go 1"]), 2, score=breaks) as rollouts:
        with pytest.raises(UsageError, match="the hook is wrong") as raised:
            await rollouts.collect(groups=2)
    assert any("in breaks" in note for note in raised.value.__notes__)


def breaks(trajectory: Any) -> float:
    raise UsageError("the hook is wrong")
