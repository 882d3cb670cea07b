"""From a configuration to the objects that it names: envs, policies, agents, filters, hooks, `Rollouts`."""

import dataclasses
import importlib
import sys
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread
import msgspec

from asyncrollout import filters
from asyncrollout.agents.chat import ChatAgent
from asyncrollout.config import schema
from asyncrollout.config.schema import Config
from asyncrollout.config.tasks import read_tasks
from asyncrollout.errors import UsageError
from asyncrollout.journal.run import check_resumable
from asyncrollout.policies.local import local_llm
from asyncrollout.policies.openai.policy import OpenAIPolicy
from asyncrollout.policies.scripted import ScriptedPolicy, SolverPolicy
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Policy
from asyncrollout.ray.ray_shards import RayShards
from asyncrollout.redaction import known_secrets, named_secrets, without_secrets
from asyncrollout.registry import allowed_env
from asyncrollout.rollouts.api import Rollouts
from asyncrollout.rollouts.evaluator import DEFAULT_SPLIT, SplitChoice
from asyncrollout.rollouts.options import read_accepted, read_envs
from asyncrollout.rollouts.resume import run_identity
from asyncrollout.rollouts.sampling.task_source import Share
from asyncrollout.telemetry.sinks import Sink, open_sinks
from asyncrollout.video.recorder import VideoRecorder


class _Importing(Protocol):
    @property
    def imports(self) -> list[str]: ...


_TRACKED_AS = "tracked_as"

_AS_THEY_ARE = (
    "group_size",
    "seed",
    "limits",
    "failures",
    "order",
    "max_in_flight",
    "max_lag",
    "max_num_gen_batches",
    "on_exhausted",
    "shares",
    "stall_seconds",
    "gc_threshold",
)


@asynccontextmanager
async def open_rollouts(
    config: Config,
    run_dir: Path,
    *,
    resume: bool,
    accept_changes: Collection[str] = (),
    allow_import: bool = False,
) -> AsyncIterator[Rollouts]:
    """`Rollouts` as configured, open, with a run directory."""
    check_imports(config, allow_import=allow_import)
    async with open_policy(config.policy) as policy, _open_pool(config) as pool:
        agent = chat_agent(policy, config.agent)
        shares = [share_of(entry, allow_import=allow_import) for entry in config.entries]
        if resume:  # before anything is written
            await anyio.to_thread.run_sync(_check_resumable, config, run_dir, shares, agent, accept_changes)
        metrics = await anyio.to_thread.run_sync(_open_metrics, config, run_dir, abandon_on_cancel=True)
        async with Rollouts(
            [*shares],
            agent=agent,
            keep=_filter(config),
            tasks=read_tasks(config),
            score=None if config.score is None else import_object(config.score, "score"),
            workers=None if pool is not None else config.workers,
            pool=pool,
            shards=_shards(config),
            run_dir=run_dir,
            resume=resume,
            accept_changes=accept_changes,
            metrics=metrics,
            record=_recorder(config),
            **{name: getattr(config, name) for name in _AS_THEY_ARE},
        ) as rollouts:
            if config.evaluate is None:
                rollouts.expect(config.batches, config.groups)
            yield rollouts


def _check_resumable(config: Config, directory: Path, shares: list[Share], agent: Any, accept: Collection[str]) -> None:
    names = ("seed", "group_size", "order", "limits")
    given = run_identity(read_envs(shares, None), agent, **{name: getattr(config, name) for name in names})
    check_resumable(directory, given, read_accepted(accept))


def _open_metrics(config: Config, directory: Path) -> list[Sink]:
    """The configured sinks of metrics; a resumed run keeps the id that it had there."""
    if not config.metrics:
        return []
    named = directory / _TRACKED_AS
    if not named.exists():
        named.write_text(f"{directory.name}-{uuid.uuid4().hex[:8]}")
    values = msgspec.to_builtins(config)
    shown = without_secrets(values, [*known_secrets(), *named_secrets(values)])
    return open_sinks(config.metrics, directory, named.read_text(), shown)


def check_imports(config: _Importing, *, allow_import: bool) -> None:
    if config.imports and not allow_import:
        named = ", ".join(map(repr, config.imports))
        raise UsageError(f"the configuration names code to import, {named}: allow it with --allow-import")


def share_of(entry: schema.EnvEntry, *, allow_import: bool) -> Share:
    spec = allowed_env(entry.env, allow_import=allow_import)
    if entry.runs is not None:
        spec = dataclasses.replace(spec, runs=entry.runs)
    return Share(spec, entry.tag, entry.share, entry.env_kwargs)


def splits_of(config: Config, *, allow_import: bool) -> SplitChoice:
    """What `Rollouts.evaluate` takes as `split`."""
    entries = config.entries
    if len({entry.eval.split for entry in entries}) == 1:
        return entries[0].eval.split
    shares = read_envs([share_of(entry, allow_import=allow_import) for entry in entries], None)
    chosen = {share.tag: entry.eval.split for share, entry in zip(shares, entries, strict=True)}
    return {tag: split for tag, split in chosen.items() if split != DEFAULT_SPLIT}


@asynccontextmanager
async def _open_pool(config: Config) -> AsyncIterator[EnvPool | None]:
    """A pool, if it is said where the envs are to run; else `Rollouts` finds out by itself."""
    if config.backend is None:
        yield None
        return
    async with EnvPool(config.workers, config.backend) as pool:
        yield pool


def _shards(config: Config) -> RayShards | None:
    if config.shards is None:
        return None
    cluster = schema.RayCluster() if config.ray is None else config.ray
    return RayShards(config.shards, **msgspec.structs.asdict(cluster))


def _recorder(config: Config) -> bool | VideoRecorder:
    chosen = config.record
    return chosen if isinstance(chosen, bool) else VideoRecorder(**msgspec.structs.asdict(chosen))


def _filter(config: Config) -> Any:
    if config.keep is None:
        return None
    name, arguments = config.keep.call
    chosen = getattr(filters, name)
    return chosen(**arguments) if arguments else chosen


def chat_agent(policy: Policy, chosen: schema.Chat) -> ChatAgent:
    return ChatAgent(policy, **{name: getattr(chosen, name) for name in chosen.__struct_fields__})


@asynccontextmanager
async def open_policy(chosen: schema.Policy) -> AsyncIterator[Policy]:
    """The policy that a configuration names."""
    match chosen:
        case schema.Solver(error_rate=error_rate, latency=latency, seed=seed):
            pair = (latency[0], latency[1]) if isinstance(latency, list) else latency
            yield SolverPolicy(error_rate, pair, seed=seed)
        case schema.Scripted(replies=replies):
            yield ScriptedPolicy(replies)
        case schema.Local():
            async with local_llm(**msgspec.structs.asdict(chosen)) as policy:
                yield policy
        case schema.OpenAI():
            options = msgspec.structs.asdict(chosen)
            async with OpenAIPolicy(kind=options.pop("server"), **options) as policy:
                yield policy


def import_object(path: str, key: str) -> Any:
    """What an import path names, from this directory, too; the configuration has it at `key`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{key}: {path!r} cannot be imported: {error}") from error
