"""Tasks played to measure a policy, beside everything else."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import anyio
import msgspec
import numpy as np

from asyncrollout.concurrency import task_group
from asyncrollout.errors import ClosedError, StalledError, UsageError
from asyncrollout.journal.run import EvaluationSettings
from asyncrollout.logs import get_logger
from asyncrollout.registry import EnvSpec
from asyncrollout.rollouts.engine import Engine
from asyncrollout.rollouts.evaluation import Evaluation, checked
from asyncrollout.rollouts.sampling.env_seeds import evaluation_seeds
from asyncrollout.rollouts.sampling.task_source import GroupRequest, MapStyle, TaskSource, as_iterable
from asyncrollout.seeding import sampling_seed
from asyncrollout.trajectories import DRAWN, Group
from asyncrollout.validation import did_you_mean

log = get_logger(__name__)

Play = Callable[[GroupRequest], Awaitable[Group]]
SplitChoice = str | Mapping[str, str | None] | None
"""What envs that have splits play: one for all of them, or one by tag; None leaves it to their own arguments."""

DEFAULT_SPLIT = "test"


class Evaluator:
    """Plays evaluations in half of all slots, at least one; one fails if nothing moves for `stall_seconds`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ledger, self._control = engine.ledger, engine.control
        self._stall_seconds = engine.rules.stall_seconds
        self._most_in_flight = max(int(engine.slots.total_tokens) // 2, 1)
        self._slots = EvaluationSlots(engine.slots, anyio.CapacityLimiter(self._most_in_flight))
        self._running: set[anyio.CancelScope] = set()

    def close(self) -> None:
        for scope in self._running:
            scope.cancel()

    async def evaluate(
        self,
        tasks: int | Iterable[Any] | MapStyle,
        *,
        k: int,
        split: SplitChoice,
        env_kwargs: Mapping[str, Any] | None,
        seed: int,
        on_group: Callable[[Group], None] | None,
    ) -> Evaluation:
        """Play each task `k` times; an evaluation that was interrupted, and is the same, continues."""
        listed, given = _read_tasks(tasks), dict(env_kwargs or {})
        specs = {tag: share.env for tag, share in self._engine.player.envs.items()}
        splits = {} if "split" in given else read_splits(specs, split)
        journal = self._engine.observer.journal
        what = [listed, k, seed, self._control.version, given]
        if journal.past.has_spread_seeds and journal.is_interrupted(what):
            splits = {}  # it began before evaluations had splits, and continues as it was
        name = journal.begin_evaluation(
            [*what, splits] if splits else what, EvaluationSettings(given, splits, len(listed), k)
        )
        await journal.flush()

        async def play(request: GroupRequest) -> Group:
            group = await self._engine.player.run(
                msgspec.structs.replace(request, id=f"{name}-{request.id}"),
                size=k,
                env_kwargs={**given, "split": splits[request.tag]} if request.tag in splits else given,
                sampling_base=sampling_seed(seed, "evaluation", "sampling", request.index),
                slots=self._slots,
            )
            if on_group is not None:
                on_group(group)
            return group

        with anyio.CancelScope() as scope:
            self._running.add(scope)
            try:
                groups = await self._play_all(play, name, listed, seed)
            finally:
                self._running.discard(scope)
                self._ledger.cancel(f"{name}-{DRAWN}{index}" for index in range(len(listed)))
        if scope.cancelled_caught:
            raise ClosedError("these Rollouts were closed")
        evaluation = checked(Evaluation(k, groups))
        if len(evaluation.versions) > 1:
            log.warning("weights_changed_within_evaluation", name=name, versions=evaluation.versions)
        journal.end_evaluation(name)
        await journal.flush()
        return evaluation

    async def _play_all(self, play: Play, name: str, tasks: list[Any], seed: int) -> list[Group]:
        """Rollouts take slots in the order of the tasks, so that none is empty while a group waits for its last ones.

        Several evaluations share the slots.
        """
        at_once = anyio.CapacityLimiter(self._most_in_flight)
        groups: dict[int, Group] = {}

        async def play_one(request: GroupRequest) -> None:
            groups[request.index] = group = await play(request)
            self._ledger.end_group(group, "delivered")
            at_once.release_on_behalf_of(request.id)

        async with task_group() as watched:
            watched.start_soon(self._raise_if_stalled, f"{name}-")
            async with task_group() as playing:
                shares = [*self._engine.player.envs.values()]
                env_seeds = evaluation_seeds(seed, are_spread=self._engine.observer.journal.past.has_spread_seeds)
                async for request in TaskSource(tasks, seed, shares, env_seeds=env_seeds):
                    await at_once.acquire_on_behalf_of(request.id)  # which lets others run, too
                    playing.start_soon(play_one, request)
            watched.cancel_scope.cancel()
        return [groups[index] for index in sorted(groups)]

    async def _raise_if_stalled(self, prefix: str) -> None:
        """Raise once the rollouts with this prefix have not moved for `stall_seconds`.

        It does not count that they wait for others to make room, nor that the policy is paused.
        """
        moved = time.monotonic()
        while (left := moved + self._stall_seconds - time.monotonic()) > 0:
            await anyio.sleep(left)
            is_playing = any(uid.startswith(prefix) for uid in self._ledger.open)
            moved = max(moved, self._ledger.last_move(prefix if is_playing else ""), self._control.last_held())
        raise StalledError(f"nothing has moved for {self._stall_seconds:g} s: {self._ledger.stuck(prefix)}")


def read_splits(specs: Mapping[str, EnvSpec], choice: SplitChoice) -> dict[str, str]:
    """The split of each tag whose env has splits; one that nobody chose is "test"."""
    chosen = choice if isinstance(choice, Mapping) else dict.fromkeys(specs, choice)
    for tag in chosen:
        if tag not in specs:
            raise UsageError(f"split: no env has the tag {tag!r:.100}{did_you_mean(str(tag), specs)}")
    is_for_some = not isinstance(choice, Mapping) and any(spec.splits for spec in specs.values())
    splits = {}
    for tag, spec in specs.items():
        split = chosen.get(tag, DEFAULT_SPLIT)
        if not spec.splits and split not in (None, DEFAULT_SPLIT) and not is_for_some:
            raise UsageError(f"split={split!r:.100}: env {spec.name!r} has no splits")
        if spec.splits and split is not None and split not in spec.splits:
            near = did_you_mean(str(split), spec.splits)
            raise UsageError(f"env {spec.name!r} has no split={split!r:.100}{near}")
        if spec.splits and split is not None:
            splits[tag] = split
    return splits


def _read_tasks(tasks: Any) -> list[Any]:
    listed = [None] * int(tasks) if isinstance(tasks, int | np.integer) else as_iterable(tasks)
    if listed is None:
        raise UsageError(f"evaluate: tasks={tasks!r:.100} is neither a number of episodes nor a list of tasks")
    if not (listed := [*listed]):
        raise UsageError("evaluate: no tasks were given")
    return listed


class EvaluationSlots:
    """Each rollout takes two slots: one of the evaluations' part, then one of all."""

    def __init__(self, all_slots: anyio.CapacityLimiter, part: anyio.CapacityLimiter) -> None:
        self._all = all_slots
        self._part = part

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._part.acquire_on_behalf_of(borrower)
        try:
            await self._all.acquire_on_behalf_of(borrower)
        except BaseException:
            self._part.release_on_behalf_of(borrower)
            raise

    def release_on_behalf_of(self, borrower: object) -> None:
        self._all.release_on_behalf_of(borrower)
        self._part.release_on_behalf_of(borrower)
