"""A run's report."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from asyncrollout.cli.app import DONE, Told
from asyncrollout.report.page import write_report


def report(
    directory: Annotated[Path, Parameter(help="The directory of a run, which may still go on.")],
    *,
    to: Annotated[Path | None, Parameter(help="Where to write it; report.html in the directory if not given.")] = None,
    output: Told,
) -> int:
    """Write a page that shows all of a run."""
    written = write_report(directory, to)
    output.record({"path": str(written.path), "rollouts": written.rollouts, "bytes": written.bytes})
    output.show(f"{written.path}: {written.rollouts:,} rollouts, {written.bytes / 1e6:.1f} MB")
    return DONE
