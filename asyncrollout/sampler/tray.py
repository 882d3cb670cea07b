"""Judged groups on their way to a batch: those that are kept, and how many draws they cost."""

from collections import Counter, deque
from typing import Literal

from asyncrollout.errors import ExhaustedError
from asyncrollout.trajectories import Group

OnExhausted = Literal["raise", "short", "fill"]


class Tray:
    """Groups are put in as they are judged; no more than `max_rounds` times `needed` are drawn for a batch.

    Pure bookkeeping, in the order of judgement, so that batches do not depend on timing.
    """

    def __init__(self, max_rounds: int | None, on_exhausted: OnExhausted) -> None:
        self.needed = 0
        self.kept: deque[Group] = deque()
        self.spare: deque[Group] = deque()
        self.judged = 0
        self._kept = 0
        self._max_rounds = max_rounds
        self._on_exhausted = on_exhausted
        self._reasons: Counter[str] = Counter()
        self._round = 0  # how many batches have been complete, or given up
        self._rounds: dict[str, int] = {}  # of groups that were kept, and not consumed
        self._gone: dict[str, int] = {}  # the same of those that were dropped

    @property
    def max_draws(self) -> int | None:
        return None if self._max_rounds is None else self._max_rounds * self.needed

    @property
    def exhausted(self) -> bool:
        """Whether the batch has had all its draws, and is not complete."""
        return self.max_draws is not None and self.judged >= self.max_draws > 0

    def put(self, group: Group) -> list[Group]:
        """Take in a judged group; those that are of no more use come back."""
        assert group.verdict is not None
        self.judged += 1
        if group.verdict.keep:
            self._rounds[group.id] = self._round
            self.kept.append(group)
            self._kept += 1
            return self.begin_anew() if self._kept >= self.needed else []
        self._gone[group.id] = self._round
        self._reasons[group.verdict.reason or "dropped"] += 1
        if self._on_exhausted != "fill" or not group.valid:
            return [group]
        self.spare.append(group)
        return [self.spare.popleft()] if len(self.spare) > self.needed else []

    def take(self, count: int) -> list[Group]:
        return [self.kept.popleft() for _ in range(min(count, len(self.kept)))]

    def take_last(self, count: int) -> list[Group]:
        """What there is when no more will come; dropped groups fill it if so chosen, but make no batch of their own."""
        return self._filled(self.take(count), count) if self.kept else []

    def _filled(self, groups: list[Group], count: int) -> list[Group]:
        while self._on_exhausted == "fill" and self.spare and len(groups) < count:
            groups.append(self.spare.popleft())
        return groups

    def make_do(self, count: int) -> list[Group]:
        """A batch whose draws are used up: what there is, with dropped groups to fill it if so chosen, or an error."""
        groups = self._filled(self.take(count), count)
        if self._on_exhausted == "raise" or not groups:
            self.kept.extendleft(reversed(groups))
            told = ", ".join(f"{number} {reason}" for reason, number in self._reasons.most_common())
            raise ExhaustedError(
                f"{len(groups)} of {count} groups were kept of {self.judged} draws (dropped: {told}): "
                "loosen the filter, or raise max_num_gen_batches, or choose on_exhausted='short' or 'fill'"
            )
        return groups

    def begin_anew(self) -> list[Group]:
        """Let the next batch have its draws; dropped groups that nobody took come back."""
        unused = [*self.spare]
        self.spare.clear()
        self._reasons.clear()
        self._round += 1
        self.judged = 0
        self._kept = len(self.kept) % max(self.needed, 1)
        return unused

    def remove_older(self, version: int) -> list[Group]:
        """Groups that had a part played by weights older than this version."""
        old = [group for group in self.kept if _is_older(group, version)]
        old_spare = [group for group in self.spare if _is_older(group, version)]
        for group in old:
            self.kept.remove(group)
        for group in old_spare:
            self.spare.remove(group)
        self._kept = max(self._kept - len(old), 0)
        for group in (*old, *old_spare):
            self._rounds.pop(group.id, None)
            self._gone[group.id] = -1
        return [*old, *old_spare]

    def consumed_by(self, groups: list[Group]) -> list[str]:
        """The ids of those that were dropped on the way to a batch that was taken."""
        taken = {group.id for group in groups}
        last = max((self._rounds.pop(name, self._gone.get(name, -1)) for name in taken), default=-1)
        last = last if last < self._round else last - 1  # others may yet be dropped on the way to the same batch
        gone = [name for name, number in self._gone.items() if number <= last or name in taken]
        for name in gone:
            del self._gone[name]
        return [name for name in gone if name not in taken]

    def consumed(self) -> list[str]:
        """The ids of all that were dropped, and led to no batch."""
        return [*self._gone]


def _is_older(group: Group, version: int) -> bool:
    return group.version is not None and group.version < version
