"""What became of every rollout: each one that is dispatched ends exactly once."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

from asyncrollout.rollouts.episode.progress import OnReply, Progress
from asyncrollout.trajectories import Group, Turn, group_of

End = Literal["delivered", "filtered", "failed", "cancelled", "stale"]
ENDS: tuple[End, ...] = ("delivered", "filtered", "failed", "cancelled", "stale")

_SHOWN = 3


class Ledger:
    """Counts rollouts by how they ended, and knows what each of the others waits for."""

    def __init__(self) -> None:
        self.dispatched_count = 0
        self.ends: Counter[End] = Counter()
        self.open: dict[str, Progress] = {}

    def __repr__(self) -> str:
        ends = ", ".join(f"{self.ends[end]} {end}" for end in ENDS)
        return f"Ledger({self.dispatched_count} dispatched: {ends}, {len(self.open)} open)"

    @property
    def balanced(self) -> bool:
        """Whether every rollout ended once, or is open."""
        return self.dispatched_count == self.ends.total() + len(self.open)

    def dispatched(
        self, uid: str, on_turn: Callable[[Turn], None] | None = None, on_reply: OnReply | None = None
    ) -> Progress:
        """Open a rollout; the functions are called as `Progress` says."""
        assert uid not in self.open, f"{uid} is in flight already"
        self.dispatched_count += 1
        self.open[uid] = progress = Progress(uid, on_turn, on_reply)
        return progress

    def retry(self, uid: str) -> None:
        """End a rollout that failed and will be played again."""
        self.end([uid], "failed")

    def end(self, uids: Iterable[str], how: End) -> None:
        for uid in uids:
            del self.open[uid]
            self.ends[how] += 1

    def end_group(self, group: Group, how: End) -> None:
        """End its members; one that has failed counts as failed, even if its group is dropped."""
        for trajectory in group.trajectories:
            self.end([trajectory.uid], how if trajectory.valid else "failed")

    def cancel(self, groups: Iterable[str]) -> None:
        """End the open rollouts of these groups."""
        cancelled = {*groups}
        self.end([uid for uid in self.open if group_of(uid) in cancelled], "cancelled")

    def last_move(self, prefix: str = "") -> float:
        """When an open rollout with this prefix last moved, on the monotonic clock."""
        return max((one.since for uid, one in self.open.items() if uid.startswith(prefix)), default=-math.inf)

    def stuck(self, prefix: str = "") -> str:
        """Which rollouts have waited longest, and for what, as a text."""
        in_flight = [one for uid, one in self.open.items() if uid.startswith(prefix)]
        if not in_flight:
            return "no rollout is in flight, and the source of tasks returns no task"
        if not any(one.doing for one in in_flight):
            return "all rollouts in flight have ended, and wait for their groups, scores or the filter"
        oldest = sorted((one for one in in_flight if one.doing), key=lambda progress: progress.since)
        more = f", and {len(oldest) - _SHOWN} others" if len(oldest) > _SHOWN else ""
        return "; ".join(map(str, oldest[:_SHOWN])) + more
