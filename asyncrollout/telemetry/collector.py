"""Collects the metrics of a live run."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from asyncrollout.stats import average, standard_error
from asyncrollout.successes import result_of
from asyncrollout.telemetry.counters import LARGEST_REWARD, RunCounters
from asyncrollout.telemetry.run_metrics import Gauges, RunMetrics, Trend
from asyncrollout.trajectories import Group, Trajectory, Turn, Verdict
from asyncrollout.types import Durations, Generation

_RECENT_CALLS = 1_024
_RECENT_GROUPS = 128
_RECENT_SECONDS = 30
_FEWEST_GROUPS = 16  # on either side, so that the difference of two means is about normal
_CLEAR = 2.58  # standard errors, which chance alone exceeds once in a hundred times
_FEWEST_KEPT = 4
_RECENT_KEPT = 1_024  # several batches, which come all at once if their trainer is slow
_LONGEST_HISTORY = 32


class MetricsCollector:
    """Counts replies, turns, rollouts, groups and batches as they happen, on top of what is on record."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._counters = RunCounters()
        self._recent_calls = {name: deque[float](maxlen=_RECENT_CALLS) for name in ("policy", "env", "score")}
        self._second = math.floor(self._began)
        self._counted = (0, 0)  # turns and tokens before this second
        self._by_second: deque[tuple[int, int, int]] = deque(maxlen=_RECENT_SECONDS)
        self._rewarded = 0  # groups
        self._reward = 0.0
        self._group_rewards: deque[float] = deque(maxlen=2 * _RECENT_GROUPS)
        self._history = _MeanHistory()
        self._kept_at = deque([self._began], maxlen=1 + _RECENT_KEPT)
        self._recalled: set[str] = set()
        self._lag = 0

    def begin_at(self, counters: RunCounters, rewards: Iterable[float]) -> None:
        """Continue the counts of what is on record, and the mean rewards of its groups; the pace starts anew."""
        self._counters = counters
        self._counted = counters.turns, counters.tokens
        for reward in rewards:
            self._add_reward(reward)

    def replied(self, reply: Generation, seconds: float) -> None:
        """A policy has replied; replies from the record were counted when they were sampled."""
        now = self._clock()
        if now >= self._second + 1:
            self._begin_second(now)
        self._counters.turns += 1
        self._counters.tokens += reply.sampled_tokens
        self._recent_calls["policy"].append(seconds)

    def played(self, turn: Turn) -> None:
        """A turn is over."""
        self._recent_calls["env"].append(turn.env_seconds)

    def failed(self, trajectory: Trajectory) -> None:
        """An attempt failed, and is played again."""
        self._counters.retries += 1
        self._count_end(trajectory)

    def ended(self, trajectory: Trajectory) -> None:
        """A rollout is over, with an outcome or an error."""
        self._counters.rollouts += 1
        if trajectory.valid:
            self._counters.successes.add(result_of(trajectory))
        self._count_end(trajectory)

    def _count_end(self, trajectory: Trajectory) -> None:
        self._counters.invalid += trajectory.invalid_replies
        if trajectory.error is not None:
            self._counters.errors[trajectory.stop_reason.blame or "other"] += 1
        if trajectory.score_seconds:
            self._recent_calls["score"].append(trajectory.score_seconds)

    def evaluated(self) -> None:
        """A rollout of an evaluation is over; it counts in no other figure."""
        self._counters.evaluated_rollouts += 1

    def recalled(self, uid: str) -> None:
        """A rollout was over before the run resumed: it is counted, and says nothing about the present pace."""
        self._recalled.add(uid)

    def judged(self, group: Group) -> None:
        """A group is over, and scored: its rewards are final only now."""
        uids = {trajectory.uid for trajectory in group.trajectories} if self._recalled else set()
        is_new = not uids or bool(uids - self._recalled)
        self._recalled -= uids
        self._counters.count_verdict(group.verdict)
        if is_new and (group.verdict is None or group.verdict.keep):
            self._kept_at.append(self._clock())
        rewards = [one.reward for one in group.trajectories if one.valid and abs(one.reward) <= LARGEST_REWARD]
        if rewards:
            self._add_reward(average(rewards))

    def _add_reward(self, mean: float) -> None:
        self._rewarded += 1
        self._reward += mean
        self._group_rewards.append(mean)
        self._history.add(mean)

    def dropped_stale(self, verdict: Verdict | None) -> None:
        """A group with this verdict, None if it was not judged, became stale."""
        self._counters.count_stale(verdict)

    def revoked(self, verdict: Verdict, reward: float | None) -> None:
        """A recorded verdict is void, because its group is played again; `reward` is the group's mean."""
        self._counters.revoke(verdict)
        if reward is not None:
            self._rewarded -= 1
            self._reward -= reward

    def delivered(self, groups: int, lag: int) -> None:
        """A batch was delivered; `lag` is how many versions behind its oldest turn was."""
        self._counters.batches += 1
        self._counters.delivered += groups
        self._lag = lag

    def read(self, now: float, standing: Gauges) -> RunMetrics:
        turns_per_second, tokens_per_second = self._rates(now)
        recent, change, trend = compare(self._group_rewards)
        counted = self._counters
        return RunMetrics(
            **msgspec.structs.asdict(standing),
            seconds=now - self._began,
            eta=self._eta(now, counted.kept, standing.wanted_groups),
            batches=counted.batches,
            delivered=counted.delivered,
            groups=counted.groups,
            kept=counted.kept,
            dropped=counted.dropped_by_reason,
            stale=counted.stale,
            lag=self._lag,
            rollouts=counted.rollouts,
            evaluated_rollouts=counted.evaluated_rollouts,
            retries=counted.retries,
            errors=dict(counted.errors),
            keep_rate=counted.kept / counted.groups if counted.groups else None,
            success_rate=counted.successes.rate,
            turns=counted.turns,
            invalid=counted.invalid,
            tokens=counted.tokens,
            turns_per_second=turns_per_second,
            tokens_per_second=tokens_per_second,
            policy_seconds=Durations.of(self._recent_calls["policy"]),
            env_seconds=Durations.of(self._recent_calls["env"]),
            score_seconds=Durations.of(self._recent_calls["score"]),
            reward_mean=self._reward / self._rewarded if self._rewarded else None,
            reward_recent=recent,
            reward_change=change,
            reward_trend=trend,
            reward_history=self._history.means(),
        )

    def _begin_second(self, now: float) -> None:
        turns, tokens = self._counted
        now_turns, now_tokens = self._counters.turns, self._counters.tokens
        self._by_second.append((self._second, now_turns - turns, now_tokens - tokens))
        self._counted = now_turns, now_tokens
        self._second = math.floor(now)

    def _rates(self, now: float) -> tuple[float, float]:
        """Turns and tokens per second, over the recent whole seconds and the current one."""
        first = math.floor(now) - _RECENT_SECONDS + 1
        recent = [counts for counts in self._by_second if counts[0] >= first]
        if self._second >= first:
            turns, tokens = self._counters.turns - self._counted[0], self._counters.tokens - self._counted[1]
            recent.append((self._second, turns, tokens))
        span = now - max(first, self._began)
        if span <= 0:
            return 0.0, 0.0
        return sum(turns for _, turns, _ in recent) / span, sum(tokens for _, _, tokens in recent) / span

    def _eta(self, now: float, kept: int, wanted: int | None) -> float | None:
        """Seconds until all wanted groups are kept, at the recent pace."""
        since = len(self._kept_at) - 1
        if wanted is None or since < _FEWEST_KEPT:
            return None
        left = max(wanted - max(kept, self._counters.delivered), 0)
        return left * (now - self._kept_at[0]) / since


class _MeanHistory:
    """A history of bounded length: means of equally many values; when it is full, neighbours are merged."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._each = 1
        self._last = 0  # how many values the last sum has

    def add(self, value: float) -> None:
        if self._sums and self._last < self._each:
            self._sums[-1] += value
            self._last += 1
            return
        if len(self._sums) == _LONGEST_HISTORY:
            self._sums = [one + other for one, other in zip(self._sums[::2], self._sums[1::2], strict=True)]
            self._each *= 2
        self._sums.append(value)
        self._last = 1

    def means(self) -> tuple[float, ...]:
        if not self._sums:
            return ()
        return (*(total / self._each for total in self._sums[:-1]), self._sums[-1] / self._last)


def compare(values: Sequence[float]) -> tuple[float | None, float | None, Trend | None]:
    """The mean of the later half, how far it is above that of the earlier half, and whether that is significant.

    Values must be independent, as means of groups are and rewards within a group are not.
    """
    half = len(values) // 2
    if not half:
        return (values[0] if values else None), None, None
    compared = list(values)[-2 * half :]
    earlier, later = compared[:half], compared[half:]
    before, recent = average(earlier), average(later)
    change = recent - before
    if half < _FEWEST_GROUPS:
        return recent, change, None
    error = math.hypot(standard_error(earlier) or 0.0, standard_error(later) or 0.0)
    if abs(change) <= _CLEAR * error or math.isclose(before, recent):
        return recent, change, "level"
    return recent, change, "up" if change > 0 else "down"
