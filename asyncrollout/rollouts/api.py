"""`Rollouts`: envs, a policy, and groups of episodes for an awaiting trainer."""

import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import numpy as np

from asyncrollout import validation
from asyncrollout.batches.batch import Batch
from asyncrollout.concurrency import Background, run_to_end
from asyncrollout.errors import ClosedError, StalledError, UsageError
from asyncrollout.journal.run import RunJournal
from asyncrollout.policies.control import PolicyControl
from asyncrollout.policies.wrappers import nested
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Agent, Policy
from asyncrollout.registry import EnvRef, find_env
from asyncrollout.rollouts.awaitables import HintedCoroutine, HintedIterator
from asyncrollout.rollouts.delivery import Delivery
from asyncrollout.rollouts.episode.group import Failures, Slots, run_group
from asyncrollout.rollouts.episode.scoring import Score, Scorer
from asyncrollout.rollouts.evaluation import Evaluation
from asyncrollout.rollouts.evaluator import Evaluator
from asyncrollout.rollouts.observers import JournalObserver, MetricsObserver
from asyncrollout.rollouts.options import read_agent, read_envs, read_recorder, runs_on_loop
from asyncrollout.rollouts.resume import (
    ReadyBatch,
    open_run,
    read_accepted,
    read_resume,
    recorded_draws,
    reported_groups,
    run_identity,
    with_journal,
)
from asyncrollout.rollouts.sampling.batch_buffer import OnExhausted
from asyncrollout.rollouts.sampling.filtering import FilterRunner, Keep, KeepRate, check_filter
from asyncrollout.rollouts.sampling.ledger import ENDS, Ledger
from asyncrollout.rollouts.sampling.shares import SharesOf
from asyncrollout.rollouts.sampling.stream import GroupStream, Order, StreamRules
from asyncrollout.rollouts.sampling.task_source import GroupRequest, MapStyle, Share, Tasks, TaskSource, as_iterable
from asyncrollout.rollouts.stats import RolloutsStats, standing
from asyncrollout.seeding import sampling_seed
from asyncrollout.telemetry import METRICS, JsonLines, MetricsCollector, RunMetrics, Sink
from asyncrollout.telemetry.exporter import MetricsExporter
from asyncrollout.trajectories import Group, Limits, Verdict
from asyncrollout.types import PauseMode
from asyncrollout.video.recorder import VideoRecorder

_NO_LIMITS, _FAILURES = Limits(), Failures()
_RESUME_GRACE = 60.0


class Rollouts:
    """Plays groups of episodes, and streams those that `keep` lets pass.

    One env (`env`, `env_kwargs`), or several by tags and shares: `env=[{"env": "bandit", "share": 2}, ...]`. A
    `policy` plays through a `ChatAgent`; any other agent is given as `agent`. Policies that need opening are opened.

    A group is a task, played `group_size` times from the same env seed. `tasks` is any source of tasks; without one,
    episodes differ by their seed alone. `keep` is a filter. `score` is a function that gives the reward.

    `order="start"` makes batches independent of timing. At most `max_in_flight` rollouts play at a time, and at most
    `max_lag` batches are played ahead of the trainer; older groups are dropped as stale. A batch may cost
    `max_num_gen_batches` times its size in draws; then `on_exhausted` says what happens.

    With a `run_dir`, all that is played is recorded there as it happens. `resume=True` goes on after the last batch
    that was delivered, or `resume=n` from batch `n` on: what is finished is not played again, and recorded replies are
    not asked for again. Agent and policy must be those that the run began with; changes that are named in
    `accept_changes`, as the error names them, have unfinished groups played anew. `metrics` are sinks, which get the
    `figures()` every few seconds and with each batch; a run directory has a `metrics.jsonl` in any case.

    `record` is a `VideoRecorder`, or True: envs that render are filmed, in `videos/` of the run directory.
    """

    @validation.suggests_keywords
    def __init__(
        self,
        env: EnvRef | list[Share | dict[str, Any]],
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        policy: Policy | None = None,
        agent: Agent | None = None,
        group_size: int = 8,
        keep: Keep | None = None,
        seed: int = 0,
        tasks: Tasks | None = None,
        score: Score | None = None,
        limits: Limits = _NO_LIMITS,
        failures: Failures = _FAILURES,
        order: Order = "finish",
        max_in_flight: int = 512,
        max_lag: int | None = 1,
        max_num_gen_batches: int | None = 10,
        on_exhausted: OnExhausted = "raise",
        shares: SharesOf = "drawn",
        stall_seconds: float = 900.0,
        workers: int | None = None,
        pool: EnvPool | None = None,
        run_dir: str | PathLike[str] | None = None,
        resume: bool | int = False,
        accept_changes: Collection[str] = (),
        metrics: Sequence[Sink] = (),
        record: bool | VideoRecorder = False,
    ) -> None:
        group_size = validation.check_int("group_size", group_size, 1)
        seed = validation.check_int("seed", seed, 0)
        max_in_flight = validation.check_int("max_in_flight", max_in_flight, group_size)
        max_lag = None if max_lag is None else validation.check_int("max_lag", max_lag, 0)
        if max_num_gen_batches is not None:
            max_num_gen_batches = validation.check_int("max_num_gen_batches", max_num_gen_batches, 1)
        for option, kind in ((limits, Limits), (failures, Failures)):
            if not isinstance(option, kind):
                name = kind.__name__
                raise UsageError(f"{name.lower()}={option!r:.100} is not a {name}: write {name.lower()}={name}(...)")
        validation.check_seconds("stall_seconds", stall_seconds)
        validation.check_choice("order", order, ("finish", "start"))
        validation.check_choice("on_exhausted", on_exhausted, ("raise", "short", "fill"))
        validation.check_choice("shares", shares, ("drawn", "delivered"))
        if shares == "delivered" and order == "start":
            raise UsageError(
                "shares='delivered' draws by what was kept so far, which depends on timing: not with order='start'"
            )
        self._shares = {share.tag: share for share in read_envs(env, env_kwargs, pool.find if pool else find_env)}
        self._agent, self._policy = read_agent(policy, agent)
        self._parts_of_policy = [*nested(getattr(self._agent, "policy", None))]
        self._expert = any(getattr(part, "needs_expert", False) for part in self._parts_of_policy)
        self._given_pool = pool
        on_loop = workers is None and runs_on_loop([*self._shares.values()])
        self._pool = pool or EnvPool(workers, "inline" if on_loop else "process")
        self._seed = seed
        self._streams = Background()
        self._source = TaskSource(tasks, seed, [*self._shares.values()], self._streams, shares)
        self._keep = check_filter(keep)
        self._keep_rate = KeepRate()
        self._scorer = None if score is None else Scorer(score)
        self._limits = limits
        self._failures = failures
        self._slots = anyio.CapacityLimiter(max_in_flight)
        self._rules = StreamRules(
            group_size=group_size,
            max_in_flight=max_in_flight,
            order=order,
            ahead=1 if max_lag is None else max_lag,
            max_lag=max_lag,
            max_num_gen_batches=max_num_gen_batches,
            on_exhausted=on_exhausted,
            stall_seconds=stall_seconds,
        )
        self.ledger = Ledger()
        self.meter = MetricsCollector()
        self._watch = MetricsObserver(self.ledger, self.meter)
        self._run_dir = None if run_dir is None else Path(run_dir)
        own = [] if self._run_dir is None else [JsonLines(self._run_dir / METRICS)]
        self._record = read_recorder(record, self._run_dir)
        self._reporting = MetricsExporter([*own, *metrics], self.figures)
        self._wanted: tuple[int, int] | None = None
        self._evaluator = Evaluator(
            [*self._shares.values()], self.ledger, self._slots, stall_seconds, lambda: self._last_held
        )
        self._delivery = Delivery(
            self._rules,
            self._start_stream,
            self._source,
            self._watch,
            version=lambda: self.version,
            on_batch=self._reporting.write,
        )
        self._resume = read_resume(run_dir, resume)
        self._accepted = read_accepted(accept_changes)
        self._verdicts: Mapping[str, Verdict] = {}
        self._parts = AsyncExitStack()
        self._open = self._opened = False

    async def __aenter__(self) -> Self:
        if self._opened:
            raise UsageError("Rollouts cannot be reopened: create a new instance")
        self._opened = True
        async with AsyncExitStack() as parts:
            if self._given_pool is None:
                await parts.enter_async_context(self._pool)
            for policy in self._parts_of_policy:
                if hasattr(policy, "__aenter__") and not getattr(policy, "is_open", False):
                    await parts.enter_async_context(policy)
            if self._run_dir is not None:
                await self._resume_run(await parts.enter_async_context(self._open_run(self._run_dir)))
            if self._record is not None and not self._record.is_open:
                await parts.enter_async_context(self._record)
            await parts.enter_async_context(self._reporting)
            await self._streams.open()
            self._parts = parts.pop_all()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._delivery.close()
        try:
            await self._streams.close(error)
        finally:
            self._evaluator.close()
            self._delivery.account()
            await self._parts.__aexit__(kind, error, trace)

    async def start(self) -> Self:
        """Open these Rollouts until `close()`, which another task of the same event loop may call: for notebooks."""
        return await self.__aenter__()

    async def close(self) -> None:
        """Cancel what is playing, and close all that was opened. Closing again has no effect."""
        if self._open:
            await self.__aexit__(None, None, None)

    @property
    def version(self) -> int:
        """Of the policy's weights; those of the parts that learn."""
        return 0 if self._policy is None else int(self._policy.version)

    @property
    def _last_held(self) -> float:
        """Until when the policy was held back for new weights, on the monotonic clock: now while it is."""
        return -math.inf if self._policy is None else self._policy.last_held()

    @property
    def next_batch(self) -> int:
        """The number that the next batch will have."""
        return self._delivery.next_batch

    def collect(self, groups: int) -> Coroutine[Any, Any, Batch]:
        """The next `groups` groups that are kept, in start order; what is under way beyond them is cancelled."""
        return HintedCoroutine(self._collect(groups), "batch = await rollouts.collect(...)")

    async def _collect(self, groups: int) -> Batch:
        groups = validation.check_int("groups", groups, 1)
        self._check_open()
        batch = await self._delivery.once(groups)
        if batch is None:
            raise UsageError("tasks is at its end: there is nothing left to play")
        return batch

    def batches(self, groups: int) -> AsyncIterator[Batch]:
        """Batches of `groups` groups each, for `async for`; they end when the tasks do."""
        groups = validation.check_int("groups", groups, 1)
        take = self._delivery.once if self._rules.ahead == 0 else self._delivery.ahead

        async def next_batch() -> Batch:
            self._check_open()
            if (batch := await take(groups)) is None:
                raise StopAsyncIteration
            return batch

        return HintedIterator(next_batch, "async for batch in rollouts.batches(...)")

    def groups(self) -> AsyncIterator[Group]:
        """One group after the other, for `async for`; as many as may be in flight are worked on."""
        at_once = self._rules.max_in_flight // self._rules.group_size

        async def next_group() -> Group:
            self._check_open()
            if (group := await self._delivery.one_ahead(at_once)) is None:
                raise StopAsyncIteration
            return group

        return HintedIterator(next_group, "async for group in rollouts.groups()")

    @asynccontextmanager
    async def weight_update(self, version: int, mode: PauseMode = "wait") -> AsyncIterator[None]:
        """Hold the policy back while its weights change; what it gives after is of this version.

        Replies under way are awaited, or ("abort") stopped and asked for again, or ("continue") left alone. If the
        body fails, the version stays. One update at a time: another one waits for its turn. Versions only rise.
        """
        version = validation.check_int("version", version, 0)
        validation.check_choice("mode", mode, ("wait", "abort", "continue"))
        policy, stall = self._policy, self._rules.stall_seconds
        if policy is None:
            raise UsageError(
                "weight_update needs a policy that can be held back, and this agent shows none: all of it is frozen, "
                "or out of reach (make the agent, and a policy around others, a dataclass with the policy as a field)"
            )
        policy.check(version)
        async with AsyncExitStack() as turn:
            with anyio.move_on_after(stall) as waiting:
                await turn.enter_async_context(policy.one_at_a_time())
            if waiting.cancelled_caught:
                raise StalledError(f"another weight_update of this policy has not ended within {stall:g} s")
            policy.check(version)
            changed = False
            try:
                with anyio.move_on_after(stall) as waiting:
                    await policy.pause(mode)
                if waiting.cancelled_caught:
                    raise StalledError(
                        f"replies under way have not come within {stall:g} s, and weight_update waits for them; "
                        f"mode='abort' does not: {self.ledger.stuck()}"
                    )
                yield
                changed = True
            finally:
                await run_to_end(self._resume_policy, policy, version if changed else None)

    async def _resume_policy(self, policy: PolicyControl, version: int | None) -> None:
        with anyio.move_on_after(_RESUME_GRACE):
            await policy.resume(version)
            if version is not None:
                self._watch.updated(version)
                await self._watch.flush()

    async def evaluate(
        self,
        tasks: int | Iterable[Any] | MapStyle,
        *,
        k: int = 1,
        env_kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
        on_group: Callable[[Group], None] | None = None,
    ) -> Evaluation:
        """Play each task `k` times, beside whatever else is played; all evaluations have half of `max_in_flight`.

        `tasks` may be a number of episodes. The seeds of envs and of sampling depend on `seed` alone, so that
        evaluations can be compared and repeated. `env_kwargs` are added to the env's own, such as `{"split": "val"}`.
        `on_group` is called with each group as it ends.
        """
        k, seed = validation.check_int("k", k, 1), validation.check_int("seed", seed, 0)
        self._check_open()
        listed = [None] * int(tasks) if isinstance(tasks, int | np.integer) else as_iterable(tasks)
        if listed is None:
            raise UsageError(f"evaluate: tasks={tasks!r:.100} is neither a number of episodes nor a list of tasks")
        listed = [*listed]
        if not listed:
            raise UsageError("evaluate: there are no tasks")
        added = dict(env_kwargs or {})
        name = self._watch.begin_evaluation([listed, k, seed, self.version, added], added, len(listed), k)
        await self._watch.flush()

        async def play(draw: GroupRequest) -> Group:
            chance = sampling_seed(seed, "evaluation", "sampling", draw.index)
            group = await self._play(
                draw, size=k, env_kwargs=env_kwargs, sampling_base=chance, slots=self._evaluator.slots
            )
            if on_group is not None:
                on_group(group)
            return group

        evaluation = await self._evaluator.run(play, name, listed, k, seed)
        self._watch.end_evaluation(name)
        await self._watch.flush()
        return evaluation

    async def drain(self, seconds: float) -> None:
        """Ask the policy nothing more, and wait a while for its replies under way, so that they are recorded."""
        if self._policy is not None:
            self._parts.push_async_callback(self._policy.resume, None)  # others may use it, and servers are told
            with anyio.move_on_after(seconds):
                await self._policy.pause("wait")

    def expect(self, batches: int, groups: int) -> None:
        """Tell how many batches of how many groups will be taken, so that `figures` know how far it is to the end."""
        self._wanted = validation.check_int("batches", batches, 1), validation.check_int("groups", groups, 1)

    def figures(self) -> RunMetrics:
        """What has been played, how well and how fast."""
        return self.meter.read(time.monotonic(), standing(self.stats(), self.ledger, self._wanted))

    def stats(self) -> RolloutsStats:
        """How things stand at this moment."""
        return RolloutsStats(
            version=self.version,
            drawn_groups=self._source.count,
            playing_groups=self._delivery.playing_groups,
            buffered_groups=self._delivery.buffered_groups,
            keep_rate=self._keep_rate.now,
            dropped=dict(self._keep_rate.dropped),
            dispatched=self.ledger.dispatched_count,
            open_rollouts=len(self.ledger.open),
            ends={end: self.ledger.ends[end] for end in ENDS},
            stale_groups=self._delivery.stale_groups,
            pool=self._pool.stats(),
        )

    def _start_stream(self, rules: StreamRules) -> tuple[GroupStream, anyio.CancelScope]:
        stop = anyio.CancelScope()
        stream = GroupStream(
            self._source,
            self._play_drawn,
            filters=FilterRunner(self._keep, self._keep_rate, self._verdicts),
            ledger=self.ledger,
            rules=rules,
            version=lambda: self.version,
            judged=self._note,
            dropped_stale=self._note_stale,
            last_held=lambda: self._last_held,
            had_valid=self._delivery.count > 0,
        )
        self._streams.start_soon(_run_within, stop, stream)
        return stream, stop

    def _note(self, group: Group, more: int) -> None:
        self._delivery.note_judged(group)
        self._watch.judged(group, more)
        self._source.note_judged(group)

    def _note_stale(self, group: Group) -> None:
        self._delivery.note_stale(group)
        self._watch.dropped_stale(group)
        self._source.note_stale(group)

    async def _play_drawn(self, draw: GroupRequest) -> Group:
        self._watch.drawn(draw)
        return await self._play(draw)

    async def _play(
        self,
        draw: GroupRequest,
        *,
        size: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        sampling_base: int | None = None,
        slots: Slots | None = None,
    ) -> Group:
        share = self._shares[draw.tag]
        expert = {"expert": True} if self._expert else {}
        return await run_group(
            self._pool,
            share.env,
            self._agent,
            seed=draw.seed,
            size=self._rules.group_size if size is None else size,
            task=draw.task,
            env_kwargs={**expert, **share.env_kwargs, **(env_kwargs or {})},
            id=draw.id,
            tag=draw.tag,
            limits=self._limits,
            failures=self._failures,
            scorer=self._scorer,
            sampling_base=sampling_seed(self._seed, draw.id) if sampling_base is None else sampling_base,
            slots=slots or self._slots,
            watch=self._watch,
            record=self._record,
        )

    def _open_run(self, run_dir: Path) -> AbstractAsyncContextManager[RunJournal]:
        rules = self._rules
        given = run_identity(
            self._shares.values(),
            self._agent,
            seed=self._seed,
            group_size=rules.group_size,
            order=rules.order,
            limits=self._limits,
        )
        return open_run(run_dir, given, resume=self._resume, accept=self._accepted)

    async def _resume_run(self, journal: RunJournal) -> None:
        """Begin where the journal ends."""
        past = journal.past
        self._watch = self._delivery.watch = JournalObserver(self.ledger, self.meter, journal)
        judged_at = past.judged_at if self._source.chooses else {}
        reported = await anyio.to_thread.run_sync(reported_groups, journal.directory, judged_at) if judged_at else []
        await self._source.remember(recorded_draws(past), past.settled, reported)
        for tag, verdict, is_delivered in past.settled_groups:
            self._source.shares.note_settled(tag, verdict, is_delivered=is_delivered)
            if verdict is not None:
                self._keep_rate.note(verdict)
        self._verdicts = past.verdicts
        self._delivery.resume_at(past.next_batch, [ReadyBatch(*batch) for batch in past.redelivered])
        past.forget_beginning()
        if past.weights is not None and self._policy is not None:
            await self._policy.start_at(past.weights)
        self._agent = with_journal(self._agent, journal)

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError(
                "these Rollouts are not open: use them within 'async with', or between 'await rollouts.start()' and "
                "'await rollouts.close()'"
            )


async def _run_within(scope: anyio.CancelScope, stream: GroupStream) -> None:
    with scope:
        await stream.run()
