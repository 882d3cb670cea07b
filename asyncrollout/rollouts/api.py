"""`Rollouts`: envs, a policy, and groups of episodes for an awaiting trainer."""

import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from os import PathLike
from types import TracebackType
from typing import Any, Self

import anyio

from asyncrollout import validation
from asyncrollout.batches.batch import Batch
from asyncrollout.concurrency import run_to_end
from asyncrollout.errors import ClosedError, UsageError
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Agent, Policy
from asyncrollout.registry import EnvRef
from asyncrollout.rollouts.awaitables import HintedCoroutine, HintedIterator
from asyncrollout.rollouts.delivery import Delivery
from asyncrollout.rollouts.engine import Engine
from asyncrollout.rollouts.episode.group import Failures
from asyncrollout.rollouts.episode.scoring import Score
from asyncrollout.rollouts.evaluation import Evaluation
from asyncrollout.rollouts.evaluator import DEFAULT_SPLIT, Evaluator, SplitChoice
from asyncrollout.rollouts.options import RolloutsOptions
from asyncrollout.rollouts.sampling.batch_buffer import OnExhausted
from asyncrollout.rollouts.sampling.filtering import Keep
from asyncrollout.rollouts.sampling.shares import SharesOf
from asyncrollout.rollouts.sampling.stream import Order
from asyncrollout.rollouts.sampling.task_source import MapStyle, Share, Tasks
from asyncrollout.rollouts.shards.shard_set import ShardBackend
from asyncrollout.rollouts.snapshot import RolloutsStats, read_gauges, read_stats
from asyncrollout.telemetry import METRICS, JsonLines, RunMetrics, Sink
from asyncrollout.telemetry.exporter import MetricsExporter
from asyncrollout.trajectories import Group, Limits
from asyncrollout.types import PauseMode
from asyncrollout.video.recorder import VideoRecorder

_NO_LIMITS, _FAILURES = Limits(), Failures()


class Rollouts:
    """Plays groups of episodes, and streams those that the filter keeps.

    What is played:
        env: An env, or several with tags and shares: `[{"env": "bandit", "share": 2}, ...]`.
        env_kwargs: For a single env; each of several has its own.
        tasks: Any source of tasks. Without one, episodes differ by their seed alone.
        group_size: How many times each task is played, from the same env seed; these rollouts are a group.
        seed: All env and sampling seeds are derived from it.
        limits: When an episode is cut off.
        shares: Whether envs get their shares of the groups "drawn" or "delivered".
    Who plays:
        policy: Plays through a `ChatAgent`. Policies that need opening are opened.
        agent: Any other agent, in place of a policy.
        workers: Number of worker processes; None chooses by the envs.
        pool: An open pool to use instead of a new one.
        shards: `RayShards(n)` has whole groups played by so many processes of a Ray cluster, each with its own pool of
            `workers` and its own copy of the policy; without it, they are played in this process.
    How results are judged:
        score: A function that gives the reward of a trajectory, or of a group.
        failures: How often failed rollouts are played again, and which groups are dropped.
        keep: A filter of groups; None keeps all.
    How batches are made:
        order: "finish" hands out groups as they finish; "start" makes batches independent of timing.
        max_in_flight: At most this many rollouts play at a time.
        max_lag: At most this many batches are played ahead; groups more versions behind are dropped as stale.
        max_num_gen_batches: A batch draws at most this many times its size in groups; None means no limit.
        on_exhausted: What happens then: "raise" an error, deliver a "short" batch, or "fill" it with rejected groups.
        stall_seconds: If nothing moves for this long, an error says what is being waited for.
        gc_threshold: While they are open, Python's garbage collector looks for cycles after this many new objects at
            the earliest; None leaves it as it is.
    What is recorded:
        run_dir: Everything is recorded there as it happens, with a `metrics.jsonl`.
        resume: True continues after the last delivered batch, n with batch n. Finished rollouts are not played
            again, and recorded replies are not requested again. Agent and policy must be the same as before.
        accept_changes: Changes of agent or policy to accept, as the error names them; unfinished groups start again.
        metrics: Sinks that get `figures()` every few seconds and with each batch.
        record: A `VideoRecorder`, or True for videos of envs that render in `videos/` of the run directory.
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
        gc_threshold: int | None = 10_000,
        workers: int | None = None,
        pool: EnvPool | None = None,
        shards: ShardBackend | None = None,
        run_dir: str | PathLike[str] | None = None,
        resume: bool | int = False,
        accept_changes: Collection[str] = (),
        metrics: Sequence[Sink] = (),
        record: bool | VideoRecorder = False,
    ) -> None:
        options = RolloutsOptions(**{name: given for name, given in locals().items() if name != "self"})
        self._engine = Engine(options)
        self.ledger, self.meter = self._engine.ledger, self._engine.collector
        own = [] if options.directory is None else [JsonLines(options.directory / METRICS)]
        self._exporter = MetricsExporter([*own, *metrics], self.figures)
        self._delivery = Delivery(self._engine, self._exporter)
        self._evaluator = Evaluator(self._engine)
        self._wanted: tuple[int, int] | None = None
        self._parts = AsyncExitStack()
        self._open = self._opened = False

    async def __aenter__(self) -> Self:
        if self._opened:
            raise UsageError("Rollouts cannot be reopened: create a new instance")
        self._opened = True
        async with AsyncExitStack() as parts:
            await self._engine.open()
            parts.push_async_exit(self._engine.close)
            self._delivery.resume()
            await parts.enter_async_context(self._exporter)
            await self._engine.start()
            self._parts = parts.pop_all()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._delivery.close()
        try:
            await self._engine.stop(error)
        finally:
            await run_to_end(self._evaluator.close)
            self._delivery.account()
            await self._parts.__aexit__(kind, error, trace)

    async def start(self) -> Self:
        """Open these Rollouts until `close()`, which another task of the same event loop may call: for notebooks."""
        return await self.__aenter__()

    async def close(self) -> None:
        """Cancel running rollouts, and close everything that was opened. Closing again has no effect."""
        if self._open:
            await self.__aexit__(None, None, None)

    @property
    def version(self) -> int:
        """The version of the policy's weights; if it has several parts, of those that learn."""
        return self._engine.control.version

    @property
    def next_batch(self) -> int:
        """The number that the next batch will have."""
        return self._delivery.next_index

    def collect(self, groups: int) -> Coroutine[Any, Any, Batch]:
        """The next `groups` groups that are kept, in start order; rollouts still running are cancelled."""
        return HintedCoroutine(self._collect(groups), "batch = await rollouts.collect(...)")

    async def _collect(self, groups: int) -> Batch:
        groups = validation.check_int("groups", groups, 1)
        self._check_open()
        if (batch := await self._delivery.collect(groups)) is None:
            raise UsageError("tasks has ended: there is nothing left to play")
        return batch

    def batches(self, groups: int) -> AsyncIterator[Batch]:
        """Batches of `groups` groups each, for `async for`; they end when the tasks do."""
        groups = validation.check_int("groups", groups, 1)
        take = self._delivery.collect if self._engine.rules.ahead == 0 else self._delivery.next_batch

        async def next_batch() -> Batch:
            self._check_open()
            if (batch := await take(groups)) is None:
                raise StopAsyncIteration
            return batch

        return HintedIterator(next_batch, "async for batch in rollouts.batches(...)")

    def groups(self) -> AsyncIterator[Group]:
        """One group at a time, for `async for`; up to `max_in_flight` rollouts play meanwhile."""
        at_once = self._engine.rules.max_in_flight // self._engine.rules.group_size

        async def next_group() -> Group:
            self._check_open()
            if (group := await self._delivery.next_group(at_once)) is None:
                raise StopAsyncIteration
            return group

        return HintedIterator(next_group, "async for group in rollouts.groups()")

    def weight_update(self, version: int, mode: PauseMode = "wait") -> AbstractAsyncContextManager[None]:
        """Pause the policy while its weights change; later replies have this version.

        Replies in flight are awaited, or ("abort") stopped and requested again, or ("continue") left alone. If the
        body fails, the version stays. Updates run one at a time; others wait. Versions only rise.
        """
        return self._engine.weight_update(version, mode)

    async def evaluate(
        self,
        tasks: int | Iterable[Any] | MapStyle,
        *,
        k: int = 1,
        split: SplitChoice = DEFAULT_SPLIT,
        env_kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
        on_group: Callable[[Group], None] | None = None,
    ) -> Evaluation:
        """Play each task `k` times, beside everything else.

        All evaluations together have half of `max_in_flight` while training needs places, too, and otherwise all of it.

        `tasks` may be a number of episodes. The seeds of envs and of sampling depend on `seed` alone, so that
        evaluations can be compared and repeated; those of an env follow one another, and are never those of training.
        `split` is what envs that have splits (`EnvSpec.splits`) play, whatever split their own arguments name: one for
        all, or by tag (`{"math": "val"}`; others play "test"); None leaves an env's own. `env_kwargs` are added to the
        env's own.
        `on_group` is called with each group as it ends.
        """
        k, seed = validation.check_int("k", k, 1), validation.check_int("seed", seed, 0)
        self._check_open()
        return await self._evaluator.evaluate(
            tasks, k=k, split=split, env_kwargs=env_kwargs, seed=seed, on_group=on_group
        )

    async def drain(self, seconds: float) -> None:
        """Stop asking the policy, and wait at most so long for replies in flight, so that they are recorded."""
        if self._engine.control.can_update:
            self._parts.push_async_callback(self._engine.resume, None)  # others may use it, and servers are notified
            with anyio.move_on_after(seconds):
                await self._engine.pause("wait")

    async def scale(self, shards: int, *, drain: bool = True) -> None:
        """Have so many shards, while groups play; returns once new ones are ready, and those removed are gone.

        A shard that is removed first plays its groups to their end. Without `drain` they continue on other shards at
        once, with the replies recorded so far.
        """
        self._check_open()
        await self._engine.scale(validation.check_int("shards", shards, 1), drain=drain)

    def expect(self, batches: int, groups: int) -> None:
        """Announce how many batches of how many groups will be taken, so that `figures` can estimate the time left."""
        self._wanted = validation.check_int("batches", batches, 1), validation.check_int("groups", groups, 1)

    def figures(self) -> RunMetrics:
        """The metrics of the run: what has been played, how well and how fast."""
        return self.meter.read(time.monotonic(), read_gauges(self._engine, self._delivery, self._wanted))

    def stats(self) -> RolloutsStats:
        """A snapshot of the sampler and its pool."""
        return read_stats(self._engine, self._delivery)

    def _check_open(self) -> None:
        if not self._open:
            usage = "use them within 'async with', or between 'await rollouts.start()' and 'await rollouts.close()'"
            raise ClosedError(f"these Rollouts are not open: {usage}")
