"""Runs that a person starts, watches, stops and resumes."""

import os
import shlex
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
from cyclopts import Parameter
from rich.console import Console

from asyncrollout.batches.batch import Batch
from asyncrollout.cli.report import make_report
from asyncrollout.cli.run_directory import (
    claimed,
    env_secrets,
    has_played,
    new_directory,
    next_attempt,
    read_back,
    read_length,
    redacted_config,
    write_config,
    write_resolved,
)
from asyncrollout.cli.samples import write_samples
from asyncrollout.cli.terminal.live import Display, live, live_view
from asyncrollout.cli.terminal.logs import logging_to
from asyncrollout.cli.terminal.numbers import as_record, summary, with_totals
from asyncrollout.cli.terminal.output import DONE, STOPPED, WHOLE, Output, OutputParam, program
from asyncrollout.cli.terminal.scores import (
    EvaluationProgress,
    evaluation_summary,
    is_complete,
    read_evaluated,
    rollouts_over,
)
from asyncrollout.cli.terminal.signals import Stop, stoppable
from asyncrollout.config import Config, read_config, read_tasks
from asyncrollout.config.build import check_imports, open_rollouts, splits_of
from asyncrollout.dropin.ragen.config_keys import RAGEN_KEYS
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.journal.history import read_past
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES
from asyncrollout.logs import get_logger
from asyncrollout.redaction import hide_in_error, known_secrets
from asyncrollout.report.page import REPORT, WrittenReport
from asyncrollout.report.videos import videos_of
from asyncrollout.rollouts.api import Rollouts
from asyncrollout.rollouts.evaluator import SplitChoice
from asyncrollout.telemetry import RunMetrics
from asyncrollout.video.files import VIDEOS

log = get_logger(__name__)

_LONG_TO_READ = 50_000_000  # bytes; some seconds

OnBatch = Callable[[Batch, Display], Awaitable[None]]

Runs = Annotated[Path, Parameter(help="Parent directory of run directories (default: runs).")]
Overrides = Annotated[str, Parameter(help="Override values of the file: group_size=4 env_kwargs.size=8")]
LaterOverrides = Annotated[str, Parameter(help="Change what may change in a run: workers=4 batches=8")]
BaseUrl = Annotated[
    str | None, Parameter(help="URL of an OpenAI-compatible server; the API key is read from $OPENAI_API_KEY.")
]
Model = Annotated[str | None, Parameter(help="Name of the model on that server.")]
AcceptChanges = Annotated[
    tuple[str, ...],
    Parameter(help="Accept a changed setting of the agent or policy, such as agent.system_prompt. Repeatable."),
]
Shards = Annotated[int | None, WHOLE, Parameter(help="Play groups on this many processes of a Ray cluster.")]
RayAddress = Annotated[
    str | None, Parameter(name="--ray", help="Address of the Ray cluster for --shards: HOST:6379, auto or local.")
]
AllowImport = Annotated[bool, Parameter(help="Allow imports of code: `score`, and envs given as module:Class.")]


def check_server(base_url: str | None, model: str | None) -> None:
    if (base_url is None) != (model is None):
        raise UsageError("--base-url and --model go together: the URL of a server and the name of its model")


def shard_overrides(shards: int | None, ray: str | None) -> list[str]:
    """The options of the command line as overrides of a configuration."""
    given = {"shards": shards, "ray.address": ray}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


async def run(
    config: Annotated[Path, Parameter(help="YAML file; see examples/configs.")],
    *overrides: Overrides,
    runs: Runs = Path("runs"),
    shards: Shards = None,
    ray: RayAddress = None,
    allow_import: AllowImport = False,
    output: OutputParam,
) -> int:
    """Run rollouts as configured in a YAML file.

    The run gets a new directory. Override values of the file with key=value. Ctrl-C stops the run, and `asyncrollout
    resume` continues it.

    Example: asyncrollout run examples/configs/mixed_dapo.yaml

    Example: asyncrollout run examples/configs/frozen_lake_solver.yaml name=lake env_kwargs.size=8

    Example: asyncrollout run examples/configs/mixed_dapo.yaml --ray 10.0.0.1:6379 --shards 8
    """
    overrides = (*overrides, *shard_overrides(shards, ray))
    if not config.is_file():
        raise UsageError(f"{config} is not a file" if config.exists() else f"{config} does not exist")
    chosen = read_config(config, overrides, dialect=RAGEN_KEYS)
    check_imports(chosen, allow_import=allow_import)
    with new_directory(runs, chosen.name, config.stem) as directory:
        write_config(directory, chosen, config.read_text(encoding="utf-8"))
        with logging_to(next_attempt(directory), console=not output.quiet, secrets=env_secrets(chosen)):
            read_config(config, overrides, dialect=RAGEN_KEYS)  # again, to log in the run what became of RAGEN's keys
            return await play(chosen, directory, resume=False, allow_import=allow_import, output=output)


async def resume(
    directory: Annotated[Path, Parameter(help="Directory of a stopped or killed run.")],
    *overrides: LaterOverrides,
    accept_changes: AcceptChanges = (),
    allow_import: AllowImport = False,
    output: OutputParam,
) -> int:
    """Resume a stopped or killed run where it stopped; nothing is lost or repeated.

    Example: asyncrollout resume runs/demo-1
    """
    config = read_back(directory, overrides)
    if config.evaluate != (before := read_length(directory).evaluate):
        raise UsageError(
            f"evaluate: found {config.evaluate}, but {directory} began with {before}: tasks that are added or left out "
            "make a different evaluation; start it under another name"
        )
    check_imports(config, allow_import=allow_import)
    redacted_config(config)  # which refuses what must not be written
    with claimed(directory):
        journal = directory / JOURNAL
        if journal.exists() and journal.stat().st_size > _LONG_TO_READ:
            output.say(f"Reading the journal of {directory} ...")
        if config.evaluate is not None:
            if (directory / JOURNAL).exists() and await anyio.to_thread.run_sync(is_complete, directory):
                return await _show_complete_evaluation(directory, config, allow_import=allow_import, output=output)
        elif (done := await anyio.to_thread.run_sync(_batches_done, directory)) >= config.batches:
            await anyio.to_thread.run_sync(write_samples, directory, config)
            if not (directory / REPORT).exists():
                await make_report(directory, None, output)
            output.show(f"{directory} is complete: it has all {done} batches")
            output.record(_launched(directory, allow_import=allow_import))
            output.record({"event": "ended", "directory": str(directory), "state": "done", "batches": done})
            return DONE
        attempt = next_attempt(directory)
        with logging_to(attempt, console=not output.quiet, secrets=env_secrets(config), later=True) as events:
            return await play(
                config,
                directory,
                resume=True,
                on_open=events.open,
                accept_changes=accept_changes,
                allow_import=allow_import,
                output=output,
            )


def _batches_done(directory: Path) -> int:
    return read_past(directory).next_batch if (directory / JOURNAL).exists() else 0


async def _show_complete_evaluation(directory: Path, config: Config, *, allow_import: bool, output: Output) -> int:
    """Show the results again: nothing is left to play."""
    if not (directory / REPORT).exists():
        await make_report(directory, None, output)
    output.record(_launched(directory, allow_import=allow_import))
    notes = [f"files     {directory}", f"report    {directory / REPORT}"]
    await _show_evaluation(directory, config, state="done", notes=notes, output=output)
    return DONE


async def _show_evaluation(directory: Path, config: Config, *, state: str, notes: list[str], output: Output) -> None:
    assert config.evaluate is not None
    found = await anyio.to_thread.run_sync(read_evaluated, directory, config.evaluate)
    output.record({"event": "ended", "directory": str(directory), "state": state, **found.record})
    if state == "stopped":
        notes = ["Quick tasks finish first: the final numbers may differ.", *notes]
    output.show(evaluation_summary(found, f"{directory.name}: {state}", notes))


def _launched(directory: Path, *, allow_import: bool) -> dict[str, Any]:
    how_to_resume = _resume_command(directory, allow_import=allow_import)
    return {"event": "launched", "directory": str(directory), "resume": how_to_resume, "pid": os.getpid()}


def _resume_command(directory: Path, *, allow_import: bool) -> str:
    return f"{program()} {shlex.join(['resume', str(directory)] + ['--allow-import'] * allow_import)}"


async def play(
    config: Config,
    directory: Path,
    *,
    resume: bool,
    output: Output,
    accept_changes: Collection[str] = (),
    allow_import: bool = False,
    on_batch: OnBatch | None = None,
    on_open: Callable[[], None] = lambda: None,
) -> int:
    """Play until all batches are delivered or the user stops; what was played is on disk in any case."""
    how_to_resume = _resume_command(directory, allow_import=allow_import)
    log.info("run", directory=str(directory), resume=resume, pid=os.getpid())
    output.record(_launched(directory, allow_import=allow_import))
    output.say(f"{'Resuming' if resume else 'Running'} {directory}")
    figures, rollouts = RunMetrics(), None
    async with stoppable() as stop:
        try:
            with stop.scope() as playing:
                has_begun = any((directory / name).exists() for name in (JOURNAL, TRAJECTORIES))
                async with open_rollouts(
                    config,
                    directory,
                    resume=resume and has_begun,
                    accept_changes=accept_changes,
                    allow_import=allow_import,
                ) as rollouts:
                    if resume:  # overrides stay, unless they were refused
                        write_resolved(directory, config)
                    on_open()
                    if config.evaluate is not None:
                        await _evaluate(
                            rollouts,
                            config,
                            splits_of(config, allow_import=allow_import),
                            title=directory.name,
                            output=output,
                            stop=stop,
                        )
                    else:
                        await _consume(
                            rollouts, config, title=directory.name, output=output, on_batch=on_batch, stop=stop
                        )
            if rollouts is not None:
                figures = rollouts.figures()
            if (directory / JOURNAL).exists():
                await anyio.to_thread.run_sync(write_samples, directory, config)
        except RolloutError as error:
            shown = hide_in_error(error, [*known_secrets(), *env_secrets(config)])
            log.info("run_failed", error=f"{type(shown).__name__}: {shown}")
            output.record({"event": "ended", "directory": str(directory), "state": "failed", "error": str(shown)})
            if has_played(directory):
                if rollouts is not None:  # else it was refused, and all is as it was
                    await _report(directory, stop, output)
                output.warn(await anyio.to_thread.run_sync(_what_is_left, directory, config, how_to_resume))
            if str(shown) == str(error):
                raise
            raise shown from None  # its cause may hold the secret
        report = await _report(directory, stop, output)
    has_stopped = playing.cancelled_caught
    state = "stopped" if has_stopped else "done"
    log.info("run_ended", state=state)
    notes = [f"files     {directory}"]
    notes += [f"videos    {videos}, in {directory / VIDEOS}"] if (videos := len(videos_of(directory))) else []
    notes += [f"report    {report.path}"] if report is not None else []
    notes += [f"resume    {how_to_resume}"] if has_stopped else []
    if config.evaluate is not None and report is not None:
        await _show_evaluation(directory, config, state=state, notes=notes, output=output)
    else:
        totals = None if report is None else report.totals
        figures_record = as_record(figures if totals is None else with_totals(figures, totals))
        output.record({"event": "ended", "directory": str(directory), "state": state, **figures_record})
        output.show(summary(figures, title=f"{directory.name}: {state}", notes=notes, totals=totals))
    return STOPPED if has_stopped else DONE


def _what_is_left(directory: Path, config: Config, how_to_resume: str) -> str:
    """How to resume after an error; an evaluation whose rollouts have all ended has nothing to resume."""
    if config.evaluate is not None and rollouts_over(directory) >= config.evaluate * config.group_size:
        return "every rollout has ended and nothing is left to resume: evaluate again once the cause is fixed"
    return f"finished work is saved; to resume: {how_to_resume}"


async def _report(directory: Path, stop: Stop, output: Output) -> WrittenReport | None:
    """The report; None if nothing was played, if it cannot be written, or if the user does not wait for it."""
    if not has_played(directory):
        return None
    try:
        with stop.scope():
            return await make_report(directory, None, output)
    except RolloutError as error:
        output.warn(f"no report was written: {error}")
    return None


async def _evaluate(
    rollouts: Rollouts, config: Config, split: SplitChoice, *, title: str, output: Output, stop: Stop
) -> None:
    """Play each task `group_size` times, recorded, with a live view."""
    listed, tasks = read_tasks(config), config.evaluate
    assert tasks is not None
    if listed is not None and len(listed) < tasks:
        raise UsageError(f"evaluate: found {tasks}, but there are {len(listed)} tasks")
    console = Console(stderr=True, quiet=output.quiet or output.json)
    progress = EvaluationProgress(rollouts, tasks, config.group_size, title)
    async with live_view(lambda: progress, progress.line, console=console) as display:
        stop.drain(rollouts, display)
        await rollouts.evaluate(
            tasks if listed is None else listed[:tasks],
            k=config.group_size,
            split=split,
            seed=config.seed,
            on_group=progress.add,
        )


async def _consume(
    rollouts: Rollouts, config: Config, *, title: str, output: Output, on_batch: OnBatch | None, stop: Stop
) -> None:
    """Take all batches, each recorded by then, with a live view."""
    console = Console(stderr=True, quiet=output.quiet or output.json)
    async with live(rollouts.figures, title=title, console=console) as display:
        stop.drain(rollouts, display)
        while rollouts.next_batch < config.batches:
            try:
                batch = await anext(rollouts.batches(config.groups))
            except StopAsyncIteration:
                display.say(f"no tasks are left after {rollouts.next_batch} batches")
                break
            if on_batch is not None:
                await on_batch(batch, display)
