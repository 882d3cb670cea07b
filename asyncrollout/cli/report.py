"""A run's report."""

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from asyncrollout.cli.app import DONE, Output, Told
from asyncrollout.cli.terminal.progress import run_with_bar
from asyncrollout.report.page import WrittenReport, write_report


async def report(
    directory: Annotated[Path, Parameter(help="The directory of a run, which may still go on.")],
    *,
    to: Annotated[Path | None, Parameter(help="Where to write it; report.html in the directory if not given.")] = None,
    output: Told,
) -> int:
    """Write a page that shows all of a run."""
    written = await make_report(directory, to, output)
    output.record({"path": str(written.path), "rollouts": written.rollouts, "bytes": written.bytes})
    output.show(f"{written.path}: {written.rollouts:,} rollouts, {written.bytes / 1e6:.1f} MB")
    return DONE


async def make_report(directory: Path, to: Path | None, output: Output) -> WrittenReport:
    """Write it in a thread, with a bar for whoever waits; cancellation ends it, and leaves nothing half written."""
    return await run_with_bar("report", partial(write_report, directory, to), output)
