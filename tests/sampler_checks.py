"""What must hold of whatever a program is given: at once, at every moment, and in the end."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from asyncrollout import Group, Rollouts, Trajectory
from asyncrollout.trajectories import member_uid
from tests.sampler_programs import Op, Program
from tests.sampler_reference import Reference
from tests.sampler_world import Hooks, Scripted, World, index_of
from tests.sharding import KillableShards


class Violation(AssertionError):
    """Something was not as it must be."""


def check(is_so: bool, *what: object) -> None:
    if not is_so:
        raise Violation(" ".join(map(str, what)))


@dataclass
class Handed:
    """A batch that somebody has; or a group, of which `groups` gives one at a time."""

    op: Op
    indices: list[int]
    groups: list[Group]
    batch: int | None = None


@dataclass
class Rewound:
    """What was there before a run was opened at an earlier batch."""

    journal_bytes: int
    handed: list[Handed]
    again: list[Handed]
    outcomes: list[Any]


@dataclass
class Checks:
    """What has come of a program so far; what is wrong is raised as a `Violation`."""

    program: Program
    directory: Path
    handed: list[Handed] = field(default_factory=list)
    outcomes: list[Any] = field(default_factory=list)
    """What each operation came to, in order: indices, or what was raised."""
    rollouts: Rollouts | None = None

    def __post_init__(self) -> None:
        self.world = World(self.program)
        self.hooks = Hooks(self.world)
        self.policy = Scripted(self.world, 0)
        self.raised: list[BaseException] = []
        self.again: list[Handed] = []
        self.rewound: Rewound | None = None
        self.evaluated = self.first = 0
        self.ended = False
        self.sessions = 0
        self.stale = 0
        self.shards: KillableShards | None = None

    @property
    def run(self) -> Rollouts:
        assert self.rollouts is not None
        return self.rollouts

    @cached_property
    def run_dir(self) -> Path | None:
        return self.directory / "run" if self.program.journal else None

    def _check_handed(self, handed: Handed) -> None:
        name, wanted = handed.op
        if self.again:
            first = self.again.pop(0)
            check(shown(first.groups) == shown(handed.groups), "batch", first.batch, "is not the same again")
            return
        check(bool(handed.groups), handed.op, "gave an empty batch")
        check(len(handed.indices) <= wanted, handed.op, "gave", handed.indices)
        if len(handed.indices) < wanted:
            may = not self.program.is_endless or (self.program.max_rounds and self.program.on_exhausted != "raise")
            check(bool(may), handed.op, "gave too few:", handed.indices)
        if self.program.journal or name != "groups":
            numbers = [one.batch for one in (*self.handed, handed) if one.batch is not None]
            check(len({*numbers}) == len(numbers), "two batches have one number:", numbers)
        self._check_lag(handed)
        for group in handed.groups:
            self._check_group(group)
        before = {index for one in self.handed for index in one.indices}
        twice = [index for index in handed.indices if index in before or handed.indices.count(index) > 1]
        check(not twice, handed.op, "gave once more", twice)
        filled = [group.verdict is not None and not group.verdict.keep for group in handed.groups]
        if name == "collect" or (name == "batches" and (self.program.max_lag == 0 or self.program.order == "start")):
            kept = [index for index, is_filled in zip(handed.indices, filled, strict=True) if not is_filled]
            check(kept == sorted(kept), handed.op, "is not in start order:", handed.indices)

    def _check_lag(self, handed: Handed) -> None:
        if self.program.max_lag is None:
            return
        for group in handed.groups:
            lag = self.run.version - (self.run.version if group.version is None else group.version)
            check(lag <= self.program.max_lag, handed.op, "gave", group.id, "which is", lag, "versions behind")

    def _check_group(self, group: Group) -> None:
        index, world, size = index_of(group), self.world, self.program.group_size
        check([one.uid for one in group.trajectories] == [member_uid(group.id, at) for at in range(size)], group.id)
        check({one.seed for one in group.trajectories} == {world.env_seed(index)}, group.id, "has another seed")
        task = world.task(index)
        check(all(one.task == (task and task.task) for one in group.trajectories), group.id, "has another task")
        check(group.tag == world.tag(index), group.id, "is of", group.tag, "and not of", world.tag(index))
        check(not world.is_dropped_as_failed(index), group.id, "has too many members that failed")
        for member, one in enumerate(group.trajectories):
            check(one.valid != world.is_failed(index, member), one.uid, "valid:", one.valid)
        check(group.verdict is not None, group.id, "was not judged")
        assert group.verdict is not None
        check(group.verdict.keep or self.program.on_exhausted == "fill", group.id, "was dropped", group.verdict)
        if self.program.keep != "batch":
            check(group.verdict.keep == world.is_kept(index), group.id, "was not judged so")
        self._check_members(group)

    def _check_members(self, group: Group) -> None:
        for one in group.trajectories:
            if not one.valid:
                continue
            actions = self.world.actions(group.id, one.member, one.seed)
            check([int(turn.reply.split()[0]) for turn in one.turns] == actions, one.uid, "is another rollout")
            scored = 0 if self.program.score == "none" else 100
            check(one.reward == sum(actions) + scored, one.uid, "has the reward", one.reward)
            for place, turn in enumerate(one.turns):
                begun = int(turn.reply.split()[-1])
                check(turn.version == begun, one.uid, "turn", place, "by", begun, "is stamped", turn.version)

    def _check_now(self) -> None:
        """At every moment."""
        ledger = self.run.ledger
        check(ledger.balanced, ledger)
        check(not self.policy.wrong, *self.policy.wrong)
        most = self.program.group_size * self.program.groups_in_flight + self.program.odd_places
        check(self.policy.most_under_way <= most, self.policy.most_under_way, "rollouts in flight, and not", most)

    def check_at_rest(self) -> None:
        """Whenever nothing more happens by itself: no place is empty that a rollout could have."""
        if self.rollouts is None:
            return
        places, delivery = self.run._engine.places, self.run._delivery
        most = self.program.group_size * self.program.groups_in_flight + self.program.odd_places
        check(places.used <= most, places.used, "places are used of", most)
        if not places.free:
            return
        waiting = places.waiting("training"), places.waiting("evaluation")
        check(waiting == (0, 0), places.free, "places are free, and", waiting, "rollouts wait for one")
        for stream in delivery._streams:
            is_over = stream._drained or stream.stopped.is_set() or self.program.source == "async"
            learns_later = stream._pace is not None and not stream._wanted  # of a new version: when it is asked again
            if not (is_over or learns_later) and stream._wants_group():
                check(False, places.free, "places are free, and a group that is wanted does not start")

    def _check_counts(self) -> None:
        """While nobody takes anything."""
        mine = self.handed[self.first :]
        if self.run.next_batch == len(self.handed) and not self.again and "rewind" not in str(self.program.ops):
            delivered = sum(len(group.completed) for one in mine for group in one.groups) + self.evaluated
            ends = self.run.ledger.ends["delivered"]
            check(ends == delivered, "the ledger has", ends, "delivered, and not", delivered)
            figures = self.run.figures()
            check(figures.batches == len(self.handed), "figures:", figures.batches, "batches of", len(self.handed))
            count = sum(len(one.groups) for one in self.handed)
            check(figures.delivered == count, "figures:", figures.delivered, "groups delivered of", count)
        if self.program.source == "chooser" and self.sessions == 1:
            figures, heard = self.run.figures(), self.hooks.finished
            judged = [group.verdict for group in heard if group.verdict is not None]
            stale_kept = figures.stale - (len(heard) - len(judged))
            kept = sum(verdict.keep for verdict in judged) - stale_kept
            check(figures.groups == len(heard), "figures:", figures.groups, "groups, and", len(heard), "heard of")
            check(figures.kept == kept, "figures:", figures.kept, "groups kept, and not", kept)
        stats = self.run.stats()
        if self.program.keep != "all" and self.sessions == 1:
            dropped = sum(not keep for _, keep in self.hooks.verdicts)
            caught = sum(count for reason, count in stats.dropped.items() if reason != "failed")
            check(caught == dropped, "stats:", stats.dropped, "and the filter dropped", dropped)
        if self.program.max_lag != 0 and not (self.program.names & {"collect"}) and self.program.broken is None:
            ends = self.run.ledger.ends["cancelled"]
            check(not ends, ends, "rollouts were cancelled, and nobody gave up")
        self.stale += stats.ends["stale"]

    def _check_closed(self) -> None:
        ledger = self.run.ledger
        check(ledger.balanced and not ledger.open, "after the end:", ledger)
        check(self.policy.under_way == 0, "replies are still under way after the end")

    def _check_all(self) -> None:
        """What can be checked only at the end."""
        delivered = {index for one in self.handed for index in one.indices}
        if self.ended:
            self._check_nothing_lost(delivered)
        check(len(self.raised) <= len(self.hooks.raised), "a failure was raised twice:", self.raised)
        if self.ended and self.sessions == 1:  # else it may have been closed before anybody took again
            check(len(self.raised) == len(self.hooks.raised), "swallowed:", self.hooks.raised)
        if self.program.source == "chooser" and self.sessions == 1:
            heard = Counter(group.id for group in self.hooks.finished)
            often = [name for name, count in heard.items() if count > 1]
            check(not often, "the source heard more than once of", often)
            check({f"g{index}" for index in delivered} <= {*heard}, "the source has not heard of all")
        if self.program.is_in_start_order and not self.program.may_be_stale:
            self._compare_with_reference()

    def _check_nothing_lost(self, delivered: set[int]) -> None:
        dropped = {int(name[1:]) for name, keep in self.hooks.verdicts if not keep}
        failed = {index for index in range(self.program.tasks) if self.world.is_dropped_as_failed(index)}
        missing = {*range(self.program.tasks)} - delivered - dropped - failed
        if not self.program.may_be_stale:
            check(not missing, "lost:", missing)
            return
        rollouts = sum(not self.world.is_failed(index, m) for index in missing for m in range(self.program.group_size))
        check(rollouts <= self.stale, "lost:", missing, "of which", self.stale, "rollouts were stale")

    def _compare_with_reference(self) -> None:
        """In start order everything follows from the draws."""
        takes = [one for one in self.outcomes if one[1:] not in ((), ("a hook failed",))]
        if self.program.was_interrupted:
            self._compare_all(takes)
            return
        reference = Reference(self.world)
        for op, came in takes:
            once = op[0] == "collect" or self.program.max_lag == 0
            expected = reference.take(op[1], once=once)
            caught = "exhausted" if expected is None else expected or "the end"
            check(came == caught, op, "gave", came, "and not", caught)
            if came == "the end":
                break

    def _compare_all(self, takes: list[Any]) -> None:
        """Where a batch ends may depend on what was cancelled; not what comes after what."""
        if self.program.keep == "batch" or self.program.on_exhausted != "raise":
            return
        came = [index for _, indices in takes if isinstance(indices, list) for index in indices]
        kept = [
            index
            for index in range(max(came, default=-1) + 1)
            if self.world.is_kept(index) and not self.world.is_dropped_as_failed(index)
        ]
        check(came == kept, "delivered in all:", came, "and not", kept)


def shown(groups: list[Group]) -> list[Any]:
    """All of it; errors are compared by their texts."""
    return [
        (group.id, group.tag, group.verdict, [(_plain(one), repr(one.error)) for one in group.trajectories])
        for group in groups
    ]


def _plain(trajectory: Trajectory) -> list[Any]:
    return [getattr(trajectory, name) for name in trajectory.__struct_fields__ if name != "error"]
