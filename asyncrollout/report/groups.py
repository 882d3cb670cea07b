"""Groups, with the figures of their members and what became of them."""

import msgspec

from asyncrollout.report.history import Fate
from asyncrollout.report.rollouts import Rollout


class PlayedGroup(msgspec.Struct, frozen=True):
    """A group with the figures of its members."""

    id: str
    env: str
    fate: Fate
    at: float | None
    """In seconds of running: when it was judged; None if it was not."""
    members: list[Rollout]

    @property
    def valid(self) -> list[Rollout]:
        return [member for member in self.members if member.valid]

    @property
    def reward(self) -> float:
        return sum(member.reward for member in self.valid) / len(self.valid)

    @property
    def pass_rate(self) -> float:
        return sum(member.passed for member in self.valid) / len(self.valid)
