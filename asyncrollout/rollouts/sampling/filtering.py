"""The filter's verdicts on groups, and how often it keeps one."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.filters import BatchFilter, as_verdict, name_of
from asyncrollout.trajectories import Group, Verdict

Keep = Callable[[Group], Verdict] | BatchFilter

_RECENT = 256
_LEAST_RATE = 0.02


class KeepRate:
    """The share of recently judged groups that were kept, and why all others were dropped."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self._recent: deque[bool] = deque(maxlen=_RECENT)
        self._recently_kept = 0

    def note(self, verdict: Verdict) -> None:
        if len(self._recent) == _RECENT:
            self._recently_kept -= self._recent[0]
        self._recent.append(verdict.keep)
        self._recently_kept += verdict.keep
        if not verdict.keep:
            self.dropped[verdict.reason or "dropped"] += 1

    @property
    def now(self) -> float:
        """The estimate; 1 before any group was judged."""
        return max((self._recently_kept + 1) / (len(self._recent) + 1), _LEAST_RATE)


class FilterRunner:
    """Judges groups in the order in which they arrive; a batch filter judges `needed` at a time.

    Groups that were `judged` before a run was interrupted are not judged again.
    """

    def __init__(self, keep: Keep | None, rate: KeepRate, judged: Mapping[str, Verdict] = {}) -> None:
        self._keep = keep
        self.rate = rate
        self._judged = judged
        self._waiting: list[Group] = []
        self._oldest_waiting: int | None = None

    @property
    def in_rounds(self) -> bool:
        return isinstance(self._keep, BatchFilter)

    @property
    def waiting(self) -> int:
        """Groups that wait for others to be judged together."""
        return len(self._waiting)

    def judge(self, group: Group, needed: int) -> list[Group]:
        """The groups that are judged now, each with its verdict."""
        if group.verdict is not None:
            return [self._noted(group)]
        if (before := self._judged.get(group.id)) is not None:
            return [self._noted(_judged(group, before))]
        if self._keep is None:
            return [self._noted(_judged(group, Verdict(keep=True)))]
        if not isinstance(self._keep, BatchFilter):
            return [self._noted(_judged(group, as_verdict(self._ask(self._keep, group), self._keep)))]
        self._wait_for_others(group)
        if len(self._waiting) < needed:
            return []
        return self.judge_rest()

    def judge_rest(self) -> list[Group]:
        """Judge the groups that wait for others, because no others will come."""
        waiting, self._waiting, self._oldest_waiting = self._waiting, [], None
        if not waiting:
            return []
        verdicts: Sequence[Any] = self._ask(self._keep, waiting)
        if len(verdicts) != len(waiting):
            raise UsageError(
                f"the filter {name_of(self._keep)} returned {len(verdicts)} verdicts for {len(waiting)} groups"
            )
        found = [as_verdict(verdict, self._keep) for verdict in verdicts]
        return [self._noted(_judged(group, verdict)) for group, verdict in zip(waiting, found, strict=True)]

    def has_older(self, version: int) -> bool:
        """Whether a waiting group was played in part with weights older than this version."""
        return self._oldest_waiting is not None and self._oldest_waiting < version

    def remove_older(self, version: int) -> list[Group]:
        """Remove waiting groups that were played in part with weights older than this version."""
        old = [group for group in self._waiting if is_older(group, version)]
        gone = {group.id for group in old}
        waiting, self._waiting, self._oldest_waiting = self._waiting, [], None
        for group in waiting:
            if group.id not in gone:
                self._wait_for_others(group)
        return old

    def _wait_for_others(self, group: Group) -> None:
        self._waiting.append(group)
        ages = [age for age in (self._oldest_waiting, group.version) if age is not None]
        self._oldest_waiting = min(ages, default=None)

    def _ask(self, keep: Any, judged: Any) -> Any:
        try:
            return keep(judged)
        except Exception as error:
            raise UsageError(f"the filter {name_of(keep)} raised {type(error).__name__}: {error}") from error

    def _noted(self, group: Group) -> Group:
        assert group.verdict is not None
        self.rate.note(group.verdict)
        return group


def check_filter(keep: Keep | None) -> Keep | None:
    if keep is not None and not callable(keep):
        raise UsageError(f"keep={keep!r:.100} is not a filter, such as filters.reward_varies: a function of a group")
    return keep


def _judged(group: Group, verdict: Verdict) -> Group:
    return msgspec.structs.replace(group, verdict=verdict)


def is_older(group: Group, version: int) -> bool:
    """Whether it was played in part with weights older than this version."""
    oldest = group.version
    return oldest is not None and oldest < version


def error_of(group: Group) -> RolloutError | None:
    """An error of one of its members, if there is one."""
    return next((trajectory.error for trajectory in group.trajectories if trajectory.error is not None), None)
