"""A run's report."""

from functools import partial
from pathlib import Path
from typing import Annotated

import anyio.to_thread
from anyio.from_thread import check_cancelled
from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from asyncrollout.cli.app import DONE, Output, Told
from asyncrollout.report.page import Written, write_report


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


async def make_report(directory: Path, to: Path | None, output: Output) -> Written:
    """Write it in a thread, with a bar for whoever waits; cancellation ends it, and leaves nothing half written."""
    console = Console(stderr=True, quiet=output.quiet or output.json)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("report", total=None)

        def tell(done: int, total: int) -> None:
            check_cancelled()
            bars.update(bar, completed=done, total=total)

        return await anyio.to_thread.run_sync(partial(write_report, directory, to, tell))
