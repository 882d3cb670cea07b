"""Runs in a browser."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
from cyclopts import Parameter

from asyncrollout.cli.app import DONE, WHOLE, Told
from asyncrollout.cli.terminal.signals import stoppable
from asyncrollout.viewer.run_index import RunIndex
from asyncrollout.viewer.server import serving

_RUNS = Path("runs")


async def view(
    *directories: Annotated[Path, Parameter(help="Runs, or directories with runs in them; runs if not given.")],
    port: Annotated[int | None, WHOLE, Parameter(help="On 127.0.0.1; any that is free if not given.")] = None,
    no_browser: Annotated[bool, Parameter(help="Only tell the address.")] = False,
    output: Told,
) -> int:
    """Show runs in a browser, and follow those that go on."""
    async with stoppable() as stop:
        with stop.scope():
            async with serving(RunIndex(directories or [_RUNS]), port) as address:
                output.record({"event": "serving", "url": address, "metrics": f"{address}metrics"})
                output.show(f"{address}\nFor Prometheus: {address}metrics\nCtrl-C ends it.")
                if not no_browser and _has_screen():
                    await anyio.to_thread.run_sync(webbrowser.open, address)
                await anyio.sleep_forever()
    return DONE


def _has_screen() -> bool:
    """Without one, a browser that needs none might take the terminal over."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
