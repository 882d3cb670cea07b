"""What a worker process does before anything else, so that neither its envs nor its parent's fate can hurt others.

`anyio.to_process` talks over the worker's fds 0 and 1, leaves it in its parent's process group, and lets it
outlive a killed parent. Each function here closes one of these gaps.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK, _KEPT = 32 << 20, 128 << 20  # bytes

_SENTINEL = "exec 3<&0 </dev/null; (read -r _ <&3; kill -9 0) >/dev/null 2>&1 &"


def move_streams(log: Path) -> tuple[int, int]:
    """Take fds 0-2 away from anyio's protocol: reads see the end, writes go to the log. Returns the old fds 0 and 1."""
    old_in, old_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.enable(2)
    os.register_at_fork(after_in_child=lambda: _close_quietly(old_in, old_out))
    return old_in, old_out


def _close_quietly(*fds: int) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def leave_terminal() -> None:
    """Lead an own process group, which can be killed as one, and let Ctrl-C be the parent's business alone."""
    with contextlib.suppress(PermissionError):  # it leads one already
        os.setsid()
    signal.signal(signal.SIGINT, _pass_over)  # not SIG_IGN: that one would be inherited by an env's children


def _pass_over(_signal: int, _frame: object) -> None:
    """Ctrl-C is for the parent."""


def leave_the_loop_alone() -> None:
    """Never take the CPU from a process that just woke us, such as the event loop, which has others to send to.

    Its share of the CPU is that of any other process (Linux only).
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):  # not everywhere may a process choose
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_freed_memory() -> None:
    """Large blocks that are freed are used again, and not given back to the system (only glibc can do so).

    A worker that copies megabytes for each step would otherwise spend most of its time on getting new pages.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, even while it spins (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def start_sentinel(old_in: int, old_out: int) -> None:
    """A shell that sleeps until the parent's end of the old fd 0 closes, and then kills what is left of our group.

    It also holds the old fd 1, whose end anyio takes for the end of this process: so the event loop has learnt the
    exit status before anyio, in haste, would reap the process itself.
    """
    with contextlib.suppress(OSError):  # without a shell, only the kernel's signal is left
        command = ["/bin/sh", "-c", _SENTINEL]
        subprocess.run(command, stdin=old_in, pass_fds=(old_out,), check=False)  # noqa: S603 (our own text)


def kill_group(pid: int) -> None:
    """Kill a worker, its sentinel and all that its envs started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def resident_bytes(pid: int) -> int:
    """The memory that a process uses; 0 where the system does not report it (only Linux does)."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
