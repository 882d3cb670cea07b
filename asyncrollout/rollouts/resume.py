"""Runs with a directory: what identifies a run, its manifest, and what a resumed run starts from."""

import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from asyncrollout.errors import JournalError, UsageError
from asyncrollout.journal.group_numbers import number_of
from asyncrollout.journal.history import RecordedReply, RunHistory
from asyncrollout.journal.policy import JournaledPolicy, ReplyWriter
from asyncrollout.journal.records import RunRecords
from asyncrollout.journal.run import RunJournal, open_journal, redacted
from asyncrollout.logs import get_logger
from asyncrollout.policies.wrappers import nested
from asyncrollout.protocols import policies_of, replace_policies
from asyncrollout.redaction import hide_in_command, known_secrets, named_secrets, without_secrets
from asyncrollout.rollouts.sampling.batch_stats import BatchSums
from asyncrollout.rollouts.sampling.stream import TakenGroups
from asyncrollout.rollouts.sampling.task_source import GroupRequest, ReportedGroup, Share
from asyncrollout.serialization import from_plain, to_plain
from asyncrollout.trajectories import Group, Limits
from asyncrollout.types import Sampling

log = get_logger(__name__)

MANIFEST = "manifest.json"

_PACKAGES = ("asyncrollout", "anyio", "uvloop", "numpy", "gymnasium", "aiohttp", "msgspec")
_GIT_SECONDS = 5


@dataclass(eq=False)
class ReadyBatch:
    """A batch for the next taker, and the ids of groups that were dropped on the way to it.

    One that was taken from a stream can be taken back; one of an earlier process is delivered as it was.
    """

    index: int
    groups: list[Group]
    dropped: list[str]
    stats: dict[str, float]
    sums: BatchSums = field(default_factory=BatchSums)
    taken: TakenGroups | None = None


def run_identity(
    shares: Iterable[Share], agent: Any, *, seed: int, group_size: int, order: str, limits: Limits
) -> dict[str, Any]:
    """What determines a run's results, and so must be the same when it is resumed; includes secrets."""
    envs = {
        share.tag: {"env": share.env.name, "share": share.share, "env_kwargs": {**share.env.kwargs, **share.env_kwargs}}
        for share in shares
    }
    bounds = {name: getattr(limits, name) for name in limits.__struct_fields__}
    given = {"seed": seed, "group_size": group_size, "order": order, "envs": envs, "limits": bounds}
    plain: dict[str, Any] = to_plain(given) | _agent_identity(agent)
    return plain


def _agent_identity(agent: Any) -> dict[str, Any]:
    """The agent's class and arguments, and the models that it asks; their servers may differ."""
    policies = policies_of(agent)
    shown = {"policy", *(name for name, value in _made_of(agent).items() if any(value is one for one in policies))}
    own = [name for name in _made_of(agent) if name not in shown]
    return {
        "agent": type(agent).__name__,
        **{f"agent.{name}": _described(getattr(agent, name)) for name in own},
        "policy": [model for policy in policies for model in _models(policy)],  # in order: they have different parts
    }


def _models(policy: Any) -> list[str]:
    """The innermost policy, behind the policies around it."""
    return sorted({_policy(part) for part in nested(policy) if len([*nested(part)]) == 1})


def _made_of(agent: Any) -> dict[str, Any]:
    names = [field.name for field in fields(agent) if field.init] if is_dataclass(agent) else []
    return {name: getattr(agent, name) for name in names}


def _described(value: Any) -> Any:
    """Plain data as it is, a struct by its fields that are not defaults, anything else by its name."""
    try:
        if not isinstance(value, msgspec.Struct):
            return to_plain(value)
        given = {field.name: (getattr(value, field.name), field.default) for field in msgspec.structs.fields(value)}
        return {name: to_plain(own) for name, (own, default) in given.items() if own not in (default, {})}
    except UsageError:
        return getattr(value, "__qualname__", None) or type(value).__qualname__


def _policy(policy: Any) -> str:
    """Its class and, if it has them, its model and sampling."""
    model, sampling = getattr(policy, "_model", None), getattr(policy, "_sampling", None)
    known = [model] if isinstance(model, str) else []
    known += (
        [str(without_secrets(_described(sampling)))]
        if isinstance(sampling, Sampling) and sampling != Sampling()
        else []
    )
    return f"{type(policy).__name__}({', '.join(known)})"


@asynccontextmanager
async def open_run(
    directory: Path, given: dict[str, Any], *, resume: bool | int, accept: Collection[str] = ()
) -> AsyncIterator[RunJournal]:
    """The journal of a run in its directory."""
    async with open_journal(directory, given, resume=resume, accept=accept) as journal:
        await anyio.to_thread.run_sync(_write_manifest, directory, given)
        yield journal


def recorded_draws(past: RunHistory) -> dict[int, GroupRequest]:
    return {
        drawn.index: GroupRequest(drawn.index, drawn.group, drawn.seed, from_plain(drawn.task), drawn.tag)
        for drawn in past.drawn.values()
    }


def reported_groups(directory: Path, judged_at: Mapping[str, int]) -> list[ReportedGroup]:
    """All judged groups, in that order, for a source of tasks that chooses by them."""
    groups = RunRecords(directory).groups(judged_at.keys())
    reported = [ReportedGroup(judged_at[group.id], number_of(group.id) or 0, group) for group in groups]
    return sorted(reported, key=lambda one: one.drawn)


def with_journal(agent: Any, writer: ReplyWriter, replies: Mapping[str, list[RecordedReply]]) -> Any:
    """The agent, with policies whose replies are journaled."""
    recorded = replace_policies(
        agent,
        [
            JournaledPolicy(
                policy,
                writer,
                replies,
                place=place,
                asks_once=bool(getattr(agent, "asks_once", False)),
                only_appends=bool(vars(type(agent)).get("only_appends", False)),  # a subclass may rewrite what was said
            )
            for place, policy in enumerate(policies_of(agent))
        ],
    )
    if recorded is None:
        hint = "give it policies() and with_policies(), or make it a dataclass with a field policy"
        log.warning("replies_not_recorded", agent=type(agent).__name__, hint=hint)
        return agent
    return recorded


def _write_manifest(directory: Path, given: Mapping[str, Any]) -> None:
    """Write what started the run, unless that is written already."""
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
    }
    shown = without_secrets(manifest, [*known_secrets(), *named_secrets(given)]) | redacted(given)
    try:
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n")
        part.replace(path)
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
    """The commit of the working directory; None if it is not a checkout."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        return {"commit": commit, "changed": bool(_git("status", "--porcelain", "--untracked-files=no").strip())}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS).stdout  # noqa: S603
