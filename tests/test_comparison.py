"""How runs compare: intervals that hold as often as they say, and recorded runs side by side."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import (
    EnvError,
    Generation,
    Group,
    Request,
    Rollouts,
    StopReason,
    Trajectory,
    Turn,
    UsageError,
    Verdict,
)
from asyncrollout.journal.events import Began
from asyncrollout.journal.records import RunRecords
from asyncrollout.report.compared_run import ComparedRun, decide, read_side
from asyncrollout.stats import (
    ComparedGroup,
    Estimate,
    difference,
    mean,
    mean_count,
    pass_at,
    share,
    student_t,
    summarize,
)
from tests.envs.rollout import WALK
from tests.playing import PATIENCE
from tests.recorded_runs import BEGAN, events_of, played, write_run

ROUNDS = 1_000


def coverage(truth: float, estimate: Callable[[], Estimate]) -> float:
    """How often the interval holds the truth, where there is one."""
    found = [one for one in (estimate() for _ in range(ROUNDS)) if one.low is not None and one.high is not None]
    assert len(found) > ROUNDS / 2
    return sum(one.low <= truth <= one.high for one in found) / len(found)  # type: ignore[operator]


def group(number: int, successes: int, rewards: list[float], tag: str = "env") -> ComparedGroup:
    return ComparedGroup(f"g{number}", tag, tuple(rewards), successes, 0, 1.0, 1.0, kept=True)


@pytest.mark.parametrize("groups", [4, 10, 60])
def test_intervals_of_rewards_hold_95_times_of_100_and_those_over_members_do_not(groups: int) -> None:
    draw = np.random.default_rng(groups)

    def rewards() -> Any:
        return draw.normal(size=(groups, 1)) + draw.normal(size=(groups, 8))

    assert 0.93 < coverage(0.0, lambda: mean(rewards().mean(1).tolist())) < 0.97
    assert coverage(0.0, lambda: mean(rewards().ravel().tolist())) < 0.75


@pytest.mark.parametrize("groups", [10, 40])
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize(("a", "b"), [(0.05, 0.95), (0.5, 0.5), (2, 2), (20, 20), (1.9, 0.1), (0.02, 1.98)])
def test_intervals_of_pass_rates_hold_near_0_and_1_too(a: float, b: float, k: int, groups: int) -> None:
    draw = np.random.default_rng([groups, k])
    truth = 1 - math.exp(math.lgamma(b + k) + math.lgamma(a + b) - math.lgamma(b) - math.lgamma(a + b + k))

    def played() -> list[ComparedGroup]:
        successes = (draw.random((groups, 8)) < draw.beta(a, b, size=(groups, 1))).sum(1).tolist()
        return [group(number, count, [0.0] * 8) for number, count in enumerate(successes)]

    assert coverage(truth, lambda: summarize(played(), [k]).pass_at[k]) > 0.9


@pytest.mark.parametrize(
    ("a", "b", "groups"), [(0.05, 0.95, 20), (0.05, 0.95, 40), (1.9, 0.1, 20), (0.03, 0.97, 40), (0.98, 0.02, 40)]
)
def test_intervals_of_pass_rates_hold_where_few_groups_show_how_alike_members_are(
    a: float, b: float, groups: int
) -> None:
    draw = np.random.default_rng(groups)

    def passed() -> list[float]:
        return ((draw.random((groups, 8)) < draw.beta(a, b, size=(groups, 1))).sum(1) / 8).tolist()  # type: ignore[no-any-return]

    assert coverage(a / (a + b), lambda: share(passed(), 8 * groups)) > 0.91


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.1, 0.2, 0.5])
def test_intervals_of_pass_rates_hold_as_often_as_documented(rate: float) -> None:
    """In 92 to 99 % of runs in which half of the variance is the task's, but for the error of this simulation."""
    for groups, size in product((10, 20, 40, 100), (4, 8)):
        draw = np.random.default_rng([int(100 * rate), groups, size])
        chances = draw.beta(rate, 1 - rate, size=(ROUNDS, groups, 1))
        passed = iter((draw.random((ROUNDS, groups, size)) < chances).mean(2).tolist())
        held = coverage(rate, lambda passed=passed, all_=groups * size: share(next(passed), all_))  # type: ignore[misc]
        assert 0.905 < held < 0.995, f"{groups} groups of {size}"


@pytest.mark.parametrize("shared", [True, False])
def test_intervals_of_differences_hold_and_pairs_make_them_narrow(shared: bool) -> None:
    draw = np.random.default_rng(7)

    def differ() -> Estimate:
        tasks = draw.normal(size=20)
        others = tasks if shared else draw.normal(size=20)
        before = [group(n, 0, [float(task + draw.normal())]) for n, task in enumerate(tasks)]
        start = 0 if shared else 100
        after = [group(start + n, 0, [float(task + 0.5 + draw.normal())]) for n, task in enumerate(others)]
        found = difference(before, after, [1])
        assert found.pairs == (20 if shared else None)
        return found.reward

    assert 0.93 < coverage(0.5, differ) < 0.97


@pytest.mark.parametrize("groups", [10, 40])
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_intervals_of_lengths_hold_where_a_few_are_long(groups: int, spread: float) -> None:
    """Turns and tokens are skewed: log-normal over tasks, and within them."""
    draw = np.random.default_rng([groups, int(10 * spread)])
    truth = 10 * math.exp(spread**2)

    def lengths() -> list[float]:
        tasks = draw.normal(size=(groups, 1)) + draw.normal(size=(groups, 8))
        return (10 * np.exp(spread * tasks)).mean(1).tolist()  # type: ignore[no-any-return]

    assert coverage(truth, lambda: mean_count(lengths())) > (0.92 if spread < 1 else 0.78)


@pytest.mark.parametrize("groups", [10, 40, 100])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
def test_intervals_of_the_share_kept_hold(groups: int, rate: float) -> None:
    draw = np.random.default_rng([groups, int(100 * rate)])

    def kept() -> Estimate:
        return share((draw.random(groups) < rate).astype(float).tolist(), groups)

    assert 0.92 < coverage(rate, kept) <= 1


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("groups", [10, 40])
def test_intervals_of_differences_of_pass_rates_hold(shared: bool, k: int, groups: int) -> None:
    draw = np.random.default_rng([groups, k, shared])
    truth = float(
        np.mean([(1 - rate) ** k - (1 - rate) ** (2 * k) for rate in np.random.default_rng(0).beta(1, 1, 10**6)])
    )

    def differ() -> Estimate:
        """The other policy passes as often as two rollouts of the first one."""
        rates = draw.beta(1, 1, size=groups)
        others = rates if shared else draw.beta(1, 1, size=groups)
        first = (draw.random((groups, 8)) < rates[:, None]).sum(1).tolist()
        second = (draw.random((groups, 8)) < 1 - (1 - others[:, None]) ** 2).sum(1).tolist()
        before = [group(number, count, [0.0] * 8) for number, count in enumerate(first)]
        after = [group(number + (not shared) * groups, count, [0.0] * 8) for number, count in enumerate(second)]
        return difference(before, after, [k]).pass_at[k]

    few_differ = shared and k > 1 and groups == 10  # most pairs pass both times: their spread says little
    assert coverage(truth, differ) > (0.85 if few_differ else 0.92)


def test_a_difference_that_tasks_hide_is_seen_by_pairs() -> None:
    draw = np.random.default_rng(0)
    tasks = (10 * draw.normal(size=30)).tolist()
    before = [group(n, 0, [task]) for n, task in enumerate(tasks)]
    after = [group(n, 0, [task + 1 + float(draw.normal()) / 10]) for n, task in enumerate(tasks)]
    paired = difference(before, after, [1])
    apart = difference(before, [msgspec.structs.replace(one, what=f"x{one.what}") for one in after], [1])
    assert paired.pairs == 30
    assert paired.reward.low is not None
    assert paired.reward.low > 0.9
    assert apart.pairs is None
    assert apart.reward.low is not None
    assert apart.reward.low < 0
    few = difference(before, after[:2] + [msgspec.structs.replace(one, what=f"x{one.what}") for one in after[2:]], [1])
    assert few.pairs is None


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (30, 2.0423), (1e6, 1.95996)],
)
def test_students_t_is_as_in_tables(freedom: float, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, abs=0.004)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_success(case: tuple[int, int, int]) -> None:
    count, successes, k = case
    outcomes = [place < successes for place in range(count)]
    subsets = [any(chosen) for chosen in combinations(outcomes, k)]
    assert pass_at(count, successes, k) == pytest.approx(sum(subsets) / len(subsets))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(1, 9))
def test_shares_stay_between_0_and_1_and_around_their_mean(values: list[float], each: int) -> None:
    found = share(values, each * len(values))
    low, middle, high = found.low, found.mean, found.high
    assert None not in (low, middle, high)
    assert 0 <= low <= middle <= high <= 1  # type: ignore[operator]


def test_intervals_of_counts_do_not_reach_below_zero() -> None:
    found = summarize([msgspec.structs.replace(group(at, 0, [0.0]), turns=9.0 * (at == 0)) for at in range(3)], [1])
    assert (found.turns.mean, found.turns.low) == (3.0, 0.0)
    assert mean([9.0, 0.0, 0.0]).low == pytest.approx(3 - 4.3027 * 3)


def test_what_cannot_be_known_is_none() -> None:
    assert mean([]) == share([], 0) == Estimate()
    assert (mean([3.0]), share([1.0], 8)) == (Estimate(3.0), Estimate(1.0))
    assert mean([0.1 + 0.2, 0.3, 0.3]) == Estimate(pytest.approx(0.3))  # type: ignore[arg-type]
    for all_or_none in (0.0, 1.0):  # of a share, its spread is known from its mean
        assert None not in (share([all_or_none] * 3, 12).low, share([all_or_none] * 3, 12).high)
    assert difference([], [group(0, 0, [1.0])], [1]).reward == Estimate()
    assert difference([group(0, 0, [1.0])], [group(0, 0, [2.0])], [1]).reward == Estimate(1.0)
    empty = summarize([], [1, 4])
    assert (empty.groups, empty.reward, empty.pass_at[4]) == (0, Estimate(), Estimate())
    with pytest.raises(UsageError, match="pass@3 of 2 rollouts"):
        pass_at(2, 1, 3)


def sides(directory: Path, *groups: Group, **given: Any) -> list[ComparedGroup]:
    """The groups as they are read from a run that was given these options."""
    began = Began(at=BEGAN, given=given)
    return read_side(write_run(directory, [*groups], [began, *events_of([*groups])[1:]]), "run").played


def test_members_that_failed_are_counted_and_left_out(tmp_path: Path) -> None:
    members = [
        played("g0", 0, [1.0, 0.0]),
        played("g0", 1, [0.0, 0.0]),
        played("g0", 2, [9.0], error=EnvError("broken")),
    ]
    all_failed = [played("g1", 0, [9.0], error=EnvError("broken"))]
    dropped = Verdict(keep=False, reason="constant_reward")
    mixed, failed = sides(tmp_path, Group("g0", members, "walk", dropped), Group("g1", all_failed, "walk", dropped))
    assert (mixed.rewards, mixed.successes, mixed.failed, mixed.kept) == ((1.0, 0.0), 1, 1, False)
    figures = summarize([mixed], [1, 2, 3])
    assert (figures.rollouts, figures.failed, figures.reward.mean, figures.turns.mean) == (3, 1, 0.5, 2.0)
    assert [figures.pass_at[k].mean for k in (1, 2, 3)] == [0.5, 1.0, None]
    assert (failed.rewards, failed.failed) == ((), 1)
    assert summarize([mixed, failed], [1]).reward.mean == 0.5


def test_runs_are_compared_by_what_their_env_reports_in_any_of_them(tmp_path: Path) -> None:
    """One whose rollouts were all cut off with positive rewards has no success, where the other run's env reports."""
    cut = [played("g0", member, [0.5, 0.5], stop_reason=StopReason.TURNS) for member in range(2)]
    silent = [played("g0", 2, [0.5])]
    said = [Turn("state", info={"success": success}, reward=0.1) for success in (True, False)]
    reported = [played("g0", member, turns=[turn]) for member, turn in enumerate(said)]

    def side(name: str, members: list[Trajectory]) -> ComparedRun:
        group = Group("g0", members, "maze", Verdict(keep=True))
        return read_side(write_run(tmp_path / name, [group]), name)

    both = [side("silent", [*cut, *silent]), side("reported", reported)]
    assert [one.passed for one in both[0].members] == [True, True, True]
    decide(both)
    assert [[one.passed for one in each.members] for each in both] == [[False] * 3, [True, False]]
    assert [one.successes for each in both for one in each.played] == [0, 1]
    assert [one.passed for one in side("cut", cut).members] == [False, False]


def test_only_the_same_task_makes_a_pair(tmp_path: Path) -> None:
    def what(task: Any = None, tag: str = "walk", setting: object = None, number: str = "g0", seed: int = 7) -> str:
        group = Group(number, [played(number, 0, task=task, seed=seed)], tag, Verdict(keep=True))
        (one,) = sides(tmp_path, group, envs={tag: setting})
        return one.what

    assert what({"a": 1, "b": np.float64(2)}) == what({"b": np.float64(2), "a": 1})
    assert len({what(), what(1), what(tag="x"), what(setting={"size": 3}), what(number="g1"), what(seed=8)}) == 6


class Model:
    """Goes by the sampling seed."""

    async def generate(self, request: Request) -> Generation:
        return Generation(f"go {(request.sampling.seed or 0) % 3}")


async def record(directory: Path, **options: Any) -> None:
    async with Rollouts(WALK, policy=Model(), group_size=2, order="start", run_dir=directory, **options) as rollouts:
        for _ in range(3):
            await rollouts.collect(4)


def compare(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "asyncrollout", "compare", *arguments],
        cwd=directory, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip


async def test_recorded_runs_are_compared_by_what_they_share(tmp_path: Path) -> None:
    await record(tmp_path / "one", seed=1)
    await record(tmp_path / "same", seed=1)
    await record(tmp_path / "other", seed=2)
    groups = [*RunRecords(tmp_path / "one").groups()]
    done = compare(tmp_path, "one", "same", "other", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    one, same, _, less_same, less_other = map(json.loads, done.stdout.splitlines())
    assert (one["run"], one["env"], one["groups"], one["rollouts"]) == ("one", None, len(groups), 2 * len(groups))
    assert one["reward"]["mean"] == pytest.approx(np.mean([group.rewards.mean() for group in groups]))
    assert {*one["pass_at"]} == {"1", "2"}
    assert {**same, "run": "one"} == one
    assert (less_same["run"], less_same["less"], less_same["pairs"]) == ("same", "one", len(groups))
    assert less_same["reward"] == {"mean": 0.0, "low": None, "high": None}
    assert (less_other["pairs"], less_other["reward"]["low"] < less_other["reward"]["high"]) == (None, True)
    shown = compare(tmp_path, "one", "other", "--k", "1").stdout.splitlines()
    assert shown[0].split() == ["all", "run", "mean", "less", "one"]
    assert any(line.split()[:2] == ["pass@1", "one"] for line in shown)
    assert not any("pass@2" in line for line in shown)
    assert max(map(len, shown)) <= 80


def test_groups_that_were_given_up_do_not_count(tmp_path: Path) -> None:
    lines = [
        {"event": "began", "format": "asyncrollout.run", "version": 1, "at": 0, "given": {"group_size": 1}},
        {"event": "judged", "group": "g0", "keep": True, "reason": "", "at": 0},
        {"event": "cancelled", "group": "g0", "at": 0},
    ]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [*RunRecords(tmp_path).groups()] == []
    done = compare(tmp_path, ".")
    assert (done.returncode, done.stderr) == (0, "")
    assert ["reward", tmp_path.name, "-"] in [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "trouble"),
    [(["nowhere"], "nowhere holds no run: it has no journal.jsonl"), ([".", "--k", "2"], "--k 2: it must be")],
)
def test_bad_input_is_one_clear_message(tmp_path: Path, arguments: list[str], trouble: str) -> None:
    line = {"event": "began", "format": "asyncrollout.run", "version": 1, "at": 0, "given": {"group_size": 1}}
    (tmp_path / "journal.jsonl").write_text(json.dumps(line) + "\n")
    done = compare(tmp_path, *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert trouble in done.stderr
