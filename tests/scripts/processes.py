"""What tests need to know about processes that are not their children any more, and about those still to come."""

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import psutil

MARK = "ASYNCROLLOUT_TEST_MARK"
ROOT = Path(__file__).parents[2]
LIMIT = 30.0  # seconds for anything that must happen at all


async def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait for something that no event tells, such as what another process does."""
    with anyio.fail_after(limit):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.005)


def wait_until(condition: Callable[[], object], limit: float = 10.0) -> bool:
    """The same for tests without a loop; whether it came true."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def marked(mark: str) -> set[int]:
    """Living processes that were started with the mark in their environment, orphans too, without this one."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.add(process.pid)
    return found


def kill_marked(mark: str) -> None:
    """After a test that failed, so that it cannot disturb the next."""
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def private_directories(pid: int) -> set[Path]:
    """The pool's directories whose files a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {Path(path) for path in re.findall(r"/\S*/asyncrollout-[^/\s]+", maps)}


def spoil_starts(directory: Path, code: str) -> str:
    """A PYTHONPATH that makes every new interpreter run `code` first."""
    (directory / "sitecustomize.py").write_text(code)
    return os.pathsep.join([str(directory), str(ROOT), os.environ.get("PYTHONPATH", "")])
