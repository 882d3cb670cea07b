"""`Rollouts` when things go wrong around it: consumers that leave, slow sources, filters and hooks that fail."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from asyncrollout import (
    BatchedPolicy,
    ClosedError,
    EnvError,
    ExhaustedError,
    Failures,
    Generation,
    Group,
    Limits,
    MarkovAgent,
    Outcome,
    ProviderError,
    Request,
    RolloutError,
    Rollouts,
    ScoreError,
    ScriptedPolicy,
    Share,
    Task,
    Trajectory,
    UsageError,
    Verdict,
    filters,
)
from asyncrollout.errors import like
from asyncrollout.filters import BatchFilter
from asyncrollout.rollouts.sampling.batch_buffer import BatchBuffer
from asyncrollout.trajectories import Move
from tests.playing import PATIENCE
from tests.test_rollouts import Model, rollouts, transcripts
from tests.test_sampler import group
from tests.waiting import all_tasks_blocked


async def test_async_source_of_tasks_outlives_a_collect_that_is_cancelled() -> None:
    closed = anyio.Event()

    async def tasks() -> AsyncIterator[int]:
        try:
            for number in range(1000):
                await anyio.lowlevel.checkpoint()
                yield number
        finally:
            closed.set()

    async with rollouts(tasks=tasks(), keep=lambda group: Verdict(int(group.id[1:]) % 3 == 0)) as source:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as consumers:
                consumers.start_soon(source.collect, 8)
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        seen: list[int] = []
        for _ in range(6):
            seen += [one.trajectories[0].task for one in (await source.collect(groups=3)).groups]
        assert seen == [number for number in range(60) if number % 3 == 0][:18]
    assert closed.is_set()


async def test_async_source_serves_several_consumers_at_once() -> None:
    async def tasks() -> AsyncIterator[int]:
        for number in range(100):
            await anyio.lowlevel.checkpoint()
            yield number

    batches: list[Any] = []

    async def consume(source: Any) -> None:
        batches.append(await source.collect(groups=3))

    async with rollouts(tasks=tasks()) as source, anyio.create_task_group() as consumers:
        for _ in range(4):
            consumers.start_soon(consume, source)
    ids = [one.id for batch in batches for one in batch.groups]
    assert len({*ids}) == len(ids) == 12


@pytest.mark.parametrize("how", ["collect", "batches"])
@pytest.mark.parametrize("choice", ["short", "fill"])
async def test_batches_do_not_depend_on_timing_when_draws_run_out_or_weights_change(how: str, choice: Any) -> None:
    """What a policy says depends on the version of its weights, and few groups are kept."""

    class Versioned(Model):
        version = 0

        async def generate(self, request: Request) -> Generation:
            version = self.version
            await super().generate(request)
            assert request.sampling.seed is not None
            return Generation(f"go {(request.sampling.seed + version) % 3}", version=version)

        async def pause(self, mode: str) -> None: ...

        async def resume(self, version: int | None) -> None:
            self.version = self.version if version is None else version

    found = []
    for hurry, spread, in_flight in ((0, 0, 4), (1, 20, 64), (2, 40, 14)):
        source = rollouts(
            Versioned(hurry, spread),
            keep=lambda one: Verdict(one.rewards.sum() > 7, "poor"),
            max_num_gen_batches=2,
            on_exhausted=choice,
            order="start",
            max_lag=0,
            max_in_flight=in_flight,
        )
        batches = []
        async with source:
            stream = source.batches(groups=4)
            for version in range(1, 6):
                try:
                    batch = await (source.collect(groups=4) if how == "collect" else anext(stream))
                    batches.append(transcripts(batch.groups))
                except ExhaustedError:
                    batches.append([])
                async with source.weight_update(version):
                    pass
        assert source.ledger.balanced
        found.append(batches)
    assert found[0] == found[1] == found[2]


async def test_consumers_are_let_go_when_rollouts_are_closed() -> None:
    async def never(request: Request) -> str:
        await anyio.sleep_forever()
        return ""

    errors: list[Exception] = []

    async def consume(awaited: Any) -> None:
        try:
            await awaited
        except ClosedError as error:
            errors.append(error)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, rollouts(ScriptedPolicy(never)) as source:
            for awaited in (source.collect(groups=1), anext(source.batches(groups=1)), source.evaluate(3)):
                tasks.start_soon(consume, awaited)
            await all_tasks_blocked()
    assert [str(error) for error in errors] == ["these Rollouts were closed"] * 3
    assert source.ledger.balanced
    assert source.ledger.open == {}


async def test_tasks_that_all_fail_are_no_end_of_tasks() -> None:
    async with rollouts(tasks=["breaks"] * 3) as source:
        with pytest.raises(RolloutError, match=r"all 3 groups failed.*it breaks"):
            await source.collect(groups=4)
    async with rollouts(tasks=["breaks"] * 3) as source:
        with pytest.raises(RolloutError, match="all 3 groups failed"):
            await anext(source.batches(groups=4))
        with pytest.raises(RolloutError, match="all 6 rollouts failed; the first one: EnvError"):
            await source.evaluate(["breaks"] * 3, k=2)


async def test_draws_that_run_out_by_failures_tell_the_last_one() -> None:
    async with rollouts(tasks=["breaks", None, "breaks", "breaks"], max_num_gen_batches=1) as source:
        with pytest.raises(ExhaustedError, match="3 failed") as caught:
            await source.collect(groups=4)
        assert "it breaks" in "".join(caught.value.__notes__)


def test_dropped_groups_that_are_too_old_fill_nothing() -> None:
    tray = BatchBuffer(2, "fill")
    tray.needed = 2
    tray.put(group(0, keep=False, version=0))
    tray.put(group(1, keep=False, version=3))
    assert [one.id for one in tray.remove_older(2)] == ["g0"]
    assert [one.id for one in tray.rejected] == ["g1"]


async def test_batch_filter_judges_what_there_is_before_draws_run_out_and_at_the_end_of_tasks() -> None:
    keep = BatchFilter(lambda groups: [Verdict(keep=True) for _ in groups])
    options: Any = {"keep": keep, "failures": Failures(retries=0), "order": "start"}
    async with rollouts(tasks=["breaks", None] * 4, max_num_gen_batches=1, **options) as source:
        with pytest.raises(ExhaustedError, match="2 of 4 groups were kept after 4 draws"):
            await source.collect(groups=4)
    async with rollouts(tasks=[None] * 6, **options) as source:
        assert [len(batch.groups) async for batch in source.batches(groups=4)] == [4, 2]
    assert source.ledger.ends == {"delivered": 12}


async def test_stream_begins_anew_after_a_failure_with_what_it_had_not_delivered() -> None:
    broken = True

    def keep(one: Group) -> Verdict:
        if broken and one.id == "g3":
            raise LookupError("not now")
        return Verdict(keep=True)

    async with rollouts(keep=keep, tasks=range(8), order="start") as source:
        with pytest.raises(UsageError, match="not now"):
            await anext(source.batches(groups=4))
        assert (source.stats().open_rollouts, source.stats().buffered_groups) == (
            6,
            3,
        )  # g0 to g2, kept for the next taker
        broken = False
        ids = [one.id async for batch in source.batches(groups=4) for one in batch.groups]
    assert ids == [f"g{number}" for number in range(8)]
    assert source.ledger.balanced


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limits(turns=0), "turns=0"),
        (lambda: Limits(invalid=-1), "invalid=-1"),
        (lambda: Limits(seconds=0), "seconds=0"),
        (lambda: Failures(retries=-1), "retries=-1"),
        (lambda: Failures(min_valid=0), "min_valid=0"),
        (lambda: Share("walk", share=0), "share=0"),
        (lambda: rollouts(limits={"turns": 3}), "limits="),
        (lambda: rollouts(stall_seconds=0), "stall_seconds=0"),
        (lambda: rollouts(group_size=None), "group_size=None"),
        (lambda: rollouts(max_in_flight=None), "max_in_flight=None"),
    ],
)
def test_values_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


async def test_calls_that_make_no_sense() -> None:
    async with rollouts() as source:
        nothing: Any = None
        for call in (source.collect(nothing), source.evaluate("ab"), source.evaluate(3, k=nothing)):
            with pytest.raises(UsageError):
                await call
        with pytest.raises(UsageError, match="version=None"):
            async with source.weight_update(nothing):
                pass


@pytest.mark.parametrize("given", [10**400, {"reward": 1.0, 5: 2.0}, object()])
async def test_scores_that_make_no_sense_are_failures_of_their_rollouts(given: Any) -> None:
    def score(trajectory: Trajectory) -> Any:
        return given if trajectory.uid.startswith("g0.") else 1.0

    async with rollouts(score=score, failures=Failures(retries=0)) as source:
        assert [one.id for one in (await source.collect(groups=2)).groups] == ["g1", "g2"]


class Odd:
    """An agent of a plain class, whose player returns what it is given."""

    def __init__(self, move: Any, policy: Any = None) -> None:
        self.policy = policy
        self.messages: list[Any] = []
        self._move = move

    def open(self, session: str, seed: int) -> "Odd":
        return self

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        await anyio.lowlevel.checkpoint()
        if self.policy is not None:
            return Move("go 1", await self.policy.generate(Request()))
        move: Move = self._move
        return move


async def test_agents_that_give_no_move_are_mistakes_of_the_caller() -> None:
    async with rollouts(agent=Odd("go 1")) as source:
        with pytest.raises(UsageError, match=r"Odd.act\(\) must return a Move, not 'go 1'"):
            await source.collect(groups=1)
    async with rollouts(ScriptedPolicy(lambda request: None)) as source:
        with pytest.raises(RolloutError):
            await source.collect(groups=1)


class Sync:
    def generate(self, request: Request) -> Generation:
        return Generation("go 1")


class Bare:
    async def generate(self, request: Request) -> str:
        return "go 1"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Sync(), r"Sync\.generate\(\) is not a coroutine function: write `async def generate"),
        (Bare(), r"Bare\.generate\(\) must return a Generation, not 'go 1': write `return Generation\(text\)`"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
async def test_policies_that_break_the_protocol_are_mistakes_of_the_caller(
    policy: Any, message: str, *, alone: bool
) -> None:
    agent = MarkovAgent(policy)
    async with rollouts(policy) if alone else rollouts(agent=agent) as source:
        with pytest.raises(UsageError, match=message):
            await source.collect(groups=1)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda request: "go 1", r"is not a policy.*ScriptedPolicy\(function\)"),
        ("gpt-4", r"'gpt-4' is not a policy: it has no generate\(\)$"),
        (ScriptedPolicy, r"ScriptedPolicy is a class, not a policy: write ScriptedPolicy\(\.\.\.\)"),
    ],
)
def test_what_is_not_a_policy_is_answered_by_what_to_give(policy: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rollouts(policy)


async def test_policy_of_an_agent_of_any_class_is_opened() -> None:
    policy = BatchedPolicy(lambda requests: ["go 1" for _ in requests])
    async with rollouts(agent=Odd(None, policy)) as source:
        await source.collect(groups=1)
        assert policy.is_open
    assert not policy.is_open


async def test_cancellation_that_nobody_asked_for_is_reported() -> None:
    async def cancels(request: Request) -> str:
        raise anyio.get_cancelled_exc_class()

    async with rollouts(ScriptedPolicy(cancels)) as source:
        with pytest.raises(ProviderError, match="CancelledError by itself"):
            await source.collect(groups=1)


async def test_cancelled_evaluation_leaves_nothing() -> None:
    async def never(request: Request) -> str:
        await anyio.sleep_forever()
        return ""

    async with rollouts(ScriptedPolicy(never)) as source:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(source.evaluate, 4)
                await all_tasks_blocked()
                assert len(source.ledger.open) == 4
                scope.cancel()
        assert source.ledger.open == {}
        assert source.ledger.ends["cancelled"] == 4


async def test_evaluation_leaves_room_for_others() -> None:
    """It has all places at first; half of them go to training as its rollouts end, and no more."""
    playing: dict[str, anyio.Event] = {}

    async def reply(request: Request) -> str:
        go = playing[request.session] = anyio.Event()
        await go.wait()
        del playing[request.session]
        return "go 9"

    def evaluated() -> list[str]:
        return [session for session in playing if session.startswith("eval")]

    source = rollouts(ScriptedPolicy(reply), max_in_flight=12, env_kwargs={"turns": 1})
    async with source, anyio.create_task_group() as tasks:

        async def evaluate() -> None:
            await source.evaluate(50, k=2)

        async def collect() -> None:
            await source.collect(20)

        tasks.start_soon(evaluate)
        await all_tasks_blocked()
        assert len(evaluated()) == len(playing) == 12
        tasks.start_soon(collect)
        for count in range(1, 20):
            await all_tasks_blocked()
            playing[evaluated()[0]].set()
            await all_tasks_blocked()
            assert len(playing) == 12
            assert len(evaluated()) == max(12 - count, 6)
        tasks.cancel_scope.cancel()


async def test_cancelled_weight_update_lets_calls_through() -> None:
    go = anyio.Event()

    async def reply(request: Request) -> str:
        await go.wait()
        return "go 1"

    batches: list[Any] = []

    async def consume(source: Any) -> None:
        batches.append(await source.collect(groups=1))

    async with rollouts(ScriptedPolicy(reply), keep=filters.min_valid(1)) as source, anyio.create_task_group() as tasks:
        tasks.start_soon(consume, source)
        await all_tasks_blocked()
        with anyio.move_on_after(0.01):
            async with source.weight_update(1):
                pytest.fail("a reply is under way")
        go.set()
    assert source.version == 0
    assert len(batches) == 1


async def test_wrong_task_of_one_env_fails_alone() -> None:
    async with rollouts(tasks=[Task("breaks"), *[None] * 9], failures=Failures(retries=0)) as source:
        batch = await source.collect(groups=3)
    assert [one.id for one in batch.groups] == ["g1", "g2", "g3"]
    assert all(not isinstance(one.error, EnvError) for one in batch.trajectories)


async def test_slow_group_is_waited_for_before_it_would_be_too_old() -> None:
    """Begun with the first weights, it could still go into the second batch, but not into the third."""
    go, taken = anyio.Event(), []

    async def reply(request: Request) -> str:
        if request.session == "g0.0":
            await go.wait()
        return "go 1"

    async def take_second(stream: Any) -> None:
        taken.append(await anext(stream))

    async with rollouts(ScriptedPolicy(reply), max_lag=1) as source:
        stream = source.batches(groups=3)
        assert "g0" not in [one.id for one in (await anext(stream)).groups]
        async with source.weight_update(1, "continue"):
            pass
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_second, stream)
            await all_tasks_blocked()
            assert not taken
            go.set()
        assert "g0" in [one.id for one in taken[0].groups]
        assert source.ledger.ends["stale"] == 0


async def test_what_has_never_worked_is_given_up_early_and_what_did_later() -> None:
    async with rollouts(tasks=["breaks"] * 100, failures=Failures(retries=0)) as source:
        with pytest.raises(RolloutError, match=r"^all rollouts of 4 groups in a row failed.*it breaks"):
            await source.collect(groups=3)
    async with rollouts(tasks=[None, *["breaks"] * 100], failures=Failures(retries=0)) as source:
        with pytest.raises(RolloutError, match=r"^all rollouts of 8 groups in a row failed.*it breaks"):
            await source.collect(groups=3)


async def test_dropped_groups_fill_the_last_batch_too() -> None:
    async with rollouts(tasks=range(5), keep=lambda group: Verdict(group.id == "g1"), on_exhausted="fill") as source:
        with anyio.fail_after(PATIENCE):
            batch = await source.collect(groups=8)
    assert [one.id for one in batch.groups] == ["g1", "g0", "g2", "g3", "g4"]
    assert source.ledger.balanced
    async with rollouts(tasks=range(5), keep=lambda group: Verdict(group.id == "g1"), on_exhausted="fill") as source:
        with anyio.fail_after(PATIENCE):
            sizes = [len(batch.groups) async for batch in source.batches(groups=2)]
    assert sizes == [2]  # and none of dropped groups alone
    assert source.ledger.balanced


@pytest.mark.parametrize(
    ("wrong", "transcripts"),
    [
        ({"limit": 3}, "Rollouts takes no limit=: did you mean 'limits'"),
        ({"groupsize": 3}, "did you mean 'group_size'"),
        ({"env": [{"weight": 3}]}, r"env\[0\] takes no 'weight': did you mean 'share'"),
        ({"env": [{"env": "bandit", "tags": "a"}]}, r"env\[0\] takes no 'tags': did you mean 'tag'"),
    ],
    ids=str,
)
def test_unknown_keyword_is_answered_by_the_nearest(wrong: dict[str, Any], transcripts: str) -> None:
    given: dict[str, Any] = {"env": "bandit", "policy": ScriptedPolicy(["a"]), **wrong}
    with pytest.raises(UsageError, match=transcripts):
        Rollouts(**given)


async def test_wrong_loop_over_batches_is_answered_by_the_right_one() -> None:
    async with rollouts() as source:
        for stream, usage in ((source.batches(groups=1), "for batch in"), (source.groups(), "for group in")):
            wrong: Any = stream
            with pytest.raises(UsageError, match=f"async {usage} rollouts"):
                list(wrong)
            with pytest.raises(UsageError, match=f"async {usage} rollouts"):
                await wrong
        collected: Any = source.collect(groups=1)
        with pytest.raises(UsageError, match=r"batch = await rollouts\.collect"):
            async for _ in collected:
                pass
        collected = source.collect(groups=1)
        with pytest.raises(UsageError, match=r"batch = await rollouts\.collect"):
            list(collected)
        collected = source.collect(groups=1)
        with pytest.raises(AttributeError, match=r"'to_arrays' belongs to the result.*batch = await rollouts\.collect"):
            collected.to_arrays()
        collected.close()


async def test_collect_is_a_coroutine_like_others() -> None:
    async with rollouts() as source, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(source.collect(groups=1))
        assert len((await task).groups) == 1
        stopped = tasks.create_task(source.collect(groups=1))
        stopped.cancel()


async def test_error_after_many_failures_has_the_kind_and_place_of_the_last() -> None:
    async with rollouts(tasks=["breaks"] * 20, failures=Failures(retries=0)) as source:
        with pytest.raises(EnvError, match="groups in a row") as caught:
            await source.collect(groups=2)
        assert (caught.value.env, caught.value.turn) == ("walk", 0)
        assert isinstance(caught.value.seed, int)
        with pytest.raises(EnvError, match="rollouts failed; the first one"):
            await source.evaluate(["breaks"])

    async def score(_: Trajectory) -> float:
        return float("nan")

    async with rollouts(score=score, failures=Failures(retries=0)) as source:
        with pytest.raises(ScoreError, match="groups in a row"):
            await source.collect(groups=2)


class OwnError(EnvError):
    """A user's kind of error, which is not made as ours are."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def test_error_like_one_of_a_users_kind_is_of_the_nearest_of_ours() -> None:
    made = like(OwnError(3, "lost"), "it failed")
    assert (type(made), str(made)) == (EnvError, "it failed")
