"""`report`: the page of a run."""

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from asyncrollout.cli.terminal.output import DONE, Output, OutputParam
from asyncrollout.cli.terminal.progress import run_with_bar
from asyncrollout.report.page import WrittenReport, write_report


async def report(
    directory: Annotated[Path, Parameter(help="Directory of a run, which may be in progress.")],
    *,
    to: Annotated[Path | None, Parameter(help="Where to write it (default: report.html in the run directory).")] = None,
    output: OutputParam,
) -> int:
    """Write the report of a run: one HTML file to open in a browser.

    Works on running, stopped and killed runs, and changes nothing in them.

    Example: asyncrollout report runs/demo-1
    """
    written = await make_report(directory, to, output)
    output.record({"path": str(written.path), "rollouts": written.rollouts, "bytes": written.bytes})
    output.show(f"{written.path}: {written.rollouts:,} rollouts, {written.bytes / 1e6:.1f} MB")
    return DONE


async def make_report(directory: Path, to: Path | None, output: Output) -> WrittenReport:
    """Write the report in a thread, with a progress bar; cancelling leaves nothing half-written."""
    return await run_with_bar("report", partial(write_report, directory, to), output)
