"""The parts of the sampler, each by itself: draws, admission, judgement, the tray, the ledger."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import ExhaustedError, Group, Ledger, Share, StopReason, Task, Trajectory, UsageError, Verdict
from asyncrollout.errors import EnvError
from asyncrollout.filters import BatchFilter, reward_varies
from asyncrollout.rollouts.sampling.admission import AdmissionLoad, AdmissionRules, is_wanted
from asyncrollout.rollouts.sampling.batch_buffer import BatchBuffer, OnExhausted
from asyncrollout.rollouts.sampling.batch_stats import BatchStats
from asyncrollout.rollouts.sampling.filtering import FilterRunner, KeepRate, check_filter
from asyncrollout.rollouts.sampling.task_source import GroupRequest, TaskSource
from asyncrollout.trajectories import Turn


def group(number: int, *rewards: float | None, keep: bool | None = None, version: int = 0) -> Group:
    """A group with these rewards, where None has failed; with a verdict, if `keep` is given."""
    members = [
        Trajectory(
            uid=f"g{number}.{member}",
            env="walk",
            seed=number,
            turns=[Turn("here", version=version, info={"success": True})],
            reward=reward or 0.0,
            stop_reason=StopReason.TERMINATED if reward is not None else StopReason.ENV_ERROR,
            error=EnvError("broken") if reward is None else None,
            member=member,
        )
        for member, reward in enumerate(rewards or (1.0, 0.0))
    ]
    verdict = None if keep is None else Verdict(keep, "" if keep else "dull")
    return Group(f"g{number}", members, "walk", verdict)


ONE = [Share("walk", "walk")]


async def drawn(draws: TaskSource, count: int) -> list[GroupRequest]:
    return [await anext(draws) for _ in range(count)]


async def test_draws_without_tasks_never_end_and_depend_on_the_seed_alone() -> None:
    first, again, other = [await drawn(TaskSource(None, seed, ONE), 50) for seed in (1, 1, 2)]
    assert first == again
    assert [draw.id for draw in first] == [f"g{index}" for index in range(50)]
    assert len({draw.seed for draw in [*first, *other]}) == 100


async def test_draws_of_tasks() -> None:
    async def slowly() -> AsyncIterator[Any]:
        yield "a"
        yield Task("b", seed=5)

    for tasks in (["a", Task("b", seed=5)], iter(["a", Task("b", seed=5)]), slowly()):
        draws = TaskSource(tasks, 0, ONE)
        first, second = await drawn(draws, 2)
        assert (first.task, second.task, second.seed) == ("a", "b", 5)
        with pytest.raises(StopAsyncIteration):
            await anext(draws)


async def test_draws_that_were_given_back_come_first_and_in_order() -> None:
    draws = TaskSource(None, 0, ONE)
    first = await drawn(draws, 5)
    draws.give_back([first[4], first[2], first[3]])
    assert [draw.index for draw in await drawn(draws, 5)] == [2, 3, 4, 5, 6]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=5), st.integers(1, 200))
async def test_shares_are_kept_at_every_moment(shares: list[float], count: int) -> None:
    mix = [Share("walk", f"t{place}", share) for place, share in enumerate(shares)]
    tags = Counter(draw.tag for draw in await drawn(TaskSource(None, 0, mix), count))
    for share in mix:
        assert abs(tags[share.tag] - count * share.share / sum(shares)) < len(shares)


@pytest.mark.parametrize("tasks", ["abc", 7, b"x"])
def test_what_is_no_source_of_tasks(tasks: Any) -> None:
    with pytest.raises(UsageError, match="tasks="):
        TaskSource(tasks, 0, ONE)


async def test_task_for_an_unknown_tag() -> None:
    with pytest.raises(UsageError, match="did you mean 'walk'"):
        await anext(TaskSource([Task(tag="wolk")], 0, ONE))


@given(st.integers(0, 100), st.integers(0, 50), st.floats(0.02, 1), st.integers(0, 3))
def test_admission_starts_what_will_be_needed(undecided: int, buffered: int, rate: float, batches: int) -> None:
    rules = AdmissionRules(needed=8, batches=batches)
    wanted = is_wanted(AdmissionLoad(undecided, buffered, 0), rules, rate)
    assert wanted == (rate * undecided + buffered < 8 * batches)


def test_admission_stops_at_the_draws_of_a_batch() -> None:
    rules = AdmissionRules(needed=4, batches=1, most_draws=12)
    assert is_wanted(AdmissionLoad(2, 0, 9), rules, 0.02)
    assert not is_wanted(AdmissionLoad(2, 0, 10), rules, 0.02)


def test_rounds_that_were_begun_are_completed() -> None:
    rules = AdmissionRules(needed=8, batches=1, in_rounds=True)
    assert is_wanted(AdmissionLoad(5, 7, 0), rules, 1.0)
    assert not is_wanted(AdmissionLoad(8, 7, 0), rules, 1.0)


def test_judge_keeps_all_without_a_filter_and_counts_what_it_drops() -> None:
    judge = FilterRunner(None, KeepRate())
    assert judge.rate.now == 1.0
    assert [one.verdict for one in judge.judge(group(0), 4)] == [Verdict(keep=True)]
    judge = FilterRunner(reward_varies, KeepRate())
    for number in range(9):
        judge.judge(group(number, 1.0, 1.0 if number % 3 else 0.0), 4)
    assert judge.rate.dropped == {"constant_reward": 6}
    assert judge.rate.now == pytest.approx(4 / 10)
    judge.judge(group(9, None, 1.0, keep=False), 4)
    assert judge.rate.dropped == {"constant_reward": 6, "dull": 1}


def test_batch_filter_judges_whole_rounds() -> None:
    seen: list[int] = []

    def best(groups: Any) -> list[Verdict]:
        seen.append(len(groups))
        top = max(one.rewards.sum() for one in groups)
        return [Verdict(bool(one.rewards.sum() == top), "outranked") for one in groups]

    judge = FilterRunner(BatchFilter(best), KeepRate())
    assert judge.in_rounds
    judged = [judge.judge(group(number, float(number)), 3) for number in range(7)]
    assert [len(one) for one in judged] == [0, 0, 3, 0, 0, 3, 0]
    assert judge.waiting == 1
    assert [one.id for round_ in judged for one in round_ if one.verdict and one.verdict.keep] == ["g2", "g5"]
    assert len(judge.judge_rest()) == 1
    assert judge.judge_rest() == []
    assert seen == [3, 3, 1]


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (lambda group: 1 / 0, "raised ZeroDivisionError"),
        (lambda group: None, "return a Verdict"),
        (BatchFilter(lambda groups: []), "returned 0 verdicts for 1 groups"),
    ],
)
def test_filters_that_fail_are_mistakes_of_the_caller(keep: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FilterRunner(keep, KeepRate()).judge(group(0), 1)
    with pytest.raises(UsageError, match="is not a filter"):
        check_filter(0.5)  # type: ignore[arg-type]


def test_filter_may_say_yes_or_no() -> None:
    (kept,) = FilterRunner(lambda group: True, KeepRate()).judge(group(0), 1)  # type: ignore[arg-type]
    assert kept.verdict == Verdict(keep=True)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.sampled_from(["raise", "short", "fill"]))
def test_every_group_leaves_the_tray_once(keeps: list[bool], needed: int, on_exhausted: OnExhausted) -> None:
    """Whatever is kept or dropped, nothing is lost and nothing comes twice, and no batch costs more than its draws."""
    tray = BatchBuffer(3, on_exhausted)
    tray.needed = needed
    left: list[str] = []
    for number, keep in enumerate(keeps):
        left += [one.id for one in tray.put(group(number, keep=keep))]
        if len(tray.kept) >= needed:
            left += [one.id for one in tray.take(needed)]
        elif tray.exhausted:
            assert tray.judged == 3 * needed
            if on_exhausted == "raise" or (on_exhausted == "short" and not tray.kept):
                with pytest.raises(ExhaustedError, match=f"of {needed} groups were kept after {3 * needed} draws"):
                    tray.take_exhausted(needed)
            else:
                batch = tray.take_exhausted(needed)
                assert 0 < len(batch) <= needed
                assert on_exhausted == "short" or len(batch) == needed
                left += [one.id for one in batch]
            left += [one.id for one in tray.start_next_batch()]
    rest = [one.id for one in (*tray.kept, *tray.rejected)]
    assert sorted([*left, *rest]) == sorted(f"g{number}" for number in range(len(keeps)))


def test_fill_marks_what_it_takes_and_leaves_failed_groups_out() -> None:
    tray = BatchBuffer(2, "fill")
    tray.needed = 2
    assert tray.put(group(0, keep=True)) == []
    assert [one.id for one in tray.put(group(1, None, None, keep=False))] == ["g1"]
    tray.put(group(2, keep=False))
    tray.put(group(3, keep=False))
    assert tray.exhausted
    filled = tray.take_exhausted(2)
    assert [(one.id, one.verdict and one.verdict.keep) for one in filled] == [("g0", True), ("g2", False)]


@pytest.mark.parametrize(
    ("on_exhausted", "keep", "advice"),
    [
        ("raise", True, "raise max_num_gen_batches, or choose on_exhausted='short' or 'fill'"),
        ("raise", False, "raise max_num_gen_batches, or choose on_exhausted='fill'"),
        ("short", False, "raise max_num_gen_batches, or choose on_exhausted='fill'"),
        ("fill", False, "raise max_num_gen_batches"),
    ],
)
def test_advice_on_exhausted_draws_is_what_would_have_helped(on_exhausted: Any, keep: bool, advice: str) -> None:
    tray = BatchBuffer(1, on_exhausted)
    tray.needed = 2
    tray.put(group(0, None, keep=False))
    tray.put(group(1, *((1.0, 0.0) if keep else (None,)), keep=keep))
    with pytest.raises(ExhaustedError, match=f"{advice}$"):
        tray.take_exhausted(2)


def test_groups_that_are_too_old_are_taken_out() -> None:
    tray = BatchBuffer(None, "raise")
    tray.needed = 4
    for number, version in enumerate([0, 2, 1, 3]):
        tray.put(group(number, keep=True, version=version))
    assert [one.id for one in tray.remove_older(2)] == ["g0", "g2"]
    assert [one.id for one in tray.kept] == ["g1", "g3"]


def test_ledger_counts_every_rollout_once() -> None:
    ledger = Ledger()
    one = group(0, 1.0, None, 0.0)
    for trajectory in one.trajectories:
        ledger.dispatched(trajectory.uid)
    ledger.end(["g0.1"], "failed")
    ledger.dispatched("g0.1")
    assert ledger.balanced
    ledger.end_group(one, "filtered")
    assert ledger.ends == {"failed": 2, "filtered": 2}
    assert (ledger.dispatched_count, ledger.open, ledger.balanced) == (4, {}, True)
    with pytest.raises(KeyError):
        ledger.end(["g0.0"], "delivered")
    ledger.dispatched("g1.0")
    with pytest.raises(AssertionError, match="in flight already"):
        ledger.dispatched("g1.0")
    ledger.cancel(["g1", "g7"])
    assert ledger.ends["cancelled"] == 1
    assert "1 cancelled" in repr(ledger)


def test_ledger_says_who_is_stuck() -> None:
    ledger = Ledger()
    assert "the source of tasks returns no task" in ledger.stuck()
    for number in range(5):
        ledger.dispatched(f"g{number}.0").begins("the policy")
    message = ledger.stuck()
    assert re.match(r"rollout g0.0 has waited \S+ s for the policy in turn 0; ", message)
    assert message.endswith("and 2 others")


def test_tally_tells_of_all_that_was_played() -> None:
    tally = BatchStats()
    tally.add(group(0, 1.0, 0.0, keep=True))
    tally.add(group(1, 5.0, None, keep=False))
    assert tally.figures(tally.take()) == {
        "drawn_groups": 2,
        "failed_rollouts": 1,
        "mean_reward": 2.0,
        "mean_turns": 1.0,
        "mean_tokens": 0.0,
        "dropped_dull": 1,
        "success_rate": 1.0,
    }
    assert tally.figures(tally.take()) == {
        "drawn_groups": 0,
        "failed_rollouts": 0,
        "mean_reward": 2.0,
        "mean_turns": 1.0,
        "mean_tokens": 0.0,
        "success_rate": 1.0,
    }


def test_draws_of_a_batch_that_was_taken_are_not_those_of_the_next_one() -> None:
    """If the size of a batch changes, or groups become stale, it may be another batch than it was judged for."""
    smaller = BatchBuffer(1, "raise")
    smaller.needed = 2
    smaller.put(group(0, keep=True))
    smaller.needed = 1
    assert [one.id for one in smaller.take(1)] == ["g0"]
    assert not smaller.exhausted

    older = BatchBuffer(1, "raise")
    older.needed = 2
    for number, version in enumerate((0, 1, 1)):
        older.put(group(number, keep=True, version=version))
    older.remove_older(1)
    older.put(group(3, keep=False, version=1))
    assert [one.id for one in older.take(2)] == ["g1", "g2"]
    assert (older.judged, older.exhausted) == (1, False)
