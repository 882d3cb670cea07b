"""What a run counts, whichever of its processes it happened in."""

from collections import Counter

import msgspec

from asyncrollout.successes import Successes
from asyncrollout.trajectories import Verdict

LARGEST_REWARD = 1e100
"""Greater ones are left out of all means: squares of many of them could not be added up."""
_OTHERS = "others"
_MOST_REASONS = 32  # a filter may give each group one of its own


class RunCounters(msgspec.Struct):
    """Counters of training. A live run adds to them; a resumed one starts with those of what its journal records.

    `rollouts` counts those that ended, `retries` failed attempts that are played again, `errors` both if they failed.
    `turns` and `tokens` are those of all replies, once each; `invalid` those of attempts that ended.
    """

    rollouts: int = 0
    retries: int = 0
    errors: Counter[str] = msgspec.field(default_factory=Counter)
    turns: int = 0
    invalid: int = 0
    tokens: int = 0
    evaluated_rollouts: int = 0
    groups: int = 0
    kept: int = 0
    dropped: Counter[str] = msgspec.field(default_factory=Counter)
    stale: int = 0
    batches: int = 0
    delivered: int = 0
    successes: Successes = msgspec.field(default_factory=Successes)

    def count_verdict(self, verdict: Verdict | None) -> None:
        """Count a judged group; without a filter there is no verdict, and it is kept."""
        self.groups += 1
        if verdict is None or verdict.keep:
            self.kept += 1
            return
        reason = verdict.reason or "dropped"
        is_known = reason in self.dropped or len(self.dropped) < _MOST_REASONS
        self.dropped[reason if is_known else _OTHERS] += 1

    def revoke(self, verdict: Verdict) -> None:
        """A verdict that was counted is void."""
        self.groups -= 1
        if verdict.keep:
            self.kept -= 1
            return
        reason = verdict.reason or "dropped"
        self.dropped[reason if reason in self.dropped else _OTHERS] -= 1

    def count_stale(self, verdict: Verdict | None) -> None:
        """Count a group that became stale: a kept one is no longer kept, an unjudged one counts as judged.

        One that was rejected counts by its verdict alone.
        """
        if verdict is None:
            self.groups += 1
        elif verdict.keep:
            self.kept -= 1
        else:
            return
        self.stale += 1

    @property
    def dropped_by_reason(self) -> dict[str, int]:
        return dict(self.dropped + Counter(stale=self.stale))
