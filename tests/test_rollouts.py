"""`Rollouts`: batches for a trainer, whatever the timing; bounds, versions, failures, and nothing left behind."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrollout import (
    BatchedPolicy,
    ChatAgent,
    ClosedError,
    EnvPool,
    ExhaustedError,
    Failures,
    Generation,
    Group,
    Limits,
    MarkovAgent,
    OpenAIPolicy,
    ProviderError,
    RandomAgent,
    Request,
    RolloutError,
    Rollouts,
    ScriptedPolicy,
    SolverPolicy,
    StalledError,
    Task,
    Trajectory,
    UsageError,
    Verdict,
    filters,
    limited,
)
from asyncrollout.seeding import sampling_seed
from tests.envs.rollout import WALK
from tests.llm_server import llm_server
from tests.playing import PATIENCE
from tests.virtual_time import run_virtually
from tests.waiting import all_tasks_blocked


class Model:
    """Goes by the sampling seed, after some turns of the loop that depend on `hurry`, and notes what is under way."""

    def __init_subclass__(cls) -> None:
        """One that misbehaves is still the same model to a run that is resumed."""
        cls.__name__ = "Model"

    def __init__(self, hurry: int = 0, spread: int = 0) -> None:
        self.in_flight = self.most_in_flight = self.calls = 0
        self._hurry = hurry
        self._spread = spread

    async def generate(self, request: Request) -> Generation:
        self.calls += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            steps = sampling_seed(self._hurry, request.session, request.turn) % (self._spread + 1)
            for _ in range(1 + steps):
                await anyio.lowlevel.checkpoint()
        finally:
            self.in_flight -= 1
        assert request.sampling.seed is not None
        return Generation(f"go {request.sampling.seed % 3}")


def rollouts(policy: Any = None, **options: Any) -> Rollouts:
    options = {"group_size": 2, "seed": 1, **options}
    if "agent" not in options:
        options["policy"] = Model() if policy is None else policy
    return Rollouts(options.pop("env", WALK), **options)


def transcripts(groups: list[Group]) -> list[Any]:
    """All that matters about groups, to compare."""
    return [(group.id, [[turn.reply for turn in one.turns] for one in group.trajectories]) for group in groups]


async def test_collect_gives_exactly_what_was_asked_for_in_start_order() -> None:
    async with rollouts() as source:
        batch = await source.collect(groups=5)
        assert (batch.index, [group.id for group in batch.groups]) == (0, ["g0", "g1", "g2", "g3", "g4"])
        assert all(len(group.trajectories) == 2 for group in batch.groups)
        assert [group.id for group in (await source.collect(groups=2)).groups] == ["g5", "g6"]
        assert source.ledger.ends == {"delivered": 14}
    assert source.ledger.balanced


async def test_collect_with_a_filter_continues_until_there_are_enough() -> None:
    async with rollouts(Model(spread=9), keep=filters.reward_varies) as source:
        batch = await source.collect(groups=12)
        assert len(batch.groups) == 12
        assert all(filters.varies(group.rewards) for group in batch.groups)
        assert batch.stats["drawn_groups"] > 12
        assert batch.stats["dropped_constant_reward"] == source.stats().dropped["constant_reward"]
        again = await source.collect(groups=3)
        assert min(int(group.id[1:]) for group in again.groups) > max(int(group.id[1:]) for group in batch.groups)
    assert source.ledger.balanced
    assert source.ledger.open == {}


@pytest.mark.parametrize("how", ["collect", "batches"])
async def test_batches_in_start_order_never_depend_on_timing(how: str) -> None:
    found = []
    for hurry, spread, in_flight in ((0, 0, 2), (1, 20, 64), (2, 40, 13)):
        policy = Model(hurry, spread)
        async with rollouts(policy, keep=filters.reward_varies, order="start", max_in_flight=in_flight) as source:
            if how == "collect":
                batches = [await source.collect(groups=4) for _ in range(3)]
            else:
                stream = source.batches(groups=4)
                batches = [await anext(stream) for _ in range(3)]
        found.append([transcripts(batch.groups) for batch in batches])
        assert policy.most_in_flight <= in_flight
    assert found[0] == found[1] == found[2]


async def test_workers_change_nothing() -> None:
    found = []
    async with EnvPool(backend="inline") as pool:
        for options in ({"workers": 2}, {"workers": 1}, {"pool": pool}):
            async with rollouts(env="sokoban", policy=SolverPolicy(0.3), limits=Limits(turns=3), **options) as source:
                found.append(transcripts((await source.collect(groups=3)).groups))
    assert found[0] == found[1] == found[2]


async def test_given_pool_stays_open() -> None:
    async with EnvPool(backend="inline") as pool:
        async with rollouts(pool=pool) as source:
            await source.collect(groups=1)
        async with rollouts(pool=pool) as source:
            await source.collect(groups=1)


async def test_finish_order_carries_over_what_is_slow() -> None:
    """The first group hangs until others were delivered; it comes in a later batch, and is not lost."""
    go = anyio.Event()

    async def reply(request: Request) -> str:
        if request.session == "g0.0":
            await go.wait()
        return "go 1"

    async with rollouts(ScriptedPolicy(reply)) as source:
        stream = source.batches(groups=3)
        ids = [group.id for group in (await anext(stream)).groups]
        assert "g0" not in ids
        go.set()
        while "g0" not in ids:
            ids += [group.id for group in (await anext(stream)).groups]
    assert len({*ids}) == len(ids)
    assert source.ledger.ends["stale"] == 0


async def test_buffers_are_bounded_while_the_consumer_is_slow() -> None:
    policy = Model()
    async with rollouts(policy, max_lag=2) as source:
        await anext(source.batches(groups=4))
        await all_tasks_blocked()
        stats = source.stats()
        assert (stats.playing_groups, stats.buffered_groups) == (0, 2 * 4)
        assert stats.open_rollouts == 16
        calls = policy.calls
        await all_tasks_blocked()
        assert policy.calls == calls
    assert source.ledger.ends == {"delivered": 8, "cancelled": 16}


async def test_on_policy_nothing_is_played_while_the_trainer_trains() -> None:
    policy = Model()
    async with rollouts(policy, max_lag=0) as source:
        async for batch in source.batches(groups=4):
            calls = policy.calls
            await all_tasks_blocked()
            assert policy.calls == calls
            async with source.weight_update(batch.index + 1):
                pass
            assert {turn.version for one in batch.trajectories for turn in one.turns} == {batch.index}
            if batch.index == 3:
                break
        assert source.ledger.ends == {"delivered": 32}


async def test_groups_come_one_by_one_with_as_many_in_flight_as_allowed() -> None:
    policy = Model(spread=5)
    async with rollouts(policy, max_in_flight=10) as source:
        ids = []
        async for group in source.groups():
            ids.append(group.id)
            if len(ids) == 20:
                break
    assert len({*ids}) == 20
    assert policy.most_in_flight == 10


async def test_tasks_end_the_stream_with_what_is_left() -> None:
    async with rollouts(tasks=range(7)) as source:
        sizes = [len(batch.groups) async for batch in source.batches(groups=3)]
        assert sizes == [3, 3, 1]
        assert [batch async for batch in source.batches(groups=3)] == []
    async with rollouts(tasks=range(5), order="start") as source:
        assert [group.trajectories[0].task async for group in source.groups()] == [0, 1, 2, 3, 4]
    async with rollouts(tasks=range(5)) as source:
        assert len((await source.collect(groups=9)).groups) == 5
        with pytest.raises(UsageError, match="has ended"):
            await source.collect(groups=1)


async def test_curriculum_looks_at_finished_groups() -> None:
    class Curriculum:
        """Goes up a level when a group has succeeded."""

        def __init__(self) -> None:
            self.level = 0
            self.seen: list[str] = []

        def finished(self, group: Group) -> None:
            self.seen.append(group.id)
            self.level += 1

        async def __aiter__(self) -> AsyncIterator[int]:
            while True:
                yield self.level

    tasks = Curriculum()
    async with rollouts(tasks=tasks, max_lag=0) as source:
        levels = [(await source.collect(groups=1)).groups[0].trajectories[0].task for _ in range(3)]
    assert levels == [0, 1, 2]
    assert tasks.seen == ["g0", "g1", "g2"]


async def test_several_envs_by_shares() -> None:
    env = [{"env": WALK, "tag": "short", "share": 3, "env_kwargs": {"turns": 1}}, {"env": WALK, "tag": "long"}]
    async with rollouts(env=env) as source:
        groups = (await source.collect(groups=8)).groups
    assert sorted(group.tag for group in groups) == ["long"] * 2 + ["short"] * 6
    assert {len(one.turns) for group in groups if group.tag == "short" for one in group.trajectories} == {1}
    async with rollouts(env=env, tasks=[Task(tag="long"), Task(tag="long")]) as source:
        assert [group.tag for group in (await source.collect(groups=2)).groups] == ["long", "long"]


async def test_scores_reach_the_filter() -> None:
    def score(trajectory: Trajectory) -> float:
        return 1.0

    async with rollouts(score=score, keep=filters.reward_varies, max_num_gen_batches=2) as source:
        with pytest.raises(ExhaustedError, match="dropped: 8 constant_reward"):
            await source.collect(groups=4)


@pytest.mark.parametrize(("choice", "sizes"), [("short", [3]), ("fill", [3, 1])])
async def test_batch_that_cannot_be_filled(choice: Any, sizes: list[int]) -> None:
    """Three groups of eight are kept; a batch of four may cost eight draws."""

    def keep(group: Group) -> Verdict:
        return Verdict(int(group.id[1:]) % 3 == 0, "not a third")

    async with rollouts(keep=keep, max_num_gen_batches=2, on_exhausted=choice) as source:
        batch = await source.collect(groups=4)
        kept = [group.verdict.keep for group in batch.groups if group.verdict]
        assert (len(kept), kept.count(True), kept.count(False)) == (sum(sizes), 3, sum(sizes) - 3)
    assert source.ledger.balanced
    async with rollouts(keep=keep, max_num_gen_batches=2) as source:
        with pytest.raises(ExhaustedError, match=r"3 of 4 groups were kept after 8 draws \(dropped: 5 not a third\)"):
            await source.collect(groups=4)


@pytest.mark.parametrize("choice", ["raise", "short", "fill"])
async def test_filter_that_never_keeps_ends_at_its_bound(choice: Any) -> None:
    never = rollouts(keep=lambda group: Verdict(False, "never"), max_num_gen_batches=3, on_exhausted=choice)
    async with never as source:
        stream = source.batches(groups=4)
        if choice == "fill":
            batch = await anext(stream)
            assert [group.verdict for group in batch.groups] == [Verdict(False, "never")] * 4
        else:
            with pytest.raises(ExhaustedError, match="0 of 4 groups were kept after 12 draws"):
                await anext(stream)


async def test_batch_filter_gives_whole_batches() -> None:
    async with rollouts(keep=filters.top_std(0.5), order="start") as source:
        stream = source.batches(groups=6)
        batches = [await anext(stream) for _ in range(3)]
    assert [len(batch.groups) for batch in batches] == [6, 6, 6]


async def test_filter_that_raises_is_reported_where_groups_are_awaited() -> None:
    def broken(group: Group) -> Verdict:
        raise LookupError("no such thing")

    async with rollouts(keep=broken) as source:
        with pytest.raises(UsageError, match=r"the filter .*broken raised LookupError: no such thing"):
            await anext(source.batches(groups=2))
        with pytest.raises(UsageError, match="no such thing"):
            await source.collect(groups=2)
    assert source.ledger.balanced


async def test_policy_that_is_dead_for_good_is_reported_where_groups_are_awaited() -> None:
    def dead(request: Request) -> str:
        raise ProviderError("the server is gone")

    for collects in (True, False):
        async with rollouts(ScriptedPolicy(dead)) as source:
            with pytest.raises(RolloutError, match=r"\d+ groups in a row .* ProviderError: the server is gone"):
                await (source.collect(groups=4) if collects else anext(source.batches(groups=4)))
        assert source.ledger.balanced


async def test_env_that_is_dead_for_good_is_reported_where_groups_are_awaited() -> None:
    for task in ("breaks", "nan"):
        async with rollouts(tasks=[task] * 100) as source:
            with pytest.raises(RolloutError, match=r"\d+ groups in a row .* (it breaks|finite number, not nan)"):
                await source.collect(groups=4)


async def test_mistake_of_the_caller_is_reported_at_once() -> None:
    async with rollouts(env="frozen_lake", env_kwargs={"sise": 3}) as source:
        with pytest.raises(RolloutError, match="sise"):
            await source.collect(groups=2)
    async with rollouts(agent=RandomAgent([1]), env_kwargs={"text": "yes"}) as source:
        with pytest.raises(UsageError, match="text='yes'"):
            await source.collect(groups=2)


async def test_source_of_tasks_that_fails_is_reported_where_groups_are_awaited() -> None:
    async def tasks() -> AsyncIterator[int]:
        yield 1
        raise OSError("disk on fire")

    async with rollouts(tasks=tasks()) as source:
        with pytest.raises(OSError, match="disk on fire"):
            await source.collect(groups=2)


async def test_some_failed_members_cost_their_group_and_nothing_else() -> None:
    def sometimes(request: Request) -> str:
        if request.session == "g1.0":
            raise ProviderError("not this one")
        return "go 1"

    async with rollouts(ScriptedPolicy(sometimes), failures=Failures(retries=1)) as source:
        batch = await source.collect(groups=3)
        assert [group.id for group in batch.groups] == ["g0", "g2", "g3"]
        assert batch.stats["failed_rollouts"] == 1
        assert source.stats().dropped == {"failed": 1}
        assert {**source.ledger.ends, "cancelled": 0} == {"delivered": 6, "failed": 2, "filtered": 1, "cancelled": 0}
    async with rollouts(ScriptedPolicy(sometimes), failures=Failures(retries=0, min_valid=1)) as source:
        batch = await source.collect(groups=3)
        assert [group.id for group in batch.groups] == ["g0", "g1", "g2"]
        arrays = batch.to_arrays(advantage="grpo")
        assert arrays["valid"].tolist().count(False) == 0  # the failed one has no turns, and so no row


def test_stall_is_an_error_that_names_what_is_waited_for() -> None:
    async def never(request: Request) -> str:
        await anyio.sleep_forever()
        return ""

    async def play() -> None:
        async with rollouts(ScriptedPolicy(never), stall_seconds=60) as source:
            with pytest.raises(
                StalledError, match=r"60 s: rollout g0.0 has waited 60.0 s for the policy in turn 0.* others"
            ):
                await source.collect(groups=3)
        assert source.ledger.balanced

    run_virtually(play)


def test_evaluation_that_stalls_is_an_error_even_while_other_groups_play() -> None:
    async def never_in_evaluation(request: Request) -> str:
        if request.session.startswith("eval"):
            await anyio.sleep_forever()
        return "go"

    async def play() -> None:
        async with rollouts(ScriptedPolicy(never_in_evaluation), stall_seconds=60) as source:
            with pytest.raises(
                StalledError, match=r"60 s: rollout eval0-g0.0 has waited 60.0 s for the policy in turn 0"
            ):
                await source.evaluate(3)
            assert len((await source.collect(groups=2)).groups) == 2
        assert source.ledger.balanced

    run_virtually(play)


async def test_weight_update_does_not_wait_for_ever() -> None:
    class Busy(Model):
        version = 0
        resumed: int | None = -1

        async def pause(self, mode: str) -> None:
            await anyio.sleep_forever()

        async def resume(self, version: int | None) -> None:
            self.resumed = version

    busy = Busy()
    async with rollouts(busy, stall_seconds=0.05) as source:
        with pytest.raises(StalledError, match=r"within 0.05 s, .* mode='abort' does not"):
            async with source.weight_update(1):
                pytest.fail("replies are under way")
    assert busy.resumed is None


async def test_source_of_tasks_that_never_gives_one_is_a_stall() -> None:
    async def tasks() -> AsyncIterator[int]:
        await anyio.sleep_forever()
        yield 1

    async with rollouts(tasks=tasks(), stall_seconds=0.05) as source:
        with pytest.raises(StalledError, match="the source of tasks returns no task"):
            await source.collect(groups=3)


@pytest.mark.parametrize("mode", ["wait", "abort", "continue"])
async def test_weights_that_change_in_the_middle_of_an_episode_are_on_every_turn(mode: Any) -> None:
    """A call of the second turn is under way while the weights change."""
    waiting, go = anyio.Event(), anyio.Event()
    asked: list[tuple[str, int]] = []

    async def reply(request: Request) -> str:
        asked.append((request.session, request.turn))
        if request.turn == 1 and asked.count(("g0.0", 1)) == 1:
            waiting.set()
            await go.wait()
        return "go 1"

    batches = []

    async def consume() -> None:
        batches.append(await source.collect(groups=1))

    async with rollouts(ScriptedPolicy(reply), group_size=1) as source, anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        with anyio.fail_after(PATIENCE):
            await waiting.wait()
            if mode == "wait":
                go.set()
            async with source.weight_update(1, mode):
                pass
            go.set()
    versions = [turn.version for turn in batches[0].trajectories[0].turns]
    assert versions == ([0, 1, 1] if mode == "abort" else [0, 0, 1])
    assert asked.count(("g0.0", 1)) == (2 if mode == "abort" else 1)


async def test_weight_update_that_fails_keeps_the_version_and_lets_calls_through() -> None:
    async with rollouts() as source:
        with pytest.raises(OSError, match="no weights"):
            async with source.weight_update(5):
                raise OSError("no weights")
        assert source.version == 0
        await source.collect(groups=1)
        async with source.weight_update(7):
            pass
        batch = await source.collect(groups=1)
        assert {turn.version for one in batch.trajectories for turn in one.turns} == {7}


async def test_groups_that_are_too_old_are_not_delivered() -> None:
    async with rollouts(max_lag=1) as source:
        stream = source.batches(groups=2)
        await anext(stream)
        await all_tasks_blocked()
        for version in (1, 2):
            async with source.weight_update(version):
                pass
        batch = await anext(stream)
        assert {turn.version for one in batch.trajectories for turn in one.turns} == {2}
        assert source.ledger.ends["stale"] == 4


async def test_server_is_notified_of_new_weights() -> None:
    async with llm_server(kind="vllm") as server:
        policy = OpenAIPolicy(server.url, "m", kind="vllm", version=3)
        async with rollouts(policy, limits=Limits(turns=1)) as source:
            assert (await source.collect(groups=1)).trajectories[0].turns[0].version == 3
            async with source.weight_update(4):
                assert server.paused
            assert (await source.collect(groups=1)).trajectories[0].turns[0].version == 4


async def test_policies_are_opened_and_closed() -> None:
    inner = BatchedPolicy(lambda requests: [1 for _ in requests])
    async with rollouts(agent=MarkovAgent(limited(inner, 4)), env_kwargs={"text": False}) as source:
        assert inner.is_open
        arrays = (await source.collect(groups=2)).to_arrays(advantage="rloo")
        assert arrays["actions"].tolist() == [1] * 12
    assert not inner.is_open


async def test_evaluation_shares_the_capacity_and_does_not_disturb() -> None:
    policy = Model(spread=4)
    async with rollouts(policy, max_in_flight=6, order="start") as source:
        stream = source.batches(groups=2)
        first = await anext(stream)
        evaluation = await source.evaluate(5, k=4)
        second = await anext(stream)
        again = await source.evaluate(5, k=4)
    assert policy.most_in_flight <= 6
    assert [group.id for group in [*first.groups, *second.groups]] == ["g0", "g1", "g2", "g3"]
    assert [len(group.trajectories) for group in evaluation.groups] == [4] * 5
    assert [one.seed for one in evaluation.trajectories] == [one.seed for one in again.trajectories]
    assert evaluation.pass_at(4) >= evaluation.pass_at(2) >= evaluation.pass_at(1) == evaluation.success_rate
    assert set(evaluation.summary()) == {"tasks", "failed", "mean_reward", "pass@1", "pass@4"}
    assert source.ledger.balanced


async def test_evaluation_of_tasks_and_its_figures() -> None:
    def reply(request: Request) -> str:
        return f"go {request.session.rpartition('.')[2]}"

    async with rollouts(ScriptedPolicy(reply)) as source:
        evaluation = await source.evaluate(
            [Task(seed=8), Task("breaks", seed=8), Task(seed=9)], k=2, env_kwargs={"turns": 3}
        )
        assert evaluation.failed == 2
        assert evaluation.mean_reward == 1.5
        assert evaluation.pass_at(1) == 0.5  # from 8 or 9, three steps of 1 lead beyond 10, and of 0 do not
        assert evaluation.pass_at(2) == 1.0
        with pytest.raises(UsageError, match="pass@3"):
            evaluation.pass_at(3)
        with pytest.raises(UsageError, match="no tasks"):
            await source.evaluate([])
        assert source.ledger.balanced


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 0}, "group_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"max_in_flight": 1}, "max_in_flight=1 is not a whole number from 2"),
        ({"max_lag": -1}, "max_lag=-1"),
        ({"order": "finnish"}, "did you mean 'finish'"),
        ({"on_exhausted": "stop"}, "on_exhausted='stop'"),
        ({"keep": 3}, "keep=3"),
        ({"score": 3}, "score=3"),
        ({"tasks": 3}, "tasks=3"),
        ({"agent": ScriptedPolicy(["x"])}, "give it as policy="),
        ({"env": "sokobann"}, "sokoban"),
        ({"env": []}, "env="),
        ({"env": [{"env": WALK}, {"env": WALK}]}, "not all different"),
        ({"env": [{"env": WALK, "shere": 2}]}, "shere"),
        ({"env": [{"env": WALK}], "env_kwargs": {"turns": 2}}, "env_kwargs is for one env"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rollouts(**options)


def test_parts_can_be_made_before_there_is_an_event_loop() -> None:
    policies = BatchedPolicy(lambda requests: []), OpenAIPolicy("http://x/v1", "m"), Model()
    assert all(rollouts(policy) for policy in policies)


def test_either_a_policy_or_an_agent() -> None:
    with pytest.raises(UsageError, match="either policy= or agent="):
        Rollouts(WALK)
    with pytest.raises(UsageError, match="either policy= or agent="):
        Rollouts(WALK, policy=Model(), agent=ChatAgent(Model()))


async def test_wrong_calls() -> None:
    source = rollouts()
    with pytest.raises(ClosedError, match="async with"):
        await source.collect(groups=1)
    async with source:
        for wrong in (0, -1, True, 1.5):
            with pytest.raises(UsageError, match="groups="):
                await source.collect(groups=wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="mode='later'"):
            async with source.weight_update(1, mode="later"):  # type: ignore[arg-type]
                pass
    with pytest.raises(ClosedError, match="async with"):
        await anext(source.batches(groups=1))
    async with rollouts(tasks=[]) as source:
        with pytest.raises(UsageError, match="tasks is empty"):
            await source.collect(groups=1)
        with pytest.raises(UsageError, match="tasks is empty"):
            await anext(source.batches(groups=1))
    async with rollouts(agent=RandomAgent(["go 1"])) as source:
        with pytest.raises(UsageError, match="this agent exposes none"):
            async with source.weight_update(1):
                pass


async def test_two_consumers_are_refused() -> None:
    async def never(request: Request) -> str:
        await anyio.sleep_forever()
        return ""

    async def consume() -> None:
        await anext(source.batches(groups=1))

    async with rollouts(ScriptedPolicy(never)) as source, anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        await all_tasks_blocked()
        with pytest.raises(UsageError, match="one consumer at a time"):
            await anext(source.batches(groups=1))
        tasks.cancel_scope.cancel()


async def test_errors_of_the_body_pass_as_they_are() -> None:
    source = rollouts()
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with source:
            await anext(source.batches(groups=1))
            raise KeyError("mine")
    assert source.ledger.balanced
    assert source.ledger.open == {}


async def test_cancelled_consumer_leaves_nothing_running_and_the_stream_continues() -> None:
    go = anyio.Event()

    async def wait(request: Request) -> str:
        await go.wait()
        return "go 1"

    async with rollouts(ScriptedPolicy(wait)) as source:
        with anyio.move_on_after(0):
            await source.collect(groups=2)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(source.collect, 2)
                await all_tasks_blocked()
                assert len(source.ledger.open) == 4
                scope.cancel()
        assert source.ledger.ends["cancelled"] == 4
        assert source.ledger.open == {}
        go.set()
        assert [group.id for group in (await source.collect(groups=2)).groups] == ["g0", "g1"]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1000),
    spread=st.integers(0, 12),
    keep_of=st.integers(1, 4),
    fails_of=st.integers(3, 30),
    order=st.sampled_from(["finish", "start"]),
    in_flight=st.integers(3, 30),
    lag=st.sampled_from([0, 1, 2, None]),
    size=st.integers(1, 3),
    updates=st.booleans(),
)
async def test_every_rollout_ends_exactly_once(
    seed: int,
    spread: int,
    keep_of: int,
    fails_of: int,
    order: Any,
    in_flight: int,
    lag: int | None,
    size: int,
    updates: bool,
) -> None:
    """Whatever is kept, fails, goes stale or is given up: the ledger balances, and no bound is broken."""
    model = Model(seed, spread)

    class Failing:
        async def generate(self, request: Request) -> Generation:
            generation = await model.generate(request)
            number = int(request.session[1:].partition(".")[0])  # never so many in a row that the run is given up
            if number % 2 and sampling_seed(seed, "fails", request.session) % fails_of == 0:
                raise ProviderError("now and then")
            return generation

    def keep(group: Group) -> Verdict:
        return Verdict(int(group.id[1:]) % keep_of == 0, "unlucky")

    source = rollouts(
        Failing(), group_size=size, seed=seed, keep=keep, order=order, max_in_flight=in_flight, max_lag=lag,
        failures=Failures(retries=1), max_num_gen_batches=None, limits=Limits(turns=2),
    )  # fmt: skip
    delivered: list[str] = []
    async with source:
        stream = source.batches(groups=3)
        for version in range(1, 5):
            batch = await anext(stream)
            assert len(batch.groups) == 3
            assert all(len(group.completed) == size for group in batch.groups)
            delivered += [group.id for group in batch.groups]
            if updates:
                async with source.weight_update(version, "abort"):
                    pass
        assert source.ledger.balanced
    assert source.ledger.balanced
    assert source.ledger.open == {}
    assert source.ledger.ends["delivered"] == len(delivered) * size
    assert len({*delivered}) == len(delivered)
    assert model.most_in_flight <= in_flight
    if order == "start":
        assert delivered == sorted(delivered, key=lambda id_: int(id_[1:]))
