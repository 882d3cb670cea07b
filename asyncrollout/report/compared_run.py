"""A run as one side of a comparison."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.journal.recorded_run import EvaluationRecord, RecordedRun, read_files
from asyncrollout.report.formatting import shown_path
from asyncrollout.report.groups import PlayedGroup, decided, played_group, successes
from asyncrollout.report.rollouts import Rollout, read_rollouts
from asyncrollout.stats import ComparedGroup


class ComparedRun:
    """The compared part of a run: its judged groups; if it only evaluates, those of its last evaluation."""

    def __init__(
        self, name: str, history: RecordedRun, groups: list[PlayedGroup], evaluation: EvaluationRecord | None = None
    ) -> None:
        self.name = name
        self.history = history
        self.groups = groups
        self.evaluation = evaluation

    @property
    def group_size(self) -> int:
        size = self.history.given.get("group_size") if self.evaluation is None else self.evaluation.k
        if size is None:
            return max((len(group.members) for group in self.groups), default=1)
        return size if isinstance(size, int) and size > 0 else 1

    @cached_property
    def played(self) -> list[ComparedGroup]:
        return [as_played(self.history, group) for group in self.groups]

    @property
    def members(self) -> list[Rollout]:
        return [member for group in self.groups for member in group.members]

    @property
    def envs(self) -> list[str]:
        return list(dict.fromkeys(group.env for group in self.groups))


def read_side(directory: Path, name: str, proceed: Callable[[], None] = lambda: None) -> ComparedRun:
    """Read a run, which may still be playing; a `UsageError` says that the directory holds none.

    `proceed` is called for each group; what it raises ends the reading.
    """
    history, records = read_files(directory)
    groups = []
    for group in records.groups if history.evaluates_only else history.verdicts:
        proceed()
        if group in records.groups:
            members = [rollout for rollout, _ in read_rollouts(records, group, history.finished)]
            groups.append(played_group(history, group, members))
    return side_of(name, history, decided(groups))


def side_of(name: str, history: RecordedRun, groups: Iterable[PlayedGroup]) -> ComparedRun:
    """Of all groups, those that a run's figures are of: the judged ones; if nothing but evaluations was played, the
    whole ones of the last.
    """
    if history.evaluates_only:
        return evaluation_side(name, history, groups, history.last_evaluation)
    return ComparedRun(name, history, [group for group in groups if group.id in history.verdicts and group.members])


def evaluation_side(
    name: str, history: RecordedRun, groups: Iterable[PlayedGroup], evaluation: EvaluationRecord | None
) -> ComparedRun:
    chosen = [group for group in groups if history.evaluation_of(group.id) is evaluation]
    return ComparedRun(name, history, [group for group in chosen if group.fate.kind == "evaluation"], evaluation)


def decide(sides: Sequence[ComparedRun]) -> None:
    """Decide which members passed, by what their envs report in any of the runs, so that all are measured alike."""
    known = successes(group for side in sides for group in side.groups)
    for side in sides:
        side.groups = decided(side.groups, known)


def names_of(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, if these differ."""
    short = [shown_path(path.resolve().name) for path in paths]
    return short if len({*short}) == len(short) else [shown_path(path) for path in paths]


def which_k(sides: Sequence[ComparedRun], k: int | None = None) -> list[int]:
    """The k of pass@k: 1, and the given one, or else the size of the smallest group."""
    most = min(side.group_size for side in sides)
    if k is not None and not 1 <= k <= most:
        raise UsageError(f"--k {k}: it must be a whole number from 1 to {most}, the size of the smallest group")
    return sorted({1, k or most})


def as_played(history: RecordedRun, group: PlayedGroup) -> ComparedGroup:
    """The figures of a group; two runs share one if id, env, options, seed and task are equal."""
    envs, valid = history.given.get("envs"), group.valid
    setting: Any = envs.get(group.env) if isinstance(envs, dict) else None
    what = [group.id.rpartition("-")[2], group.env, group.members[0].start, setting]
    verdict = history.verdicts.get(group.id)
    return ComparedGroup(
        what=msgspec.json.encode(what, order="sorted").decode(),
        tag=group.env,
        rewards=tuple(member.reward for member in valid),
        successes=sum(member.passed for member in valid),
        failed=len(group.members) - len(valid),
        turns=sum(member.turns for member in valid) / max(len(valid), 1),
        tokens=sum(member.tokens for member in valid) / max(len(valid), 1),
        kept=verdict is None or verdict.keep,
    )
