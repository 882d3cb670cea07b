"""How a worker's interpreter is started: by `anyio.to_process`, but without the user's main script.

anyio has every new interpreter run the script that `__main__.__file__` names. That fails with dill (`__main__` is
missing meanwhile), with `python -m`, with scripts that read `sys.argv` or have no main guard, and it takes as long as
the script's imports. What anyio reads it reads through names of its own module. So a worker is started by a copy of
anyio's function that has other values for some of these names: nothing is patched, and neither anyio's own users nor
readers of `__main__.__file__` in other threads can notice.

Nor does a worker join anyio's own processes. anyio kills all of these when the task ends that it takes for the program,
which in a notebook is a cell, and it lends idle ones to whoever asks.
"""

import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import IO, Any, NoReturn

import anyio
import anyio.to_process
from anyio.abc import Process

from asyncrollout.errors import PoolError

READY_LIMIT = 60.0  # seconds for a bare interpreter to start; anyio's own limit is too short for a busy machine
_END_LIMIT = 5.0  # seconds


class _Sys:
    """What anyio reads of `sys`, without a script to run."""

    modules = {"__main__": None}  # noqa: RUF012 (read only)

    @property
    def executable(self) -> str:
        return sys.executable

    @property
    def path(self) -> list[str]:
        return [entry for entry in sys.path if isinstance(entry, str)]  # imports skip others, and some do not pickle


class _OwnProcesses:
    """In place of the variables in which anyio keeps the processes of an event loop."""

    def __init__(self, processes: Any) -> None:
        self._processes = processes

    def get(self) -> Any:
        return self._processes


class KilledByPid:
    """A process whose exit status is that of its end, even if it has ended just before it is killed.

    asyncio's own `kill` (that of Python 3.11) looks first whether the process has ended, and so takes the status from
    the loop, which then reports 255: a worker that somebody killed would look like one that failed.
    """

    def __init__(self, process: Process) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)


async def run(serve: Callable[[Any], NoReturn], config: Any, log: Path, started: list[Process]) -> None:
    """Call `serve` in a new process, and return or raise when that has ended. Its output goes to `log` from the first.

    The process is added to `started`. A cancellation kills it.
    """
    _check_interpreter()
    with log.open("ab") as output:
        try:
            start = _start_function(output, started)
            await start(serve, config, cancellable=True, limiter=anyio.CapacityLimiter(1))
        finally:
            await _end(started)


async def _end(started: list[Process]) -> None:
    """anyio leaves an interpreter alone that says something else than it should."""
    with anyio.move_on_after(_END_LIMIT, shield=True):
        for process in started:
            if process.returncode is None:
                KilledByPid(process).kill()
                await process.aclose()


def _start_function(log: IO[bytes], started: list[Process]) -> Any:
    async def open_process(command: Sequence[str], *, stdin: int, stdout: int) -> KilledByPid:
        process = await anyio.open_process(command, stdin=stdin, stdout=stdout, stderr=log)
        started.append(process)
        return KilledByPid(process)

    original: Any = anyio.to_process.run_sync
    names = {
        **original.__globals__,
        "sys": _Sys(),
        "open_process": open_process,
        "fail_after": lambda _: anyio.fail_after(READY_LIMIT),
        "_process_pool_workers": _OwnProcesses(set()),
        "_process_pool_idle_workers": _OwnProcesses(deque()),
    }
    start = FunctionType(original.__code__, names, original.__name__, original.__defaults__, original.__closure__)
    start.__kwdefaults__ = original.__kwdefaults__
    return start


def _check_interpreter() -> None:
    if getattr(sys, "frozen", False) or not sys.executable or not os.access(sys.executable, os.X_OK):
        raise PoolError(
            f"workers need a Python interpreter, and sys.executable={sys.executable!r} is not one "
            "(a frozen program has none): use backend='inline'"
        )
