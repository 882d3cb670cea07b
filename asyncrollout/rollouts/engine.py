"""The parts of `Rollouts`, opened, resumed and closed in order; and the streams of groups made of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

import anyio
import anyio.to_thread

from asyncrollout.concurrency import Background, run_to_end
from asyncrollout.errors import StalledError, UsageError
from asyncrollout.journal.run import RunJournal
from asyncrollout.logs import get_logger
from asyncrollout.policies.control import hold_back
from asyncrollout.policies.wrappers import nested
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Agent, policies_of
from asyncrollout.registry import find_env
from asyncrollout.rollouts.episode.group import GroupPlayer, GroupRunner
from asyncrollout.rollouts.episode.scoring import Scorer
from asyncrollout.rollouts.garbage import raised_threshold
from asyncrollout.rollouts.observers import RunObserver
from asyncrollout.rollouts.options import RolloutsOptions, as_agent, read_envs, read_recorder, runs_on_loop
from asyncrollout.rollouts.resume import (
    ReadyBatch,
    open_run,
    recorded_draws,
    reported_groups,
    run_identity,
    with_journal,
)
from asyncrollout.rollouts.sampling.batch_stats import BatchStats
from asyncrollout.rollouts.sampling.env_seeds import training_seeds
from asyncrollout.rollouts.sampling.filtering import FilterRunner, KeepRate, check_filter
from asyncrollout.rollouts.sampling.ledger import Ledger
from asyncrollout.rollouts.sampling.places import Places
from asyncrollout.rollouts.sampling.stream import GroupStream, StreamRules
from asyncrollout.rollouts.sampling.task_source import TaskSource
from asyncrollout.rollouts.shards.shard_set import ShardBackend, ShardSet
from asyncrollout.rollouts.shards.shard_setup import ShardSetup, check_policies
from asyncrollout.rollouts.shards.sharded_player import ShardedPlayer
from asyncrollout.telemetry import MetricsCollector
from asyncrollout.types import PauseMode
from asyncrollout.validation import check_choice, check_int

log = get_logger(__name__)

_RESUME_GRACE = 60.0


class Engine:
    """Owns the parts. Streams run between `start` and `stop`; between `stop` and `close`, nothing plays."""

    def __init__(self, options: RolloutsOptions) -> None:
        self._options = options
        self.rules = options.rules
        shares = read_envs(options.env, options.env_kwargs, options.pool.find if options.pool else find_env)
        given = as_agent(options.policy, options.agent)
        agent, self.control = hold_back(given)
        parts = {id(part): part for policy in policies_of(agent) for part in nested(policy)}
        self._policies = [*parts.values()]
        needs_expert = any(getattr(policy, "needs_expert", False) for policy in self._policies)
        on_loop = options.workers is None and runs_on_loop(shares)
        is_idle = on_loop or options.shards is not None  # each shard has a pool of its own
        self.pool = options.pool or EnvPool(None if is_idle else options.workers, "inline" if is_idle else "process")
        self._background = Background()
        self.source = TaskSource(options.tasks, options.seed, shares, self._background, options.shares)
        self._keep = check_filter(options.keep)
        self.keep_rate = KeepRate()
        self.ledger = Ledger()
        self.collector = MetricsCollector()
        self.observer = RunObserver(self.ledger, self.collector)
        self.batch_stats = BatchStats()
        self.places = Places(options.max_in_flight)
        self._recorder = read_recorder(options.record, options.directory)
        self.runner = GroupRunner(
            pool=self.pool,
            envs={share.tag: share for share in shares},
            env_kwargs={"expert": True} if needs_expert else {},
            agent=agent,
            size=options.group_size,
            seed=options.seed,
            limits=options.limits,
            failures=options.failures,
            scorer=None if options.score is None else Scorer(options.score),
            observer=self.observer,
            recorder=self._recorder,
        )
        self.shards: ShardSet | None = None
        self._sharded: ShardedPlayer | None = None
        if options.shards is not None:
            self._shard(options.shards, given, "inline" if on_loop else "process")
        self.next_batch = 0  # of a resumed run
        self.redelivered: list[ReadyBatch] = []  # batches of an earlier process that are delivered again first
        self._parts = AsyncExitStack()

    def _shard(self, backend: ShardBackend, agent: Agent, pool: Literal["process", "inline"]) -> None:
        """Have shards play what the runner would play."""
        check_policies(agent)
        options, runner = self._options, self.runner
        workers = options.workers if options.workers is not None else backend.workers
        setup = ShardSetup(
            agent=agent,
            envs=runner.envs,
            env_kwargs=runner.env_kwargs,
            size=runner.size,
            seed=runner.seed,
            limits=runner.limits,
            failures=runner.failures,
            score=options.score,
            workers=workers or 1 if pool == "process" else None,
            backend=pool,
            records=options.directory is not None,
        )
        self.shards = ShardSet(backend, setup, self.control, lambda: self.observer.journal)
        self._sharded = ShardedPlayer(
            self.shards,
            runner.envs,
            size=runner.size,
            failures=runner.failures,
            observer=self.observer,
        )

    @property
    def player(self) -> GroupPlayer:
        """What plays groups."""
        return self.runner if self._sharded is None else self._sharded

    async def open(self) -> None:
        """Open the pool, the policies, the journal and the recorder; if there is a run, resume it."""
        async with AsyncExitStack() as parts:
            parts.enter_context(raised_threshold(self._options.gc_threshold))
            if self._options.pool is None and self.shards is None:
                await parts.enter_async_context(self.pool)
            for policy in self._policies:
                if hasattr(policy, "__aenter__") and not getattr(policy, "is_open", False):
                    await parts.enter_async_context(policy)
            if self._options.directory is not None:
                await self._resume(await parts.enter_async_context(self._open_run(self._options.directory)))
            if self._recorder is not None and not self._recorder.is_open:
                await parts.enter_async_context(self._recorder)
            if self.shards is not None:
                await self.shards.open()
                parts.push_async_exit(self.shards.close)
            self._parts = parts.pop_all()

    async def close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened, as at the end of an `async with`."""
        await self._parts.__aexit__(kind, error, trace)

    async def start(self) -> None:
        """Allow streams to be started; a bug in one of them cancels the task that called this."""
        await self._background.open()

    async def stop(self, error: BaseException | None) -> None:
        """Cancel all streams, and wait for them."""
        await self._background.close(error)

    def start_stream(self, rules: StreamRules, *, had_valid: bool) -> GroupStream:
        """A stream of groups, which plays until it is cancelled; `had_valid` if any group has been valid before."""
        stream = GroupStream(
            self.source,
            self.player,
            places=self.places,
            filters=FilterRunner(self._keep, self.keep_rate, self.observer.journal.past.verdicts),
            stats=self.batch_stats,
            observer=self.observer,
            control=self.control,
            rules=rules,
            had_valid=had_valid,
        )
        self._background.start_soon(stream.run)
        return stream

    @asynccontextmanager
    async def weight_update(self, version: int, mode: PauseMode) -> AsyncIterator[None]:
        version = check_int("version", version, 0)
        check_choice("mode", mode, ("wait", "abort", "continue"))
        control, stall = self.control, self.rules.stall_seconds
        if not control.can_update:
            raise UsageError(
                "weight_update needs a policy that can be paused, and this agent exposes none: all of it is frozen, "
                "or out of reach (give the agent policies() and with_policies(), or make it, and a policy around "
                "others, a dataclass with the policy as a field)"
            )
        control.check(version)
        async with AsyncExitStack() as turn:
            with anyio.move_on_after(stall) as waiting:
                await turn.enter_async_context(control.one_at_a_time())
            if waiting.cancelled_caught:
                raise StalledError(f"another weight_update of this policy has not ended within {stall:g} s")
            control.check(version)
            changed = False
            try:
                with anyio.move_on_after(stall) as waiting:
                    await self.pause(mode)
                if waiting.cancelled_caught:
                    raise StalledError(
                        f"replies in flight have not arrived within {stall:g} s, and weight_update waits for them; "
                        f"mode='abort' does not: {self.ledger.stuck()}"
                    )
                yield
                changed = True
            finally:
                await run_to_end(self._resume_policy, version if changed else None)

    async def pause(self, mode: PauseMode) -> None:
        """Hold all calls back: those of shards first, since servers may be paused with the policy of this process."""
        if self.shards is not None:
            await self.shards.pause(mode)
        await self.control.pause(mode)

    async def resume(self, version: int | None) -> None:
        """Let calls through again; in shards once servers are ready for them."""
        try:
            await self.control.resume(version)
        finally:
            if self.shards is not None:
                self.shards.resume(version)

    async def scale(self, shards: int, *, drain: bool) -> None:
        if self.shards is None:
            raise UsageError("scale() changes the number of shards, and there are none: write shards=RayShards(...)")
        await self.shards.scale(shards, drain=drain)

    async def _resume_policy(self, version: int | None) -> None:
        with anyio.move_on_after(_RESUME_GRACE) as waiting:
            await self.resume(version)
            if version is not None:
                self.observer.journal.updated(version)
                await self.observer.journal.flush()
        if not waiting.cancelled_caught:
            return
        stalled = StalledError(f"the policy has not resumed within {_RESUME_GRACE:g} s of weight_update")
        if version is not None:
            raise stalled
        log.warning("policy_not_resumed", error=str(stalled))  # what ended the update is raised

    @asynccontextmanager
    async def _open_run(self, directory: Path) -> AsyncIterator[RunJournal]:
        options = self._options
        given = run_identity(
            self.runner.envs.values(),
            self.runner.agent,
            seed=options.seed,
            group_size=options.group_size,
            order=options.order,
            limits=options.limits,
        )
        async with open_run(directory, given, resume=options.resume, accept=options.accept_changes) as journal:
            yield journal

    async def _resume(self, journal: RunJournal) -> None:
        """Continue where the journal ends."""
        past = journal.past
        self.observer.start_journal(journal)
        self.source.env_seeds = training_seeds(self._options.seed, are_spread=past.has_spread_seeds)
        judged_at = past.judged_at if self.source.chooses else {}
        reported = await anyio.to_thread.run_sync(reported_groups, journal.directory, judged_at) if judged_at else []
        await self.source.remember(recorded_draws(past), past.settled, reported)
        for tag, verdict, is_delivered in past.settled_groups:
            self.source.shares.note_settled(tag, verdict, is_delivered=is_delivered)
            if verdict is not None:
                self.keep_rate.note(verdict)
        self.next_batch = past.next_batch
        self.redelivered = [ReadyBatch(*batch) for batch in past.redelivered]
        past.forget_beginning()
        if past.weights is not None:
            await self.control.start_at(past.weights)
        if self.shards is None:
            agent = with_journal(self.runner.agent, journal.writer, past.replies)
            self.runner = replace(self.runner, agent=agent)
