"""`view`: runs in a browser."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
from cyclopts import Parameter

from asyncrollout.cli.terminal.output import DONE, STOPPED, WHOLE, OutputParam
from asyncrollout.cli.terminal.signals import stoppable
from asyncrollout.viewer.run_index import RunIndex
from asyncrollout.viewer.server import serving

_RUNS = Path("runs")


async def view(
    *directories: Annotated[Path, Parameter(help="Runs, or directories of runs (default: runs).")],
    port: Annotated[int | None, WHOLE, Parameter(help="Port on 127.0.0.1 (default: any free one).")] = None,
    no_browser: Annotated[bool, Parameter(help="Only print the address.")] = False,
    output: OutputParam,
) -> int:
    """Browse runs and their reports in a web browser.

    Runs in progress are updated live. Only this machine can connect; Prometheus scrapes /metrics.

    Example: asyncrollout view

    Example: asyncrollout view runs/demo-1 other/runs --port 8090 --no-browser
    """
    async with stoppable() as stop:
        with stop.scope() as scope:
            async with serving(RunIndex(directories or [_RUNS]), port) as address:
                output.record({"event": "serving", "url": address, "metrics": f"{address}metrics"})
                output.show(f"{address}\nFor Prometheus: {address}metrics\nPress Ctrl-C to stop.")
                if not no_browser and _has_screen():
                    await anyio.to_thread.run_sync(webbrowser.open, address)
                await anyio.sleep_forever()
    return STOPPED if scope.cancelled_caught else DONE


def _has_screen() -> bool:
    """Without a screen, a text browser could take over the terminal."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
