"""What `Rollouts` with a run directory does beyond playing: it says what run this is, and goes on where it ended."""

import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from asyncrollout.errors import JournalError
from asyncrollout.journal.reader import Past
from asyncrollout.journal.run import RunJournal, open_journal
from asyncrollout.plain import from_plain, to_plain
from asyncrollout.policies.compose import nested
from asyncrollout.sampler.draws import Draw, Share
from asyncrollout.secrets import hide_in_command, without_secrets
from asyncrollout.trajectories import Limits

MANIFEST = "manifest.json"

_PACKAGES = ("asyncrollout", "anyio", "uvloop", "numpy", "gymnasium", "aiohttp", "msgspec")
_GIT_SECONDS = 5


def what_is_given(shares: Iterable[Share], seed: int, group_size: int, order: str, limits: Limits) -> dict[str, Any]:
    """What a run's results follow from, and what therefore stays the same when it is resumed."""
    envs = {
        share.tag: {
            "env": share.env.name,
            "share": share.share,
            "env_kwargs": without_secrets(to_plain(share.env_kwargs)),
        }
        for share in shares
    }
    bounds = {name: getattr(limits, name) for name in limits.__struct_fields__}
    return {"seed": seed, "group_size": group_size, "order": order, "envs": envs, "limits": bounds}


@asynccontextmanager
async def open_run(directory: Path, given: dict[str, Any], *, resume: bool | int) -> AsyncIterator[RunJournal]:
    """The journal of a run in its directory."""
    async with open_journal(directory, given, resume=resume) as journal:
        await anyio.to_thread.run_sync(_write_manifest, directory, given)
        yield journal


def recorded_draws(past: Past) -> Mapping[int, Draw]:
    return {
        drawn.index: Draw(drawn.index, drawn.group, drawn.seed, from_plain(drawn.task), drawn.tag)
        for drawn in past.drawn.values()
    }


def set_version(policy: Any, version: int) -> None:
    """Of the policy, and of all that are inside."""
    for part in (policy, *nested(policy)):
        if "version" in getattr(part, "__dict__", ()):
            part.version = version


def _write_manifest(directory: Path, given: Mapping[str, Any]) -> None:
    """How the run came to be, if that is not written yet."""
    path = directory / MANIFEST
    if path.exists():
        return
    manifest = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in _PACKAGES if _is_installed(name)},
        "command": hide_in_command(_command()),
        "git": _git_state(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **given,
    }
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror or error}") from error


def _command() -> list[str]:
    program = Path(sys.argv[0])
    return [program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]]


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _git_state() -> dict[str, Any] | None:
    """Of the directory in which the program runs; None if it is no checkout."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        return {"commit": commit, "changed": bool(_git("status", "--porcelain", "--untracked-files=no").strip())}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS).stdout  # noqa: S603
