"""Judged groups on their way to a batch: those that are kept, and how many draws they cost."""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from asyncrollout.errors import ExhaustedError
from asyncrollout.rollouts.episode.group import FAILED
from asyncrollout.rollouts.sampling.filtering import is_older
from asyncrollout.trajectories import Group

OnExhausted = Literal["raise", "short", "fill"]
Rank = Callable[[Group], tuple[int, ...]]

_LEFT_OVER = -1  # the round of groups that belong to no round of this buffer


class _DrawCost(NamedTuple):
    """A draw for a batch: the oldest weights in it, and why it was dropped, if it was."""

    group: str
    version: int | None
    reason: str | None


class BatchBuffer:
    """Collects groups as they are judged; at most `max_rounds` times `needed` are drawn for a batch.

    Pure bookkeeping, in the order of judgement, so that batches do not depend on timing. With a `rank`, kept groups are
    ordered by it; each finds its place once, when it is put in.
    """

    def __init__(self, max_rounds: int | None, on_exhausted: OnExhausted, rank: Rank | None = None) -> None:
        self.kept: list[Group] = []
        self._ranks: list[tuple[int, ...]] = []  # of those that are kept, if they are ordered by rank
        self._rank = rank
        self.rejected: deque[Group] = deque()
        self._judged: list[_DrawCost] = []  # for the batch in progress
        self._needed = 0
        self._taken = 0  # since `needed` was last set to another number
        self._max_rounds = max_rounds
        self._on_exhausted = on_exhausted
        self._stale = 0
        self._round = 0  # how many batches have been complete, or given up
        self._rounds: dict[str, int] = {}  # of groups that were kept, and not consumed
        self._gone: dict[int, dict[str, None]] = {}  # by round: those that were dropped, in order

    @property
    def needed(self) -> int:
        """The size of a batch."""
        return self._needed

    @needed.setter
    def needed(self, needed: int) -> None:
        if needed != self._needed:
            self._needed, self._taken = needed, 0

    @property
    def judged(self) -> int:
        """Draws that the batch in progress has cost so far."""
        return len(self._judged)

    @property
    def max_draws(self) -> int | None:
        return None if self._max_rounds is None else self._max_rounds * self.needed

    @property
    def exhausted(self) -> bool:
        """Whether the batch has used all its draws, and is not complete."""
        return self.max_draws is not None and self.judged >= self.max_draws > 0

    def put(self, group: Group) -> list[Group]:
        """Add a judged group; returns the groups that are no longer needed."""
        assert group.verdict is not None
        reason = None if group.verdict.keep else group.verdict.reason or "dropped"
        self._judged.append(_DrawCost(group.id, group.version, reason))
        if group.verdict.keep:
            self._rounds[group.id] = self._round
            self._keep(group)
            is_complete = (self._taken + len(self.kept)) % self.needed == 0
            return self.start_next_batch() if is_complete else []
        self._note_gone(group.id, self._round)
        if self._on_exhausted != "fill" or group.verdict.reason == FAILED or not group.completed:
            return [group]
        self.rejected.append(group)
        return [self.rejected.popleft()] if len(self.rejected) > self.needed else []

    def adopt(self, kept: Sequence[Group], dropped: Sequence[str]) -> None:
        """Take over what an earlier buffer kept, and the ids of groups that were dropped on the way to it."""
        for group in kept:
            self._rounds[group.id] = _LEFT_OVER
            self._keep(group)
        for name in dropped:
            self._note_gone(name, _LEFT_OVER)

    def _keep(self, group: Group) -> None:
        place = len(self.kept)
        if self._rank is not None:
            rank = self._rank(group)
            place = bisect_right(self._ranks, rank)
            self._ranks.insert(place, rank)
        self.kept.insert(place, group)

    def _note_gone(self, name: str, round_: int) -> None:
        self._gone.setdefault(round_, {})[name] = None

    def take(self, count: int) -> list[Group]:
        """The next groups; the draws of a complete batch do not count for the next one.

        Some may still be counted for it: if the batch size has changed, or other groups became stale meanwhile.
        """
        taken = self._take(count)
        if self._taken % self.needed == 0:
            ids = {group.id for group in taken}
            last = max((place for place, cost in enumerate(self._judged) if cost.group in ids), default=-1)
            del self._judged[: last + 1]
        return taken

    def _take(self, count: int) -> list[Group]:
        taken = self.kept[:count]
        del self.kept[:count], self._ranks[:count]
        self._taken += len(taken)
        return taken

    def take_last(self, count: int) -> list[Group]:
        """What is left at the end of the tasks; with "fill", dropped groups complete a batch, but never start one."""
        return self._filled(self._take(count), count) if self.kept else []

    def _filled(self, groups: list[Group], count: int) -> list[Group]:
        while self._on_exhausted == "fill" and self.rejected and len(groups) < count:
            groups.append(self.rejected.popleft())
        return groups

    def take_exhausted(self, count: int) -> list[Group]:
        """A batch whose draws are used up: what was kept, with "fill" completed by dropped groups, or an error."""
        groups = self._filled(self._take(count), count)
        self._taken = 0
        if self._on_exhausted == "raise" or not groups:
            for group in groups:
                self._keep(group)
            raise ExhaustedError(self._shortage(len(groups), count))
        return groups

    def _shortage(self, kept: int, count: int) -> str:
        dropped = Counter(cost.reason for cost in self._judged if cost.reason is not None)
        reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.most_common()) or "none"
        stale = f"; {self._stale} more became stale and were not counted" if self._stale else ""
        helpful = {"raise": ["'short'", "'fill'"] if kept else ["'fill'"], "short": ["'fill'"], "fill": []}
        others = " or ".join(helpful[self._on_exhausted])
        return (
            f"{kept} of {count} groups were kept after {self.judged} draws (dropped: {reasons}{stale}): "
            "loosen the filter, or raise max_num_gen_batches" + (f", or choose on_exhausted={others}" if others else "")
        )

    def start_next_batch(self) -> list[Group]:
        """Count draws for the next batch; returns the dropped groups that filled none."""
        unused = [*self.rejected]
        self.rejected.clear()
        self._stale = 0
        self._round += 1
        self._judged.clear()
        return unused

    def remove_older(self, version: int) -> list[Group]:
        """Remove groups played in part with weights older than this version; draws made with them do not count."""
        self._judged = [cost for cost in self._judged if cost.version is None or cost.version >= version]
        old = [group for group in (*self.kept, *self.rejected) if is_older(group, version)]
        gone = {group.id for group in old}
        for name in gone:
            self._rounds.pop(name, None)
        kept = [group for group in self.kept if group.id not in gone]
        self.kept, self._ranks = [], []
        for group in kept:
            self._keep(group)
        self.rejected = deque(group for group in self.rejected if group.id not in gone)
        return old

    def note_stale(self, group: Group) -> None:
        """Note a stale group: it is dropped on the way to the next batch, and costs no draw."""
        self._stale += 1
        self._note_gone(group.id, _LEFT_OVER)

    def consumed_by(self, groups: list[Group]) -> list[str]:
        """The ids of groups that were dropped on the way to a batch that was taken."""
        last = max((self._forget(group.id) for group in groups), default=_LEFT_OVER)
        last = last if last < self._round else last - 1  # others may yet be dropped on the way to the same batch
        rounds = sorted(number for number in self._gone if number <= last)
        return [name for number in rounds for name in self._gone.pop(number)]

    def _forget(self, name: str) -> int:
        """The round of a group that was taken; a dropped one may have filled a batch."""
        if name in self._rounds:
            return self._rounds.pop(name)
        for number, names in self._gone.items():
            if name in names:
                del names[name]
                return number
        return _LEFT_OVER

    def consumed(self) -> list[str]:
        """The ids of all dropped groups that led to no batch."""
        return [name for number in sorted(self._gone) for name in self._gone[number]]
