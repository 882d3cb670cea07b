"""Which of several envs plays the next group."""

from collections.abc import Mapping
from typing import Literal

from asyncrollout.rollouts.sampling.filtering import KeepRate
from asyncrollout.trajectories import Group, Verdict

SharesOf = Literal["drawn", "delivered"]


class Shares:
    """Draws the env that is furthest behind its share: of all groups that are drawn, or of those that are delivered.

    Where filters keep more of one env than of another, the first gives each env its share of the work, and the second
    its share of the batches. Which one is behind in those depends on what was judged by then, so on timing.
    """

    def __init__(self, shares: Mapping[str, float], of: SharesOf = "drawn") -> None:
        total = sum(shares.values())
        self._shares = {tag: share / total for tag, share in shares.items()}
        self._of = of
        self._drawn = dict.fromkeys(shares, 0)
        self._decided = dict.fromkeys(shares, 0)
        self._kept = dict.fromkeys(shares, 0)
        self._rates = {tag: KeepRate() for tag in shares}

    @property
    def tags(self) -> list[str]:
        return [*self._shares]

    @property
    def depend_on_timing(self) -> bool:
        return self._of == "delivered"

    def next_tag(self) -> str:
        counts = self._drawn if self._of == "drawn" else {tag: self._expected(tag) for tag in self._shares}
        all_in_all = sum(counts.values()) + 1
        return max(self._shares, key=lambda tag: all_in_all * self._shares[tag] - counts[tag])

    def note_drawn(self, tag: str) -> None:
        self._drawn[tag] += 1

    def note_judged(self, group: Group) -> None:
        assert group.verdict is not None
        self._decided[group.tag] += 1
        self._kept[group.tag] += group.verdict.keep
        self._rates[group.tag].note(group.verdict)

    def note_stale(self, group: Group) -> None:
        """Note a stale group: it will not be delivered, even if its verdict is to keep it."""
        if group.verdict is None:
            self._decided[group.tag] += 1
        else:
            self._kept[group.tag] -= group.verdict.keep

    def note_settled(self, tag: str, verdict: Verdict | None, *, is_delivered: bool) -> None:
        """What became of a group in an earlier process."""
        self._decided[tag] += 1
        self._kept[tag] += is_delivered
        if verdict is not None:
            self._rates[tag].note(verdict)

    def _expected(self, tag: str) -> float:
        """How many of the groups drawn so far will be delivered eventually."""
        return self._kept[tag] + max(self._drawn[tag] - self._decided[tag], 0) * self._rates[tag].now
