"""From a configuration to what it names: envs, filters, hooks; `players` has policies and agents."""

import dataclasses
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from asyncrollout import filters
from asyncrollout.cli.envs import allowed_env
from asyncrollout.config import Config, read_tasks, schema
from asyncrollout.config.evaluation import EvaluationConfig
from asyncrollout.errors import UsageError
from asyncrollout.journal.run import check_resumable
from asyncrollout.metrics.sinks import Sink, open_sinks
from asyncrollout.players import chat_agent, imported, open_policy
from asyncrollout.pool.pool import EnvPool
from asyncrollout.redaction import known_secrets, named_secrets, without_secrets
from asyncrollout.rollout.group import Failures
from asyncrollout.rollouts.durable import read_accepted, what_is_given
from asyncrollout.rollouts.facade import Rollouts
from asyncrollout.rollouts.setup import read_envs
from asyncrollout.sampler.draws import Share
from asyncrollout.video.recorder import VideoRecorder

_TRACKED_AS = "tracked_as"

_AS_THEY_ARE = (
    "group_size",
    "seed",
    "limits",
    "order",
    "max_lag",
    "max_num_gen_batches",
    "on_exhausted",
    "shares",
    "stall_seconds",
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
            score=None if config.score is None else imported(config.score, "score"),
            failures=Failures(config.failures.retries, config.failures.min_valid),
            workers=None if pool is not None else config.workers,
            pool=pool,
            run_dir=run_dir,
            resume=resume,
            accept_changes=accept_changes,
            metrics=metrics,
            record=_recorder(config),
            **{name: getattr(config, name) for name in _AS_THEY_ARE},
            max_in_flight=config.max_in_flight * (1 if config.evaluate is None else 2),  # evaluations have half
        ) as rollouts:
            if config.evaluate is None:
                rollouts.expect(config.batches, config.groups)
            yield rollouts


def _check_resumable(config: Config, directory: Path, shares: list[Share], agent: Any, accept: Collection[str]) -> None:
    names = ("seed", "group_size", "order", "limits")
    given = what_is_given(read_envs(shares, None), agent, **{name: getattr(config, name) for name in names})
    check_resumable(directory, given, read_accepted(accept))


def _open_metrics(config: Config, directory: Path) -> list[Sink]:
    """What draws curves, as configured; in each, a run that is resumed goes on under the id that it was given first."""
    if not config.metrics:
        return []
    named = directory / _TRACKED_AS
    if not named.exists():
        named.write_text(f"{directory.name}-{uuid.uuid4().hex[:8]}")
    values = msgspec.to_builtins(config)
    shown = without_secrets(values, [*known_secrets(), *named_secrets(values)])
    return open_sinks(config.metrics, directory, named.read_text(), shown)


def check_imports(config: Config | EvaluationConfig, *, allow_import: bool) -> None:
    if config.imports and not allow_import:
        named = ", ".join(map(repr, config.imports))
        raise UsageError(f"the configuration names code to import, {named}: allow it with --allow-import")


def share_of(entry: schema.EnvEntry, *, allow_import: bool) -> Share:
    spec = allowed_env(entry.env, allow_import=allow_import)
    if entry.runs is not None:
        spec = dataclasses.replace(spec, runs=entry.runs)
    return Share(spec, entry.tag, entry.share, entry.env_kwargs)


@asynccontextmanager
async def _open_pool(config: Config) -> AsyncIterator[EnvPool | None]:
    """A pool, if it is said where the envs are to run; else `Rollouts` finds out by itself."""
    if config.backend is None:
        yield None
        return
    async with EnvPool(config.workers, config.backend) as pool:
        yield pool


def _recorder(config: Config) -> bool | VideoRecorder:
    chosen = config.record
    return chosen if isinstance(chosen, bool) else VideoRecorder(**msgspec.structs.asdict(chosen))


def _filter(config: Config) -> Any:
    if config.keep is None:
        return None
    name, arguments = config.keep.call
    chosen = getattr(filters, name)
    return chosen(**arguments) if arguments else chosen
