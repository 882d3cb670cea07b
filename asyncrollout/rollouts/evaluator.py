"""Tasks played to measure a policy, beside everything else."""

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import numpy as np

from asyncrollout.concurrency import GradualTasks, task_group
from asyncrollout.errors import ClosedError, StalledError, UsageError
from asyncrollout.journal.run import EvaluationSettings
from asyncrollout.logs import get_logger
from asyncrollout.registry import EnvSpec
from asyncrollout.rollouts.engine import Engine
from asyncrollout.rollouts.evaluation import Evaluation, checked, versions_of
from asyncrollout.rollouts.sampling.env_seeds import evaluation_seeds
from asyncrollout.rollouts.sampling.places import GroupPlaces
from asyncrollout.rollouts.sampling.task_source import GroupRequest, MapStyle, TaskSource, as_iterable
from asyncrollout.seeding import sampling_seed
from asyncrollout.trajectories import DRAWN, Group
from asyncrollout.validation import did_you_mean

log = get_logger(__name__)

Play = Callable[[GroupRequest, GroupPlaces], Coroutine[Any, Any, None]]
SplitChoice = str | Mapping[str, str | None] | None
"""What envs that have splits play: one for all of them, or one by tag; None leaves it to their own arguments."""

DEFAULT_SPLIT = "test"

_END_GRACE = 30.0
_READ_AT_ONCE = 100  # rows


class Evaluator:
    """Plays evaluations beside everything else; one fails if nothing moves for `stall_seconds`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ledger, self._control = engine.ledger, engine.control
        self._stall_seconds = engine.rules.stall_seconds
        self._running: dict[anyio.CancelScope, anyio.Event] = {}  # with what is set once it has ended

    async def close(self) -> None:
        """End what plays; nobody waits for it longer than that may take."""
        running = {**self._running}
        for scope in running:
            scope.cancel()
        with anyio.move_on_after(_END_GRACE):
            for ended in running.values():
                await ended.wait()

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
        listed, given = await _read_tasks(tasks), dict(env_kwargs or {})
        specs = {tag: share.env for tag, share in self._engine.player.envs.items()}
        splits = {} if "split" in given else read_splits(specs, split)
        journal = self._engine.observer.journal
        what = [listed, k, seed, self._control.version, given]
        if journal.past.has_spread_seeds and journal.is_interrupted(what):
            splits = {}  # it began before evaluations had splits, and continues as it was
        name = await journal.begin_evaluation(
            [*what, splits] if splits else what, EvaluationSettings(given, splits, len(listed), k)
        )
        await journal.flush()

        groups: dict[int, Group] = {}
        versions: set[int] = set()

        async def play(request: GroupRequest, places: GroupPlaces) -> None:
            named = msgspec.structs.replace(request, id=f"{name}-{request.id}")
            with places:
                group = await self._engine.player.run(
                    named,
                    size=k,
                    env_kwargs={**given, "split": splits[request.tag]} if request.tag in splits else given,
                    sampling_base=sampling_seed(seed, "evaluation", "sampling", request.index),
                    slots=places,
                )
            if on_group is not None:
                on_group(group)
            versions.update(version for one in group.trajectories for version in versions_of(one))
            groups[request.index] = group
            self._ledger.end_group(group, "delivered")

        with anyio.CancelScope() as scope:
            ended = self._running[scope] = anyio.Event()
            try:
                await self._play_all(play, name, listed, seed, k)
            finally:
                del self._running[scope]
                ended.set()
                if len(groups) < len(listed):
                    self._ledger.cancel(f"{name}-{DRAWN}{index}" for index in range(len(listed)) if index not in groups)
        if scope.cancelled_caught:
            raise ClosedError("these Rollouts were closed")
        evaluation = checked(Evaluation(k, [groups[index] for index in range(len(listed))]))
        if len(versions) > 1:
            log.warning("weights_changed_within_evaluation", name=name, versions=tuple(sorted(versions)))
        journal.end_evaluation(name)
        await journal.flush()
        return evaluation

    async def _play_all(self, play: Play, name: str, tasks: list[Any], seed: int, k: int) -> None:
        """Groups start in the order of the tasks, as places come free."""
        async with task_group() as watched:
            watched.start_soon(self._raise_if_stalled, f"{name}-")
            async with GradualTasks() as playing:
                shares = [*self._engine.player.envs.values()]
                env_seeds = evaluation_seeds(seed, are_spread=self._engine.observer.journal.past.has_spread_seeds)
                async for request in TaskSource(tasks, seed, shares, env_seeds=env_seeds):
                    places = await self._engine.places.next_group("evaluation")
                    playing.start_soon(play, request, places, counts=k)
                    await anyio.lowlevel.checkpoint()  # thousands at once would block the event loop
            watched.cancel_scope.cancel()

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


async def _read_tasks(tasks: Any) -> list[Any]:
    """All of them; a dataset that makes each row when it is asked for is read some rows at a time."""
    if isinstance(tasks, int | np.integer):
        listed: list[Any] = [None] * int(tasks)
    elif isinstance(tasks, list | tuple):
        listed = [*tasks]
    elif (rows := as_iterable(tasks)) is None:
        raise UsageError(f"evaluate: tasks={tasks!r:.100} is neither a number of episodes nor a list of tasks")
    else:
        listed = []
        for row in rows:
            listed.append(row)
            if len(listed) % _READ_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
    if not listed:
        raise UsageError("evaluate: no tasks were given")
    return listed
