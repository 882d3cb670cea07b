"""Tasks played for figures alone, beside whatever else is played."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import msgspec

from asyncrollout.concurrency import task_group
from asyncrollout.errors import ClosedError, StalledError
from asyncrollout.logs import get_logger
from asyncrollout.rollouts.evaluation import Evaluation, checked
from asyncrollout.rollouts.sampling.ledger import Ledger
from asyncrollout.rollouts.sampling.task_source import GroupRequest, Share, TaskSource
from asyncrollout.seeding import sampling_seed
from asyncrollout.trajectories import Group

log = get_logger(__name__)


class Evaluator:
    """Half of all `slots`, at least one, are for evaluations; one fails if nothing moves for `stall_seconds`."""

    def __init__(
        self,
        shares: Sequence[Share],
        ledger: Ledger,
        slots: anyio.CapacityLimiter,
        stall_seconds: float,
        last_held: Callable[[], float],
    ) -> None:
        self._shares = shares
        self._ledger = ledger
        self._most_in_flight = max(int(slots.total_tokens) // 2, 1)
        self.slots = EvaluationSlots(slots, anyio.CapacityLimiter(self._most_in_flight))
        self._stall_seconds = stall_seconds
        self._last_held = last_held
        self._under_way: set[anyio.CancelScope] = set()

    def close(self) -> None:
        for scope in self._under_way:
            scope.cancel()

    async def run(
        self, play: Callable[[GroupRequest], Awaitable[Group]], name: str, tasks: list[Any], k: int, seed: int
    ) -> Evaluation:
        """Each task once, by `play`, which gives a group of `k`; their ids begin with the name.

        Rollouts take their places in the order of the tasks, so that a group's last ones leave none of them empty;
        several evaluations share the places.
        """
        at_once = anyio.CapacityLimiter(self._most_in_flight)
        groups: dict[int, Group] = {}

        async def play_one(draw: GroupRequest) -> None:
            groups[draw.index] = group = await play(msgspec.structs.replace(draw, id=f"{name}-{draw.id}"))
            self._ledger.end_group(group, "delivered")
            at_once.release_on_behalf_of(draw.id)

        with anyio.CancelScope() as scope:
            self._under_way.add(scope)
            try:
                async with task_group() as watched:
                    watched.start_soon(self._raise_if_stalled, f"{name}-")
                    async with task_group() as playing:
                        async for draw in TaskSource(tasks, sampling_seed(seed, "evaluation"), self._shares):
                            await at_once.acquire_on_behalf_of(draw.id)  # which lets others run, too
                            playing.start_soon(play_one, draw)
                    watched.cancel_scope.cancel()
            finally:
                self._under_way.discard(scope)
                for index in range(len(tasks)):
                    self._ledger.cancel(f"{name}-g{index}", k)
        if scope.cancelled_caught:
            raise ClosedError("these Rollouts were closed")
        evaluation = checked(Evaluation(k, [groups[index] for index in sorted(groups)]))
        if len(evaluation.versions) > 1:
            log.warning("weights_changed_within_evaluation", name=name, versions=evaluation.versions)
        return evaluation

    async def _raise_if_stalled(self, prefix: str) -> None:
        """An error, once the rollouts whose uids begin so have not moved for long.

        While none of them plays, they wait for others to make room; nor do they move while the policy is held back.
        """
        moved = time.monotonic()
        while (left := moved + self._stall_seconds - time.monotonic()) > 0:
            await anyio.sleep(left)
            is_playing = any(uid.startswith(prefix) for uid in self._ledger.open)
            moved = max(moved, self._ledger.last_move(prefix if is_playing else ""), self._last_held())
        raise StalledError(f"nothing has moved for {self._stall_seconds:g} s: {self._ledger.stuck(prefix)}")


class EvaluationSlots:
    """Places for rollouts that are taken of all, and of a part of them: a place in the part comes first."""

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
