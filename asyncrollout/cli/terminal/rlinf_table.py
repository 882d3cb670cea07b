"""What came of an evaluation, as a person reads it: a row for each env, for each task, and for all."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrollout.cli.terminal.numbers import number
from asyncrollout.cli.terminal.output import one_line
from asyncrollout.dropin.rlinf.results import EvaluatedEpisode, EvaluationTotals, summarize
from asyncrollout.stats import Estimate

_LONGEST_ERROR = 300


def outcomes(episodes: Sequence[EvaluatedEpisode]) -> RenderableType:
    """The tables."""
    intervals = Text("In brackets: 95% confidence intervals, over episodes.", style="dim")
    return Group(_by_env(episodes), Text(), _by_task(episodes), Text(), intervals)


def by_task(episodes: Sequence[EvaluatedEpisode]) -> dict[str, EvaluationTotals]:
    tasks = dict.fromkeys(episode.task for episode in episodes if episode.task)
    return {task: summarize([episode for episode in episodes if episode.task == task]) for task in tasks}


def _by_env(episodes: Sequence[EvaluatedEpisode]) -> Table:
    table = _table("env", "task", "seed", "success", "return", "steps", "ended", right=(2, 4, 5))
    for episode in episodes:
        text = "-" if episode.success is None else "yes" if episode.success else "no"
        ended = episode.error[:_LONGEST_ERROR] or episode.stop_reason
        name = episode.env if not episode.episode else f"  episode {episode.episode}"
        figures = (str(episode.seed), text, number(episode.reward), str(episode.steps), ended)
        cells = (Text(one_line(cell)) for cell in (name, episode.task, *figures))
        table.add_row(*cells, style="red" if episode.error else None)
    return table


def _by_task(episodes: Sequence[EvaluatedEpisode]) -> Table:
    tasks = by_task(episodes)
    whole = summarize(episodes)
    failed = ["failed"] if whole.failed else []
    table = _table("task", "played", *failed, "success", "return", "steps", right=range(1, 2 + len(failed)))
    for task, found in (tasks if len(tasks) > 1 else {}).items():
        table.add_row(Text(one_line(task)), *map(Text, _cells(found, has_failures=bool(failed))))
    table.add_row("all", *map(Text, _cells(whole, has_failures=bool(failed))), style="bold")
    return table


def _cells(found: EvaluationTotals, *, has_failures: bool) -> list[str]:
    counted = [str(found.episodes), *([str(found.failed)] if has_failures else [])]
    return [*counted, _told(found.success, ".0%"), _told(found.reward, ".2f"), _told(found.steps, ".0f")]


def _told(estimate: Estimate, form: str) -> str:
    """A mean, and its confidence interval if there is one."""
    if estimate.mean is None:
        return "-"
    interval = "" if estimate.low is None else f" [{estimate.low:{form}}, {estimate.high:{form}}]"
    return f"{estimate.mean:{form}}{interval}"


def _table(*columns: str, right: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(columns):
        is_last = place == len(columns) - 1
        table.add_column(name, justify="right" if place in right else "left", no_wrap=not is_last)
    return table
