"""What reaches the trainer while weights change at any moment: whole, unbiased, never too old; and no draw is lost."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import (
    ExhaustedError,
    Failures,
    Generation,
    Group,
    ProviderError,
    Request,
    Rollouts,
    UsageError,
    Verdict,
)
from asyncrollout.filters import BatchFilter, reward_varies
from asyncrollout.rollouts.sampling.pace import Pace
from asyncrollout.seeding import sampling_seed
from tests.envs.rollout import WALK
from tests.playing import PATIENCE
from tests.test_rollouts import Model, rollouts
from tests.virtual_time import run_virtually


def index_of(group: Group) -> int:
    return int(group.id[1:])


async def settle() -> None:
    """Let everything play that can."""
    for _ in range(200):
        await anyio.lowlevel.checkpoint()


async def push(source: Rollouts, version: int) -> None:
    async with source.weight_update(version):
        pass


async def prefetched(source: Rollouts, groups: int, versions: list[int], gap: int, how: str) -> Any:
    """A batch that is awaited while weights are pushed, every `gap` iterations of the loop, and its lag."""
    batches: list[Any] = []

    async def take() -> None:
        batch = await (source.collect(groups=groups) if how == "collect" else anext(source.batches(groups=groups)))
        lags = {source.version - (group.version or 0) for group in batch.groups}
        batches.append((batch, max(lags)))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            for version in versions:
                for _ in range(gap):
                    await anyio.lowlevel.checkpoint()
                await push(source, version)
    return batches[0]


@pytest.mark.parametrize("how", ["batches", "collect"])
@pytest.mark.parametrize(("max_lag", "step"), [(0, 1), (1, 2)])
async def test_weights_pushed_while_a_batch_is_awaited(how: str, max_lag: int, step: int) -> None:
    async with rollouts(Model(), keep=reward_varies, max_lag=max_lag, max_num_gen_batches=None) as source:
        for gap in range(40):
            batch, lag = await prefetched(source, 6, [source.version + step, source.version + 2 * step], gap, how)
            assert len(batch.groups) == 6
            assert lag <= max_lag
    assert source.ledger.balanced


async def test_weights_that_jump_while_nobody_awaits_a_batch_filter() -> None:
    async with rollouts(Model(spread=9), keep=half, max_lag=1, max_num_gen_batches=2) as source:
        for number in range(1, 6):
            with anyio.fail_after(PATIENCE):
                batch = await anext(source.batches(groups=4))
            assert len(batch.groups) == 4
            await settle()
            await push(source, 2 * number)
    assert source.stats().stale_groups > 0


@BatchFilter
def half(groups: Any) -> list[Verdict]:
    return [Verdict(keep=row < len(groups) / 2, reason="half") for row in range(len(groups))]


class Lengths(Model):
    """Some groups take much longer than others, and are worth less; replies come when the test lets them."""

    async def generate(self, request: Request) -> Generation:
        group = request.session.partition(".")[0]
        for _ in range(60 if sampling_seed(0, group, self.calls) % 3 == 0 else 1):
            await anyio.lowlevel.checkpoint()
        return await super().generate(request)


@pytest.mark.parametrize("order", ["finish", "start"])
async def test_nothing_is_left_out_for_being_slow_where_nothing_is_carried_over(order: Any) -> None:
    keep: Any = lambda group: Verdict(keep=index_of(group) % 3 == 1)  # noqa: E731
    async with rollouts(Lengths(), keep=keep, max_lag=0, order=order) as source:
        seen: list[int] = []
        async for batch in source.batches(groups=3):
            seen += [index_of(group) for group in batch.groups]
            await push(source, batch.index + 1)
            if batch.index == 5:
                break
    assert seen == [index for index in range(100) if index % 3 == 1][:18]


async def test_stale_groups_give_their_draws_back() -> None:
    async with rollouts(Model(spread=5), max_num_gen_batches=1, max_lag=1) as source:
        first = await anext(source.batches(groups=4))
        await settle()
        await push(source, 7)
        second = await anext(source.batches(groups=4))
        third = await anext(source.batches(groups=4))
    assert [batch.index for batch in (first, second, third)] == [0, 1, 2]
    assert second.stats["dropped_stale"] > 0
    assert "dropped_stale" not in third.stats
    assert source.ledger.ends["stale"] == 2 * second.stats["dropped_stale"]


async def test_stale_groups_are_named_where_too_few_are_kept() -> None:
    worthless = False

    def keep(group: Group) -> Verdict:
        return Verdict(keep=not worthless, reason="worthless")

    async with rollouts(keep=keep, max_num_gen_batches=1, max_lag=1) as source:
        await anext(source.batches(groups=4))
        await settle()
        worthless = True
        await push(source, 9)
        with pytest.raises(ExhaustedError, match=r"after 4 draws \(dropped: 4 worthless; \d+ more became stale"):
            await anext(source.batches(groups=4))


async def test_versions_that_rise_too_fast_are_a_warning_and_only_one() -> None:
    async with rollouts(max_lag=1) as source:
        with structlog.testing.capture_logs() as logged:
            for step in range(4):
                await anext(source.batches(groups=2))
                await settle()
                await push(source, 100 * (step + 1))
    (warning,) = [entry for entry in logged if entry["event"] == "versions_rise_too_fast"]
    assert (warning["versions_per_batch"], warning["max_lag"]) == (100, 1)
    assert "raise max_lag" in warning["hint"]


@pytest.mark.parametrize("max_lag", [1, 2, 3])
async def test_groups_one_by_one_are_played_ahead_as_far_as_the_lag_allows(max_lag: int) -> None:
    async with rollouts(Model(spread=9), max_lag=max_lag, max_in_flight=64) as source:
        taken = 0
        async for _ in source.groups():
            taken += 1
            if taken % 5 == 0:
                await settle()
                await push(source, taken // 5)
            if taken == 100:
                break
    assert source.stats().stale_groups == 0


async def test_groups_one_by_one_use_all_places_once_the_pace_is_known() -> None:
    policy, taken = Model(spread=9), 0
    async with rollouts(policy, max_lag=1, max_in_flight=16) as source:
        async for _ in source.groups():
            taken += 1
            if taken == 60:
                break
    assert policy.most_in_flight == 16


@given(st.integers(0, 3), st.lists(st.integers(1, 9), min_size=2, max_size=30))
def test_pace_never_plays_further_ahead_than_the_lag(max_lag: int, steady: list[int]) -> None:
    """With the same number of groups for each version, what is ahead at an update is taken within the lag."""
    pace, each = Pace(), steady[0]
    ahead = 0
    for version in range(len(steady)):
        for _ in range(each):
            ahead = max(ahead, pace.most_ahead(version, max_lag, is_awaited=True))
            ahead -= 1
            pace.note(version, 1)
        ahead = max(ahead, pace.most_ahead(version, max_lag, is_awaited=False))
        assert ahead <= max(max_lag * each, each if version == 0 else 0)


class Together(Model):
    """The first eight sessions get each reply at the same moment."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: Counter[int] = Counter()
        self.released = [anyio.Event() for _ in range(3)]

    async def generate(self, request: Request) -> Generation:
        if int(request.session[1:].partition(".")[0]) < 8:
            self.waiting[request.turn] += 1
            if self.waiting[request.turn] == 8:
                self.released[request.turn].set()
            await self.released[request.turn].wait()
        return await super().generate(request)


async def test_filter_that_fails_when_the_batch_is_complete_is_reported_to_the_next_taker() -> None:
    judged: list[int] = []

    def keep(group: Group) -> Verdict:
        judged.append(index_of(group))
        if len(judged) == 5:
            raise LookupError("not this one")
        return Verdict(keep=True)

    async with rollouts(Together(), keep=keep, max_lag=1, group_size=1) as source:
        first = await anext(source.batches(groups=4))
        assert len(judged) == 5
        with pytest.raises(UsageError, match="not this one"):
            await anext(source.batches(groups=4))
        ids = [index_of(group) for _ in range(3) for group in (await anext(source.batches(groups=4))).groups]
    seen = [*map(index_of, first.groups), *ids]
    assert len({*seen}) == len(seen) == 16
    assert {*judged[:5]} <= {*seen}


@pytest.mark.parametrize("how", ["collect", "batches"])
async def test_source_of_tasks_that_fails_beyond_a_batch_is_reported_to_the_next_taker(how: str) -> None:
    def tasks() -> Iterator[int]:
        yield from range(4)
        raise LookupError("no more")

    async with rollouts(tasks=tasks(), max_lag=0) as source:

        async def take() -> Any:
            return await (source.collect(groups=2) if how == "collect" else anext(source.batches(groups=2)))

        seen = [*map(index_of, (await take()).groups), *map(index_of, (await take()).groups)]
        with pytest.raises(LookupError, match="no more"):
            await take()
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("end", ["exhausted", "of tasks"])
async def test_what_failed_never_fills_a_batch(end: str) -> None:
    class Fails(Model):
        async def generate(self, request: Request) -> Generation:
            if sampling_seed(0, request.session) % 2 and index_of_session(request) % 2:
                raise ProviderError("no answer")
            return await super().generate(request)

    def index_of_session(request: Request) -> int:
        return int(request.session[1:].partition(".")[0])

    keep: Any = lambda group: Verdict(keep=index_of(group) == 0, reason="dull")  # noqa: E731
    async with rollouts(
        Fails(),
        keep=keep,
        failures=Failures(retries=0),
        on_exhausted="fill",
        max_num_gen_batches=3,
        tasks=None if end == "exhausted" else range(20),
        group_size=4,
    ) as source:
        batch = await anext(source.batches(groups=8))
    assert any(group.verdict and not group.verdict.keep for group in batch.groups)
    assert all(trajectory.valid for trajectory in batch.trajectories)


class Curriculum:
    """Counts how often it hears of each group."""

    def __init__(self) -> None:
        self.heard: Counter[str] = Counter()
        self.rows = iter(range(10_000))

    def __iter__(self) -> Iterator[int]:
        return self.rows

    def finished(self, group: Group) -> None:
        self.heard[group.id] += 1


@pytest.mark.parametrize("how", ["collect", "batches"])
async def test_groups_kept_before_a_batch_ran_out_of_draws_are_not_played_again(how: str) -> None:
    tasks, policy = Curriculum(), Model()
    keep: Any = lambda group: Verdict(keep=index_of(group) % 4 == 0, reason="dull")  # noqa: E731
    async with rollouts(policy, keep=keep, tasks=tasks, max_lag=0, max_num_gen_batches=2) as source:
        seen: list[int] = []
        for _ in range(8):
            try:
                batch = await (source.collect(groups=4) if how == "collect" else anext(source.batches(groups=4)))
                seen += map(index_of, batch.groups)
            except ExhaustedError:
                continue
    assert seen == [4 * number for number in range(16)]
    assert {*tasks.heard.values()} == {1}
    assert source.ledger.balanced


async def test_takers_cancelled_at_every_step_hear_of_each_group_once() -> None:
    tasks = Curriculum()
    async with rollouts(Model(spread=3), keep=reward_varies, tasks=tasks, max_lag=0) as source:
        seen: list[int] = []
        for steps in range(0, 120, 5):
            taking = asyncio.Task(source.collect(groups=3))
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            taking.cancel()
            try:
                seen += map(index_of, (await taking).groups)
            except asyncio.CancelledError:
                continue
        seen += map(index_of, (await source.collect(groups=3)).groups)
    assert seen == sorted({*seen})
    assert {*tasks.heard.values()} == {1}
    assert source.ledger.balanced


async def test_batch_that_became_too_old_while_it_was_recorded_is_taken_back(tmp_path: Path) -> None:
    """The version rises at the very moment at which the batch is written."""
    async with rollouts(max_lag=0, run_dir=tmp_path) as source:
        flush, has_pushed = source._engine.observer.journal.flush, False

        async def push_and_flush() -> None:
            nonlocal has_pushed
            if not has_pushed:
                has_pushed = True
                await push(source, 1)
            await flush()

        source._engine.observer.journal.flush = push_and_flush  # type: ignore[method-assign]
        batch = await source.collect(groups=2)
        assert (source.version, {group.version for group in batch.groups}) == (1, {1})
        assert batch.index == 0
        assert batch.stats["dropped_stale"] == 2
        assert source.next_batch == 1
    events = [msgspec.json.decode(line) for line in (tmp_path / "journal.jsonl").read_bytes().splitlines()]
    assert [event["event"] for event in events if event["event"] in ("delivered", "taken_back")] == [
        "delivered", "taken_back", "delivered",
    ]  # fmt: skip
    assert source.ledger.balanced


@pytest.mark.parametrize("how", ["collect", "batches"])
async def test_batch_whose_taker_was_cancelled_is_not_lost_to_a_resumed_run(tmp_path: Path, how: str) -> None:
    """At every step of the way; what nobody has had is delivered by the run that is resumed."""
    for steps in range(0, 60, 2):
        directory = tmp_path / f"{steps}"
        seen: list[str] = []
        async with rollouts(Model(spread=2), run_dir=directory, order="start") as source:
            take: Any = source.collect(groups=2) if how == "collect" else source.batches(groups=2).__anext__()
            taking = asyncio.Task(take)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            taking.cancel()
            with suppress(asyncio.CancelledError):
                seen += [group.id for group in (await taking).groups]
        async with rollouts(Model(spread=2), run_dir=directory, order="start", resume=True) as source:
            seen += [group.id for group in (await source.collect(groups=2)).groups]
            assert source.next_batch == len(seen) / 2
        assert seen == [f"g{index}" for index in range(len(seen))]


async def test_start_order_with_a_batch_filter_and_changing_sizes_does_not_depend_on_timing() -> None:
    found = []
    for hurry, spread, pause in ((0, 0, False), (1, 20, True), (2, 40, False), (3, 5, True)):
        batches = []
        async with rollouts(Model(hurry, spread), keep=half, order="start", max_lag=2) as source:
            for size in (4, 2, 5, 3, 8, 1, 4):
                batch = await anext(source.batches(groups=size))
                batches.append([group.id for group in batch.groups])
                if pause:
                    await settle()
        found.append(batches)
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize("how", ["collect", "batches", "groups"])
async def test_stats_show_what_plays_without_a_lag(how: str) -> None:
    async with rollouts(Model(spread=30), max_lag=0, keep=reward_varies) as source:

        async def take() -> None:
            if how == "collect":
                await source.collect(groups=8)
            else:
                await anext(source.batches(groups=8) if how == "batches" else source.groups())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            for _ in range(8):
                await anyio.lowlevel.checkpoint()
            assert source.stats().playing_groups > 0
            assert source.figures().playing > 0
            await push(source, 1)
        assert source.stats().stale_groups == source.ledger.ends["stale"] / 2 > 0


KEEP_RATES = {"easy": 1.0, "hard": 0.1}


async def shares_of_batches(shares: Any, run_dir: Path | None = None, *, resume: bool = False) -> Counter[str]:
    def keep(group: Group) -> Verdict:
        return Verdict(keep=sampling_seed(7, group.id) % 100 < 100 * KEEP_RATES[group.tag], reason="dull")

    async with rollouts(
        env=[{"env": WALK, "tag": tag} for tag in KEEP_RATES],
        keep=keep,
        shares=shares,
        max_num_gen_batches=None,
        run_dir=run_dir,
        resume=resume,
    ) as source:
        tags: Counter[str] = Counter()
        async for batch in source.batches(groups=10):
            tags.update(group.tag for group in batch.groups)
            if batch.index % 10 == 9:
                return tags
    raise AssertionError("tasks never end")


async def test_shares_are_of_what_is_drawn_or_of_what_is_delivered(tmp_path: Path) -> None:
    assert (await shares_of_batches("drawn"))["easy"] > 85
    delivered = await shares_of_batches("delivered", tmp_path)
    assert abs(delivered["easy"] - delivered["hard"]) <= 10
    resumed = await shares_of_batches("delivered", tmp_path, resume=True)
    assert abs(resumed["easy"] - resumed["hard"]) <= 10
    with pytest.raises(UsageError, match="not with order='start'"):
        rollouts(shares="delivered", order="start")


class Slowly(Model):
    async def generate(self, request: Request) -> Generation:
        await anyio.sleep(1)
        return await super().generate(request)


def test_weights_that_take_long_are_no_stall() -> None:
    """A batch and an evaluation that are awaited while the policy is held back for longer than a stall may last."""

    async def play() -> None:
        async with rollouts(Slowly(), max_lag=1, stall_seconds=60) as source:
            ended: list[Any] = []

            async def take() -> None:
                ended.append(await anext(source.batches(groups=2)))

            async def evaluate() -> None:
                ended.append(await source.evaluate(2))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                tasks.start_soon(evaluate)
                await anyio.sleep(0.5)
                async with source.weight_update(1):
                    await anyio.sleep(500)
            assert len(ended) == 2

    run_virtually(play)


class Held(Model):
    """One group waits until it is let go."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.go = anyio.Event()
        self._group = group

    async def generate(self, request: Request) -> Generation:
        if request.session.partition(".")[0] == self._group:
            await self.go.wait()
        return await super().generate(request)


async def test_whole_batch_is_not_exhausted_while_it_waits_for_a_slow_group() -> None:
    """What is drawn meanwhile, and dropped, is for the batch after it."""
    model, taken = Held("g2"), list[Any]()

    async def take(source: Rollouts) -> None:
        taken.append(await anext(source.batches(groups=2)))

    def keep(group: Group) -> Verdict:
        return Verdict(not 5 <= index_of(group) <= 7)

    async with rollouts(model, keep=keep, max_lag=1, max_num_gen_batches=1) as source:
        await take(source)
        await settle()
        async with source.weight_update(1, "continue"):
            pass
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take, source)
                await settle()
                assert source.stats().dropped == {"dropped": 2}
                model.go.set()
        assert [len(batch.groups) for batch in taken] == [2, 2]


async def test_tasks_that_are_given_back_after_the_end_of_a_stream_are_played() -> None:
    model, seen = Held("g0"), list[int]()
    async with rollouts(model, tasks=range(12), max_lag=1) as source:
        async with anyio.create_task_group() as others:
            others.start_soon(source.collect, 4)
            await settle()
            async for batch in source.batches(groups=2):
                seen += map(index_of, batch.groups)
            others.cancel_scope.cancel()
        assert sorted(seen) == list(range(4, 12))
        model.go.set()
        with anyio.fail_after(PATIENCE):
            async for batch in source.batches(groups=2):
                seen += map(index_of, batch.groups)
    assert sorted(seen) == list(range(12))
    assert source.ledger.balanced


class Lingering(Model):
    """Replies to later groups do not come, and take a while to be cancelled."""

    is_held = True

    async def generate(self, request: Request) -> Generation:
        if self.is_held and int(request.session[1:].partition(".")[0]) > 2:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    for _ in range(30):
                        await anyio.lowlevel.checkpoint()
        return await super().generate(request)


@pytest.mark.parametrize("steps", range(18, 60, 3))
async def test_collect_that_asyncio_cancels_while_others_end_leaves_nothing_behind(steps: int) -> None:
    """Its own cancellation does not heed a shield: at any step, the next one must find everything at its end."""
    model, seen = Lingering(), list[str]()
    async with rollouts(model, keep=lambda group: Verdict(group.id != "g0"), max_lag=0, max_in_flight=8) as source:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(source.collect(2))
            for _ in range(steps):
                await asyncio.sleep(0)
            first.cancel()
        model.is_held = False
        seen += [] if first.cancelled() else [group.id for group in first.result().groups]
        with anyio.fail_after(PATIENCE):
            while len(seen) < 6:
                seen += [group.id for group in (await source.collect(2)).groups]
    assert seen == [f"g{number}" for number in range(1, 7)]
    assert source.ledger.balanced
    assert not source.ledger.open
