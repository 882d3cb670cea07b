"""The figures of a run, against slow and obvious sums over all that happened."""

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.errors import EnvError, ProviderError, RolloutError
from asyncrollout.telemetry import Gauges, JsonLines, MetricsCollector, RunMetrics, flat
from asyncrollout.telemetry.collector import compare
from asyncrollout.trajectories import Group, StopReason, Trajectory, Turn, Verdict
from asyncrollout.types import Generation, Usage

ENDS: list[tuple[StopReason, RolloutError | None]] = [
    (StopReason.TERMINATED, None),
    (StopReason.TURNS, None),
    (StopReason.ENV_ERROR, EnvError("broken")),
    (StopReason.POLICY_ERROR, ProviderError("gone")),
]


class Clock:
    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def turn(seconds: float = 0.0, tokens: int = 0, *, counted: bool = True, valid: bool = True, **info: Any) -> Turn:
    usage, ids = (Usage(completion=tokens), None) if counted else (Usage(), np.zeros(tokens, np.int32))
    return Turn(
        None, usage=usage, token_ids=ids, valid=valid, info=info, policy_seconds=seconds, env_seconds=2 * seconds
    )


def reply(turn: Turn) -> Generation:
    return Generation(
        turn.reply, token_ids=None if turn.token_ids is None else turn.token_ids.tolist(), usage=turn.usage
    )


def trajectory(reward: float, end: int = 0, success: bool | None = None) -> Trajectory:
    stop, error = ENDS[end]
    return Trajectory("uid", "env", 0, [turn(success=success)], reward, stop, error)


def group(*rewards: float, keep: bool | None = True, reason: str = "", failed: int = 0) -> Group:
    members = [trajectory(reward) for reward in rewards] + [trajectory(1e9, 2)] * failed
    return Group("id", members, verdict=None if keep is None else Verdict(keep, reason))


numbers = st.floats(-100, 100).map(lambda value: round(value, 3))
turns = st.builds(turn, st.floats(0, 9), st.integers(0, 99), counted=st.booleans(), valid=st.booleans())
trajectories = st.builds(trajectory, numbers, st.integers(0, 3), st.sampled_from([None, True, False]))
groups = st.builds(
    lambda rewards, keep, reason, failed: group(*rewards, keep=keep, reason=reason, failed=failed),
    st.lists(numbers, max_size=4),
    st.sampled_from([None, True, False]),
    st.sampled_from(["", "constant", "stale"]),
    st.integers(0, 2),
)
batches = st.tuples(st.integers(0, 9), st.integers(0, 3))
events = st.lists(st.tuples(st.floats(0, 20), turns | trajectories | groups | batches), max_size=60)


@given(events, st.floats(-50, 50), st.floats(0, 40), st.integers(0, 3))
def test_figures_are_what_summing_everything_up_gives(
    events: list[tuple[float, Any]], start: float, wait: float, stale: int
) -> None:
    clock = Clock(start)
    meter = MetricsCollector(clock)
    seen: list[tuple[float, Any]] = []
    for gap, event in events:
        clock.now += gap
        seen.append((clock.now, event))
        match event:
            case Turn():
                meter.replied(reply(event), event.policy_seconds)
                meter.played(event)
            case Trajectory():
                meter.ended(event)
            case Group():
                meter.judged(event)
            case (count, lag):
                meter.delivered(count, lag)
    kept_groups = [event for _, event in seen if isinstance(event, Group) and event.verdict and event.verdict.keep]
    never_judged = stale - len(kept_groups[:stale])
    for each in kept_groups[:stale]:
        meter.dropped_stale(each.verdict)
    for _ in range(never_judged):
        meter.dropped_stale(None)
    now = clock.now + wait
    figures = meter.read(now, Gauges(playing=7, wanted_batches=3, wanted_groups=15))

    played = [event for _, event in seen if isinstance(event, Turn)]
    ended = [event for _, event in seen if isinstance(event, Trajectory)]
    judged = [event for _, event in seen if isinstance(event, Group)]
    handed = [event for _, event in seen if isinstance(event, tuple)]
    kept = [time for time, event in seen if isinstance(event, Group) and (event.verdict is None or event.verdict.keep)]
    valid = [one.success for one in ended if one.valid]
    reports = any(success is not None for success in valid)  # then one without a report is no success
    rewards = [np.mean([one.reward for one in each.completed]) for each in judged if each.completed]
    reasons = Counter(each.verdict.reason or "dropped" for each in judged if each.verdict and not each.verdict.keep)

    assert figures.playing == 7
    assert figures.seconds == now - start
    assert (figures.batches, figures.delivered) == (len(handed), sum(count for count, _ in handed))
    assert figures.lag == (handed[-1][1] if handed else 0)
    assert (figures.wanted_batches, figures.wanted_groups) == (3, 15)
    assert (figures.groups, figures.kept) == (len(judged) + never_judged, len(kept) - stale + never_judged)
    assert figures.groups == figures.kept + sum(figures.dropped.values())
    assert figures.dropped == dict(reasons + Counter(stale=stale))
    assert figures.rollouts == len(ended)
    assert figures.errors == Counter(one.stop_reason.blame for one in ended if not one.valid)
    assert figures.success_rate == (pytest.approx(valid.count(True) / len(valid)) if reports else None)
    assert figures.keep_rate == (figures.kept / figures.groups if figures.groups else None)
    assert figures.turns == len(played)
    assert figures.invalid == sum(not one.valid for each in ended for one in each.turns)
    assert figures.tokens == sum(one.sampled_tokens for one in played)
    assert figures.reward_mean == (pytest.approx(np.mean(rewards)) if rewards else None)
    first = math.floor(now) - 29
    recent = [event for time, event in seen if isinstance(event, Turn) and math.floor(time) >= first]
    if (span := now - max(first, start)) > 0:
        assert figures.turns_per_second == pytest.approx(len(recent) / span)
        assert figures.tokens_per_second == pytest.approx(sum(one.sampled_tokens for one in recent) / span)
    if played:
        assert figures.policy_seconds.mean == pytest.approx(np.mean([one.policy_seconds for one in played]))
        assert figures.env_seconds.max == max(one.env_seconds for one in played)
    left = max(15 - max(figures.kept, figures.delivered), 0)
    assert figures.eta == (pytest.approx(left * (now - start) / len(kept)) if len(kept) >= 4 else None)
    means = [np.mean([one.reward for one in each.completed]) for each in judged if each.completed]
    if len(means) <= 32:
        assert figures.reward_history == pytest.approx(means)


def test_percentiles_are_those_of_recent_calls() -> None:
    meter = MetricsCollector()
    for seconds in range(3_000):
        meter.replied(Generation("x"), float(seconds))
    taken = meter.read(0.0, Gauges()).policy_seconds
    recent = np.arange(3_000 - 1_024, 3_000)
    assert (taken.count, taken.max) == (1_024, 2_999)
    assert taken.p50 == pytest.approx(np.percentile(recent, 50), abs=1)
    assert taken.p95 == pytest.approx(np.percentile(recent, 95), abs=1)


def test_rates_are_those_of_the_last_thirty_seconds() -> None:
    clock = Clock(0.25)
    meter = MetricsCollector(clock)
    for tokens in range(200):
        clock.now += 0.5
        meter.replied(reply(turn(tokens=tokens)), 0.0)
        first = math.floor(clock.now) - 29
        recent = [earlier for earlier in range(tokens + 1) if 0.75 + earlier / 2 >= first]
        span = clock.now - max(first, 0.25)
        figures = meter.read(clock.now, Gauges())
        assert figures.turns_per_second == pytest.approx(len(recent) / span)
        assert figures.tokens_per_second == pytest.approx(sum(recent) / span)
    assert meter.read(clock.now + 60, Gauges()).tokens_per_second == 0


def test_without_a_goal_there_is_no_eta() -> None:
    meter = MetricsCollector()
    for _ in range(10):
        meter.judged(group(1.0))
    figures = meter.read(100.0, Gauges())
    assert (figures.eta, figures.wanted_batches, figures.wanted_groups) == (None, None, None)


def test_the_eta_follows_the_recent_pace() -> None:
    clock = Clock()
    meter = MetricsCollector(clock)
    for gap in [10.0] * 2_000 + [1.0] * 2_000:  # it becomes ten times as fast
        clock.now += gap
        meter.judged(group(1.0))
    assert meter.read(clock.now, Gauges(wanted_groups=4_600)).eta == pytest.approx(600)


def test_what_an_earlier_run_did_tells_nothing_of_the_pace() -> None:
    clock = Clock()
    meter = MetricsCollector(clock)
    for index in range(500):
        known = Group(f"{index}", [msgspec.structs.replace(trajectory(1.0), uid=f"{index}.0")])
        meter.recalled(f"{index}.0")
        meter.judged(known)
    assert meter.read(1.0, Gauges(wanted_groups=600)).eta is None
    for _ in range(10):
        clock.now += 3.0
        meter.judged(group(1.0))
    figures = meter.read(clock.now, Gauges(wanted_groups=600))
    assert (figures.kept, figures.rollouts) == (510, 0)  # a rollout that is read again was counted when it ended
    assert figures.eta == pytest.approx(90 * 3)


def test_reasons_without_end_are_counted_together() -> None:
    meter = MetricsCollector()
    for index in range(1_000):
        meter.judged(group(1.0, keep=False, reason=f"std is {index}"))
    dropped = meter.read(0.0, Gauges()).dropped
    assert len(dropped) == 33
    assert dropped["others"] == 1_000 - 32


def test_a_trend_is_seldom_chance_and_a_real_one_is_seen() -> None:
    noise = np.random.default_rng(0)
    level = [noise.normal(size=256) for _ in range(1_000)]
    assert sum(compare(rewards.tolist())[2] != "level" for rewards in level) < 20
    for shift, trend in ((1.0, "up"), (-1.0, "down")):
        assert all(compare((rewards + shift * (np.arange(256) >= 128)).tolist())[2] == trend for rewards in level[:100])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (None, None, None)),
        ([3.0], (3.0, None, None)),
        ([9.0, 1.0, 2.0], (2.0, 1.0, None)),
        ([1.0] * 15 + [2.0] * 15, (2.0, 1.0, None)),  # too few to tell
        ([1.0] * 16 + [2.0] * 16, (2.0, 1.0, "up")),
        ([0.5] * 40, (0.5, 0.0, "level")),
    ],
)
def test_recent_rewards_are_compared_with_those_before(values: list[float], expected: tuple[Any, ...]) -> None:
    assert compare(values) == expected


def test_rounding_is_no_trend() -> None:
    assert compare([0.3] * 20 + [0.1 + 0.2] * 20)[2] == "level"


@given(st.lists(numbers, min_size=1, max_size=400))
def test_the_history_is_short_and_has_everything(rewards: list[float]) -> None:
    meter = MetricsCollector()
    for reward in rewards:
        meter.judged(group(reward))
    each = 1
    while each * 32 < len(rewards):
        each *= 2
    joined = [np.mean(rewards[start : start + each]) for start in range(0, len(rewards), each)]
    assert meter.read(0.0, Gauges()).reward_history == pytest.approx(joined)


def test_a_sink_gets_numbers_by_name(tmp_path: Path) -> None:
    clock, draw = Clock(), random.Random(0)
    meter = MetricsCollector(clock)
    for index in range(64):
        clock.now += 1.0
        meter.replied(reply(turn(0.5, 10)), 0.5)
        meter.played(turn(0.5, 10))
        meter.ended(trajectory(0.0, 2))
        meter.judged(group(draw.random() + index, keep=index % 2 == 0, reason="constant\n"))
    figures = meter.read(64.0, Gauges(version=3))
    for one in (figures, RunMetrics()):
        JsonLines(tmp_path / "metrics.jsonl").write(flat(one))
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written[0] == flat(figures)
    assert all(isinstance(value, int | float) for value in written[0].values())
    picked = ("version", "kept", "dropped/constant\n", "errors/env", "env_seconds/p95", "reward_trend", "tokens")
    assert [written[0][name] for name in picked] == [3, 32, 32, 64, 1.0, 1, 640]
    assert {"eta", "reward_mean", "reward_trend", "success_rate"}.isdisjoint(written[1])
