"""Slow work in a thread, with a progress bar."""

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
from anyio.from_thread import check_cancelled
from rich.console import Console
from rich.progress import Progress

from asyncrollout.cli.terminal.output import Output

T = TypeVar("T")


async def run_with_bar(name: str, work: Callable[[Callable[[int, int], None]], T], output: Output) -> T:
    """Call `work` in a thread with a function that reports (done, total), and raises there once this is cancelled."""
    console = Console(stderr=True, quiet=output.quiet or output.json)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task(name, total=None)

        def report(done: int, total: int) -> None:
            check_cancelled()
            bars.update(bar, completed=done, total=total)

        return await anyio.to_thread.run_sync(work, report)
