"""An evaluation in the terminal: its progress, and its final figures, read from the run's files."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stacked
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrollout.cli.terminal.numbers import LABEL, Summary, clock, count, counts, number, share
from asyncrollout.cli.terminal.output import one_line
from asyncrollout.journal.recorded_run import read_run
from asyncrollout.report.compared_run import ComparedRun, read_side, which_k
from asyncrollout.report.precision import as_estimate
from asyncrollout.report.rollouts import Rollout
from asyncrollout.rollouts.api import Rollouts
from asyncrollout.rollouts.evaluation import Evaluation
from asyncrollout.rollouts.snapshot import waiting_for
from asyncrollout.stats import ComparedGroup, Estimate, summarize
from asyncrollout.trajectories import Group, group_of

_WIDEST = 100
_FEWEST_TASKS = 3
_INTERVALS = "In brackets: 95% confidence intervals, over tasks."


class EvaluationProgress:
    """The progress of an evaluation; `add` is called with each task as it ends."""

    def __init__(self, rollouts: Rollouts, tasks: int, samples: int, title: str) -> None:
        self._rollouts = rollouts
        self._tasks = tasks
        self._samples = samples
        self._title = title
        self._began = time.monotonic()
        self._groups: list[Group] = []
        self._errors: Counter[str] = Counter()
        self._turns = self._tokens = self._invalid = 0
        self._known: tuple[int, float | None, float | None] = (0, None, None)

    def add(self, group: Group) -> None:
        self._groups.append(group)
        for one in group.trajectories:
            self._turns += len(one.turns)
            self._tokens += one.sampled_tokens
            self._invalid += one.invalid_replies
            if one.error is not None:
                self._errors[one.stop_reason.blame or "other"] += 1

    def _scores(self) -> tuple[float | None, float | None]:
        """The means over the tasks so far: rewards and pass@1."""
        if self._known[0] != len(self._groups):
            so_far = Evaluation(self._samples, self._groups)
            reward, passed = (None if math.isnan(one) else one for one in (so_far.mean_reward, so_far.pass_at(1)))
            self._known = len(self._groups), reward, passed
        return self._known[1], self._known[2]

    def _eta(self) -> float | None:
        done, took = len(self._groups), time.monotonic() - self._began
        return (self._tasks - done) * took / done if done >= _FEWEST_TASKS else None

    def line(self) -> str:
        """For logs and pipes."""
        reward, passed = self._scores()
        waiting = waiting_for(self._rollouts.ledger.open.values())
        parts = [
            clock(time.monotonic() - self._began),
            f"{len(self._groups)}/{self._tasks} tasks",
            f"in flight {_in_flight(waiting)}",
            f"pass@1 {share(passed)}",
            f"reward {number(reward)}",
            f"errors {' '.join(counts(self._errors))}".rstrip(),
            f"eta {_eta(self._eta())}",
        ]
        return " | ".join(parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST)
        title = Text(one_line(self._title[:_WIDEST]), style="bold")
        title.truncate(max(width - 6, 1), overflow="ellipsis")
        yield Panel(Stacked(*self._rows(width - 4)), title=title, title_align="left", border_style="dim", width=width)

    def _rows(self, width: int) -> list[Table | Text]:
        reward, passed = self._scores()
        open_now = self._rollouts.ledger.open
        waiting = waiting_for(open_now.values())
        turns = self._turns + sum(progress.turn for progress in open_now.values())
        played = sum(len(group.trajectories) for group in self._groups)
        rows = [
            ("in flight", _in_flight(waiting)),
            ("rollouts", f"{count(played)} of {count(self._tasks * self._samples)}, {count(turns)} turns"),
            ("pass@1", share(passed)),
            ("reward", number(reward)),
            ("invalid", f"{count(self._invalid)} replies"),
            ("tokens", count(self._tokens)),
            ("errors", " ".join(counts(self._errors)).rstrip()),
        ]
        texts = [
            Text.assemble((label.ljust(LABEL), "dim"), (value, "red" if label == "errors" and self._errors else ""),
                          no_wrap=True, overflow="ellipsis")
            for label, value in rows
        ]  # fmt: skip
        return [self._bar(width), *texts]

    def _bar(self, width: int) -> Table | Text:
        took = clock(time.monotonic() - self._began).ljust(LABEL)
        done = f"{len(self._groups)}/{self._tasks} tasks"
        eta = f"eta {_eta(self._eta())}"
        room = width - len(took) - len(done) - len(eta) - 4
        if room < 4:
            return Text(f"{took}{done}  {eta}", no_wrap=True, overflow="ellipsis")
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_row(took.rstrip().ljust(LABEL - 2), ProgressBar(self._tasks, len(self._groups), width=room), done, eta)
        return row


def _in_flight(waiting: Counter[str]) -> str:
    score = f"{waiting['score']} score, " if waiting["score"] else ""
    return f"{waiting['policy']} LLM, {waiting['env']} env, {score}{waiting['else']} other"


def _eta(seconds: float | None) -> str:
    return "-" if seconds is None else clock(seconds)


class Scores(msgspec.Struct, frozen=True):
    """The figures of an evaluation, or of one env in it. Failed rollouts count in `failed` and `errors` alone.

    `pass_at_tasks` is how many tasks pass@k is over: those with k rollouts that did not fail.
    """

    env: str
    tasks: int
    rollouts: int
    failed: int
    pass_at: dict[int, Estimate]
    pass_at_tasks: dict[int, int]
    reward: Estimate
    turns: Estimate
    tokens: Estimate
    replies: int
    invalid: int
    sampled_tokens: int
    errors: dict[str, int]

    @classmethod
    def of(cls, env: str, groups: Sequence[ComparedGroup], ks: Sequence[int], members: Sequence[Rollout]) -> "Scores":
        found = summarize(groups, ks)
        return cls(
            env=env,
            tasks=found.groups,
            rollouts=found.rollouts,
            failed=found.failed,
            pass_at=found.pass_at,
            pass_at_tasks={k: sum(len(group.rewards) >= k for group in groups) for k in ks},
            reward=found.reward,
            turns=found.turns,
            tokens=found.tokens,
            replies=sum(one.turns for one in members),
            invalid=sum(one.invalid for one in members),
            sampled_tokens=sum(one.tokens for one in members),
            errors=dict(Counter(one.error.partition(":")[0] for one in members if one.error)),
        )

    def pass_rate(self, k: int) -> str:
        """For people, with the number of tasks if failures left some without enough rollouts."""
        counted = self.pass_at_tasks[k]
        return as_estimate(self.pass_at[k], share=True) + (f" of {counted} tasks" if counted < self.tasks else "")


class EvaluationFigures(msgspec.Struct, frozen=True):
    """The results of an evaluation: all of it first, then each env if there are several. `seconds` exclude pauses."""

    wanted: int
    seconds: float
    scores: list[Scores]
    split: str = ""

    @property
    def record(self) -> dict[str, Any]:
        whole, *envs = msgspec.to_builtins(self.scores, str_keys=True)
        return {**whole, "wanted_tasks": self.wanted, "seconds": self.seconds, "split": self.split, "envs": envs}

    def lines(self) -> list[tuple[str, str]]:
        """Names and figures, for people."""
        whole = self.scores[0]
        named = "" if not whole.failed else f", {whole.failed} failed and not counted below"
        tokens = f"{as_estimate(whole.tokens)} a rollout, {count(whole.sampled_tokens)} in all"
        rows = [
            ("tasks", f"{whole.tasks} of {self.wanted}, {whole.rollouts} rollouts{named}"),
            *([("split", one_line(self.split))] if self.split else []),
            *((f"pass@{k}", whole.pass_rate(k)) for k in whole.pass_at),
            ("reward", as_estimate(whole.reward)),
            ("turns", f"{as_estimate(whole.turns)} a rollout"),
            ("invalid", f"{count(whole.invalid)} of {count(whole.replies)} replies"),
            ("tokens", tokens if whole.sampled_tokens else "none counted"),
            ("errors", " ".join(counts(whole.errors)).rstrip()),
            ("time", clock(self.seconds)),
        ]
        for one in self.scores[1:]:
            rates = ", ".join(f"pass@{k} {one.pass_rate(k)}" for k in one.pass_at)
            rows.append(
                (one_line(one.env)[: LABEL - 1], f"{rates}, reward {as_estimate(one.reward)}, {one.tasks} tasks")
            )
        return rows


def evaluation_summary(found: EvaluationFigures, title: str, notes: Sequence[str]) -> RenderableType:
    """The figures of an evaluation, with notes below them."""
    return Summary(title, lambda _: found.lines(), [_INTERVALS, *notes])


def read_evaluated(directory: Path, wanted: int) -> EvaluationFigures:
    """Read from a run's files; blocks, so call it in a thread."""
    side = read_side(directory, directory.name)
    ks = which_k([side])
    tags = [""] if len(side.envs) < 2 else ["", *side.envs]
    scores = [_scores_of(side, tag, ks) for tag in tags]
    return EvaluationFigures(wanted, side.history.clock(side.history.last), scores, _split_of(side))


def _split_of(side: ComparedRun) -> str:
    """What the last evaluation played, or nothing if no env has splits."""
    evaluation = side.history.last_evaluation
    return "" if evaluation is None else evaluation.split


def _scores_of(side: ComparedRun, tag: str, ks: Sequence[int]) -> Scores:
    groups = [group for group in side.played if tag in ("", group.tag)]
    members = [one for group in side.groups if tag in ("", group.env) for one in group.members]
    return Scores.of(tag or ", ".join(side.envs), groups, ks, members)


def is_complete(directory: Path) -> bool:
    """Whether the evaluation is complete."""
    evaluation = read_run(directory).last_evaluation
    return evaluation is not None and evaluation.is_complete


def rollouts_over(directory: Path) -> int:
    """How many rollouts of the evaluation are over, failed ones included."""
    history = read_run(directory)
    return sum(history.evaluation_of(group_of(uid)) is history.last_evaluation for uid in history.finished)
