"""Collects the metrics of a live run."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from asyncrollout.stats import average, standard_error
from asyncrollout.successes import Successes, result_of
from asyncrollout.telemetry.run_metrics import Gauges, RunMetrics, Trend
from asyncrollout.trajectories import Group, Trajectory, Turn
from asyncrollout.types import Durations

_RECENT_CALLS = 1_024
_RECENT_GROUPS = 128
_RECENT_SECONDS = 30
_FEWEST_GROUPS = 16  # on either side, so that the difference of two means is about normal
_CLEAR = 2.58  # standard errors, which chance alone exceeds once in a hundred times
_FEWEST_KEPT = 4
_RECENT_KEPT = 1_024  # several batches, which come all at once if their trainer is slow
_LONGEST_HISTORY = 32
_LARGEST_REWARD = 1e100  # squares of many times more could not be added up
_MOST_REASONS = 32  # a filter may give each group one of its own


class MetricsCollector:
    """Counts turns, rollouts, groups and batches as they happen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._turns = self._tokens = self._invalid = 0
        self._policy_seconds: deque[float] = deque(maxlen=_RECENT_CALLS)
        self._env_seconds: deque[float] = deque(maxlen=_RECENT_CALLS)
        self._second = math.floor(self._began)
        self._counted = (0, 0)  # turns and tokens before this second
        self._by_second: deque[tuple[int, int, int]] = deque(maxlen=_RECENT_SECONDS)
        self._rollouts = self._evaluated = 0
        self._successes = Successes()
        self._errors: Counter[str] = Counter()
        self._groups = self._kept = self._members = 0
        self._dropped: Counter[str] = Counter()
        self._reward = 0.0
        self._group_rewards: deque[float] = deque(maxlen=2 * _RECENT_GROUPS)
        self._history = _MeanHistory()
        self._kept_at = deque([self._began], maxlen=1 + _RECENT_KEPT)
        self._recalled: set[str] = set()
        self._batches = self._delivered = self._lag = 0

    def played(self, turn: Turn) -> None:
        """A turn is over."""
        now = self._clock()
        if now >= self._second + 1:
            self._begin_second(now)
        self._turns += 1
        self._tokens += turn.sampled_tokens
        if not turn.valid:
            self._invalid += 1
        self._policy_seconds.append(turn.policy_seconds)
        self._env_seconds.append(turn.env_seconds)

    def ended(self, trajectory: Trajectory) -> None:
        """A rollout is over, with an outcome or an error; it may be retried."""
        self._rollouts += 1
        if trajectory.error is not None:
            self._errors[trajectory.stop_reason.blame or "other"] += 1
        else:
            self._successes.add(result_of(trajectory))

    def evaluated(self) -> None:
        """A rollout of an evaluation is over; it counts in no other figure."""
        self._evaluated += 1

    def recalled(self, trajectory: Trajectory) -> None:
        """A rollout was over before the run resumed: it says nothing about the present pace."""
        self.ended(trajectory)
        self._recalled.add(trajectory.uid)

    def judged(self, group: Group) -> None:
        """A group is over, and scored: its rewards are final only now."""
        self._groups += 1
        uids = {trajectory.uid for trajectory in group.trajectories} if self._recalled else set()
        is_new = not uids or bool(uids - self._recalled)
        self._recalled -= uids
        if group.verdict is None or group.verdict.keep:
            self._kept += 1
            if is_new:
                self._kept_at.append(self._clock())
        else:
            reason = group.verdict.reason or "dropped"
            is_known = reason in self._dropped or len(self._dropped) < _MOST_REASONS
            self._dropped[reason if is_known else "others"] += 1
        rewards = [one.reward for one in group.trajectories if one.valid and abs(one.reward) <= _LARGEST_REWARD]
        if rewards:
            self._members += len(rewards)
            self._reward += sum(rewards)
            mean = sum(rewards) / len(rewards)
            self._group_rewards.append(mean)
            self._history.add(mean)

    def dropped_stale(self, group: Group) -> None:
        """A group became stale: a kept one no longer counts as kept, an unjudged one counts as judged."""
        if group.verdict is None:
            self._groups += 1
        else:
            self._kept -= 1

    def begin_at(self, *, batches: int, delivered: int, kept: int, dropped: Mapping[str, int]) -> None:
        """Count what an earlier process has done; it says nothing about the present pace."""
        self._batches, self._delivered, self._kept = batches, delivered, kept
        self._groups = kept + sum(dropped.values())
        self._dropped.update(dropped)

    def delivered(self, groups: int, lag: int) -> None:
        """A batch was delivered; `lag` is how many versions behind its oldest turn was."""
        self._batches += 1
        self._delivered += groups
        self._lag = lag

    def read(self, now: float, standing: Gauges) -> RunMetrics:
        turns_per_second, tokens_per_second = self._rates(now)
        recent, change, trend = compare(self._group_rewards)
        return RunMetrics(
            **msgspec.structs.asdict(standing),
            seconds=now - self._began,
            eta=self._eta(now, self._kept, standing.wanted_groups),
            batches=self._batches,
            delivered=self._delivered,
            groups=self._groups,
            kept=self._kept,
            dropped=dict(self._dropped + Counter(stale=standing.stale)),
            lag=self._lag,
            rollouts=self._rollouts,
            evaluated_rollouts=self._evaluated,
            errors=dict(self._errors),
            keep_rate=self._kept / self._groups if self._groups else None,
            success_rate=self._successes.rate,
            turns=self._turns,
            invalid=self._invalid,
            tokens=self._tokens,
            turns_per_second=turns_per_second,
            tokens_per_second=tokens_per_second,
            policy_seconds=Durations.of(self._policy_seconds),
            env_seconds=Durations.of(self._env_seconds),
            reward_mean=self._reward / self._members if self._members else None,
            reward_recent=recent,
            reward_change=change,
            reward_trend=trend,
            reward_history=self._history.means(),
        )

    def _begin_second(self, now: float) -> None:
        turns, tokens = self._counted
        self._by_second.append((self._second, self._turns - turns, self._tokens - tokens))
        self._counted = self._turns, self._tokens
        self._second = math.floor(now)

    def _rates(self, now: float) -> tuple[float, float]:
        """Turns and tokens per second, over the recent whole seconds and the current one."""
        first = math.floor(now) - _RECENT_SECONDS + 1
        recent = [counts for counts in self._by_second if counts[0] >= first]
        if self._second >= first:
            recent.append((self._second, self._turns - self._counted[0], self._tokens - self._counted[1]))
        span = now - max(first, self._began)
        if span <= 0:
            return 0.0, 0.0
        return sum(turns for _, turns, _ in recent) / span, sum(tokens for _, _, tokens in recent) / span

    def _eta(self, now: float, kept: int, wanted: int | None) -> float | None:
        """Seconds until all wanted groups are kept, at the recent pace."""
        since = len(self._kept_at) - 1
        if wanted is None or since < _FEWEST_KEPT:
            return None
        left = max(wanted - max(kept, self._delivered), 0)
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
