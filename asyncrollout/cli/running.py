"""Runs that a person starts, watches, stops and resumes."""

import os
import shlex
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import aiofiles
import anyio
import anyio.to_thread
import msgspec
import structlog
from cyclopts import Parameter
from rich.console import Console

from asyncrollout.arrays.batch import Batch
from asyncrollout.cli.app import DONE, STOPPED, Output, Told
from asyncrollout.cli.building import check_imports, open_rollouts
from asyncrollout.cli.directory import new_directory, next_attempt, read_back, write_config
from asyncrollout.cli.display import Display, live
from asyncrollout.cli.logs import logging_to
from asyncrollout.cli.samples import write_samples
from asyncrollout.cli.summary import as_record, summary
from asyncrollout.config import Config, read_config
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.journal.reader import read_past
from asyncrollout.journal.writer import JOURNAL
from asyncrollout.metrics import Figures, flat
from asyncrollout.rollouts.facade import Rollouts
from asyncrollout.tasks import task_group

log = structlog.get_logger(__name__)

METRICS = "metrics.jsonl"

_METRICS_EVERY = 2.0  # seconds
_DRAIN_SECONDS = 2.0
_LONG_TO_READ = 50_000_000  # bytes; some seconds

OnBatch = Callable[[Batch, Display], Awaitable[None]]

Runs = Annotated[Path, Parameter(help="Where run directories are.")]
AllowImport = Annotated[bool, Parameter(help="Let the configuration import code: `score`, and envs by module:Class.")]


async def run(
    config: Annotated[Path, Parameter(help="A YAML file; see examples/configs.")],
    *overrides: Annotated[str, Parameter(help="Values that replace those of the file: group_size=4 env_kwargs.size=8")],
    runs: Runs = Path("runs"),
    allow_import: AllowImport = False,
    output: Told,
) -> int:
    """Play a run as configured, in a new directory."""
    if not config.is_file():
        raise UsageError(f"{config} is no file" if config.exists() else f"there is no file {config}")
    chosen = read_config(config, overrides)
    check_imports(chosen, allow_import=allow_import)
    directory = new_directory(runs, chosen.name, config.stem)
    write_config(directory, chosen, config.read_bytes())
    return await play(chosen, directory, resume=False, allow_import=allow_import, output=output)


async def resume(
    directory: Annotated[Path, Parameter(help="The directory of a run that was stopped or killed.")],
    *,
    allow_import: AllowImport = False,
    output: Told,
) -> int:
    """Go on with a run where it ended."""
    config = read_back(directory)
    journal = directory / JOURNAL
    if journal.exists() and journal.stat().st_size > _LONG_TO_READ:
        output.say(f"Reading what {directory} has recorded ...")
    done = await anyio.to_thread.run_sync(_batches_done, directory)
    if done >= config.batches:
        output.show(f"{directory} is complete: all its {done} batches are there")
        output.record({"event": "ended", "directory": str(directory), "state": "done"})
        return DONE
    return await play(config, directory, resume=True, allow_import=allow_import, output=output)


def _batches_done(directory: Path) -> int:
    return read_past(directory).next_batch if (directory / JOURNAL).exists() else 0


async def play(
    config: Config,
    directory: Path,
    *,
    resume: bool,
    output: Output,
    allow_import: bool = False,
    on_batch: OnBatch | None = None,
) -> int:
    """Play until all batches are there, or somebody stops it; what was played is on disk in any case."""
    how_to_go_on = shlex.join(["asyncrollout", "resume", str(directory)] + ["--allow-import"] * allow_import)
    attempt = next_attempt(directory)
    with logging_to(attempt, console=not output.quiet):
        log.info("run", directory=str(directory), resume=resume, pid=os.getpid())
        output.record({"event": "launched", "directory": str(directory), "resume": how_to_go_on, "pid": os.getpid()})
        output.say(f"{'Going on with' if resume else 'Running'} {directory}")
        try:
            has_begun = (directory / JOURNAL).exists()
            async with open_rollouts(
                config, directory, resume=resume and has_begun, allow_import=allow_import
            ) as rollouts:
                figures, stopped = await _consume(rollouts, config, directory, output, on_batch)
        except RolloutError as error:
            log.error("run_failed", error=f"{type(error).__name__}: {error}")  # noqa: TRY400 (it is told in words)
            output.record({"event": "ended", "directory": str(directory), "state": "failed", "error": str(error)})
            if (directory / JOURNAL).exists():
                output.warn(f"what was played is kept; to go on: {how_to_go_on}")
            raise
        await anyio.to_thread.run_sync(write_samples, directory, config)
        state = "stopped" if stopped else "done"
        log.info("run_ended", state=state)
        output.record({"event": "ended", "directory": str(directory), "state": state, **as_record(figures)})
        notes = [f"files     {directory}"]
        notes += [f"to go on  {how_to_go_on}"] if stopped else []
        output.show(summary(figures, title=f"{directory.name}: {state}", notes=notes))
        return STOPPED if stopped else DONE


async def _consume(
    rollouts: Rollouts, config: Config, directory: Path, output: Output, on_batch: OnBatch | None
) -> tuple[Figures, bool]:
    """The figures at the end, and whether somebody stopped it before."""

    def read() -> Figures:
        return rollouts.figures(batches=config.batches, groups=config.groups)

    console = Console(stderr=True, quiet=output.quiet or output.json)
    stopped = False
    async with live(read, title=directory.name, console=console) as display, _metrics_to(directory / METRICS, read):
        with anyio.CancelScope() as playing:
            async with task_group() as watching:
                watching.start_soon(_stop_on_signals, rollouts, playing, display)
                while rollouts.next_batch < config.batches:
                    try:
                        batch = await anext(rollouts.batches(config.groups))
                    except StopAsyncIteration:
                        display.say(f"the tasks are at their end after {rollouts.next_batch} batches")
                        break
                    if on_batch is not None:
                        await on_batch(batch, display)
                watching.cancel_scope.cancel()
        stopped = playing.cancelled_caught
    return read(), stopped


async def _stop_on_signals(rollouts: Rollouts, playing: anyio.CancelScope, display: Display) -> None:
    """The first Ctrl-C lets replies under way come in; a second one does not."""
    async with anyio.create_task_group() as draining:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            is_first = True
            async for _ in signals:
                if not is_first:
                    playing.cancel()
                    return
                is_first = False
                display.say("stopping, once the replies under way are in; again to stop at once")
                draining.start_soon(_drain, rollouts, playing)


async def _drain(rollouts: Rollouts, playing: anyio.CancelScope) -> None:
    await rollouts.drain(_DRAIN_SECONDS)
    playing.cancel()


@asynccontextmanager
async def _metrics_to(path: Path, read: Callable[[], Figures]) -> AsyncIterator[None]:
    """Figures as lines of JSON, every few seconds and at the end."""
    async with aiofiles.open(path, "ab", buffering=0) as file, task_group() as writing:

        async def write_always() -> None:
            while True:
                await anyio.sleep(_METRICS_EVERY)
                await write()

        async def write() -> None:
            await file.write(msgspec.json.encode({"at": time.time(), **flat(read())}) + b"\n")

        writing.start_soon(write_always)
        try:
            yield
        finally:
            writing.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await write()
