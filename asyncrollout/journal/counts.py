"""What the events of a run count up to: where a resumed run's counters continue, and what its report shows."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from asyncrollout.journal.attempts import AttemptReader, RolloutAttempt
from asyncrollout.journal.events import AnyEvent, Began, Cancelled, Drawn, Failed, Finished
from asyncrollout.stats import average
from asyncrollout.successes import OWN_ENDS, RolloutResult
from asyncrollout.telemetry import LARGEST_REWARD, RunCounters
from asyncrollout.trajectories import DRAWN, Blame, StopReason, Verdict, group_of

_BLAMES: dict[str, Blame] = {
    "ProviderError": "policy",
    "ContextError": "policy",
    "LimitError": "limit",
    "ScoreError": "score",
}
"""Of errors in journals that do not say why an attempt failed; all others are the env's."""


class EventCounter:
    """Counts rollouts, turns and tokens as the events of a run come; those of evaluations apart, and in no other count.

    `attempts` follows what is in flight; `on_end` is called with each attempt that ends.
    """

    def __init__(self, on_end: Callable[[RolloutAttempt], None] = lambda _: None) -> None:
        self.counters = RunCounters()
        self.attempts = AttemptReader(self._note_end)
        self.last = 0.0
        """When the last event happened."""
        self._on_end = on_end
        self._rewards: defaultdict[str, list[float]] = defaultdict(list)
        self._tags: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def add(self, event: AnyEvent) -> None:
        match event:
            case Began(given=given):
                self.attempts.interrupt(self.last)
                self._names.update(_env_names(given))
            case Drawn(group=group, tag=tag):
                self._tags[group] = tag
            case Failed(uid=uid) if uid.startswith(DRAWN):
                self.counters.retries += 1
                self.counters.invalid += event.invalid
                self.counters.errors[_blame(event.stop_reason, event.error)] += 1
            case Finished(uid=uid) if uid.startswith(DRAWN):
                self._finish(event)
            case Finished() | Failed():
                self.counters.evaluated_rollouts += 1
            case Cancelled(group=group):
                self.last = max(self.last, event.at)
                self.forget([group])
        self.attempts.add(event)
        self.last = max(self.last, event.at)

    def forget(self, groups: Iterable[str]) -> None:
        """Nothing of them counts any more, but what it cost."""
        for group in (forgotten := {*groups}):
            self._rewards.pop(group, None)
        self.attempts.cancel(forgotten, self.last)

    def mean_reward(self, group: str) -> float | None:
        """The mean reward of a group that was just judged; None if no member has an outcome. It can be asked once."""
        rewards = self._rewards.pop(group, None)
        return average(rewards) if rewards else None

    def played(self) -> RunCounters:
        """The counters, with turns and tokens of attempts that are still open."""
        open_now = [one for uid, one in self.attempts.open.items() if uid.startswith(DRAWN)]
        return msgspec.structs.replace(
            self.counters,
            turns=self.counters.turns + sum(one.turns for one in open_now),
            tokens=self.counters.tokens + sum(one.tokens for one in open_now),
        )

    def _finish(self, event: Finished) -> None:
        counters, group = self.counters, group_of(event.uid)
        counters.rollouts += 1
        counters.invalid += 0 if event.invalid is msgspec.UNSET else event.invalid
        if event.error is not None:
            counters.errors[_blame(event.stop_reason, event.error)] += 1
            return
        reward = math.nan if event.reward is None else event.reward
        if abs(reward) <= LARGEST_REWARD:
            self._rewards[group].append(reward)
        if event.invalid is not msgspec.UNSET:  # else nobody knows what its env reported
            tag = self._tags.get(group, "")
            success = None if event.success is msgspec.UNSET else event.success
            ended = event.stop_reason in OWN_ENDS
            counters.successes.add(RolloutResult(self._names.get(tag, tag), success, ended, reward))

    def _note_end(self, attempt: RolloutAttempt) -> None:
        if attempt.uid.startswith(DRAWN):
            self.counters.turns += attempt.turns
            self.counters.tokens += attempt.tokens
        self._on_end(attempt)


def count_verdicts(counters: RunCounters, verdicts: Mapping[str, Verdict], dropped: Iterable[str]) -> None:
    """Count judged groups, by their verdicts, and those `dropped` on the way to batches: the kept ones were stale.

    Groups that filled a batch count by their verdicts, too.
    """
    for verdict in verdicts.values():
        counters.count_verdict(verdict)
    for group in dropped:
        counters.count_stale(verdicts.get(group))


def _blame(stop_reason: StopReason | None, error: str) -> str:
    if stop_reason is not None:
        return stop_reason.blame or "other"
    return _BLAMES.get(error.partition(":")[0], "env")


def _env_names(given: Mapping[str, Any]) -> dict[str, str]:
    """The names of envs by tag, as trajectories have them."""
    envs = given.get("envs")
    if not isinstance(envs, dict):
        return {}
    return {tag: str(env["env"]) for tag, env in envs.items() if isinstance(env, dict) and "env" in env}
