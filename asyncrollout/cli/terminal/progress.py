"""Work that takes a while, off the event loop, with a bar for whoever waits."""

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
from anyio.from_thread import check_cancelled
from rich.console import Console
from rich.progress import Progress

from asyncrollout.cli.app import Output

T = TypeVar("T")


async def run_with_bar(name: str, work: Callable[[Callable[[int, int], None]], T], output: Output) -> T:
    """Call `work` in a thread, with a function that it tells how much is done, of how much; there it can be stopped."""
    console = Console(stderr=True, quiet=output.quiet or output.json)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task(name, total=None)

        def tell(done: int, total: int) -> None:
            check_cancelled()
            bars.update(bar, completed=done, total=total)

        return await anyio.to_thread.run_sync(work, tell)
