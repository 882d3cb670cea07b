"""Groups, with the figures of their members, and their fate."""

from collections.abc import Iterable, Sequence

import msgspec

from asyncrollout.journal.recorded_run import Fate, RecordedRun
from asyncrollout.report.rollouts import Rollout
from asyncrollout.stats import Estimate, mean, share
from asyncrollout.successes import Successes


class PlayedGroup(msgspec.Struct, frozen=True):
    """A group with the figures of its members."""

    id: str
    env: str
    fate: Fate
    at: float | None
    """In seconds of running: when it was judged, or else when its last member ended; None if none has."""
    keep: bool | None
    """The verdict on it."""
    members: list[Rollout]

    @property
    def valid(self) -> list[Rollout]:
        return [member for member in self.members if member.valid]

    @property
    def counts(self) -> bool:
        """Whether its mean counts: the members of a group that end first are not a fair sample of it."""
        return self.fate.kind not in ("incomplete", "cancelled") and bool(self.valid)

    @property
    def reward(self) -> float:
        return sum(member.reward for member in self.valid) / len(self.valid)

    @property
    def passed(self) -> int:
        return sum(member.passed for member in self.valid)


def played_group(history: RecordedRun, group: str, members: list[Rollout]) -> PlayedGroup:
    """The members of a group, with what the journal says about it."""
    env = history.groups.get(group) or (members[0].env if members else "")
    verdict = history.verdicts.get(group)
    ends = [end for member in members if (end := history.finished[member.uid].at) is not None]
    at = verdict.at if verdict is not None else max(ends, default=None)
    keep = None if verdict is None else verdict.keep
    return PlayedGroup(group, env, history.fate(group), None if at is None else history.clock(at), keep, members)


def mean_reward(groups: Sequence[PlayedGroup]) -> Estimate:
    """Over groups, all of which have a member with an outcome."""
    return mean([group.reward for group in groups])


def pass_rate(groups: Sequence[PlayedGroup]) -> Estimate:
    """As `mean_reward`, the pass@1 that `compare` has."""
    return share([group.passed / len(group.valid) for group in groups], sum(len(group.valid) for group in groups))


def decided(groups: Sequence[PlayedGroup], known: Successes | None = None) -> list[PlayedGroup]:
    """The groups with `passed` set, by what their envs report in all of them, or in `known`."""
    found = successes(groups) if known is None else known
    return [
        msgspec.structs.replace(
            group,
            members=[
                msgspec.structs.replace(one, passed=not one.error and found.succeeded(one.result))
                for one in group.members
            ],
        )
        for group in groups
    ]


def successes(groups: Iterable[PlayedGroup]) -> Successes:
    """What the envs of these groups report."""
    return Successes(one.result for group in groups for one in group.members if not one.error)
