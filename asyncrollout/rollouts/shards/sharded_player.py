"""Plays groups on shards: each on the least loaded one, and again elsewhere if that one is lost."""

import itertools
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from asyncrollout.concurrency import task_group
from asyncrollout.errors import UsageError
from asyncrollout.pool.wire.codec import UnsendableError, to_pickle
from asyncrollout.rollouts.episode.group import Failures, Slots
from asyncrollout.rollouts.observers import RunObserver
from asyncrollout.rollouts.sampling.task_source import GroupRequest, Share
from asyncrollout.rollouts.shards.placed_group import PlacedGroup
from asyncrollout.rollouts.shards.shard_link import ShardLink
from asyncrollout.rollouts.shards.shard_messages import PlayGroup
from asyncrollout.rollouts.shards.shard_set import ShardSet
from asyncrollout.trajectories import Group

_CANCEL_SECONDS = 20.0  # in which a shard closes the envs of a group


class ShardedPlayer:
    """A `GroupPlayer`: what is given is played by one of the shards, and comes back as if it were played here."""

    def __init__(
        self,
        shards: ShardSet,
        envs: Mapping[str, Share],
        *,
        size: int,
        failures: Failures,
        observer: RunObserver,
    ) -> None:
        self.envs = envs
        self._shards = shards
        self._size = size
        self._failures = failures
        self._observer = observer
        self._plays = itertools.count(1)

    async def run(
        self,
        request: GroupRequest,
        *,
        size: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        sampling_base: int | None = None,
        slots: Slots | None = None,
    ) -> Group:
        group = PlacedGroup(
            request,
            self._size if size is None else size,
            env_kwargs=env_kwargs,
            sampling_base=sampling_base,
            slots=slots,
            observer=self._observer,
        )
        while not group.is_finished:
            link = await self._shards.place()
            await self._play_at(link, group)
            if group.failure is not None:
                raise group.failure
            group.give_up(self.envs[request.tag].env.name)
        played = group.result()
        return msgspec.structs.replace(played, verdict=self._failures.verdict(played))

    async def _play_at(self, link: ShardLink, group: PlacedGroup) -> None:
        """One stay of a group on a shard: until it ends, fails, or is lost with the shard."""
        play = next(self._plays)
        try:
            assignment = to_pickle(group.assignment(), link.sent)
        except UnsendableError as error:
            raise UsageError(
                f"task {group.request.index} cannot be sent to a shard: {error.__cause__ or error}"
            ) from error
        async with task_group() as waiting:
            group.begin(play, link.place, link.send)
            if group.takes_slots:
                waiting.start_soon(group.grant_slots)
            link.add(play, group)
            self._shards.note_load(link, group.size)
            try:
                link.send(PlayGroup(play, assignment))
                await group.over.wait()
            except anyio.get_cancelled_exc_class():
                await self._cancel(link, play, group)
                raise
            finally:
                group.end()
                link.remove(play)
                self._shards.note_load(link, -group.size)
            waiting.cancel_scope.cancel()

    async def _cancel(self, link: ShardLink, play: int, group: PlacedGroup) -> None:
        """Have the shard stop: a group that is drawn again while it still plays would exist twice."""
        link.cancel(play)
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CANCEL_SECONDS):
            await group.over.wait()
        if not group.over.is_set():
            self._shards.fence(link, f"it did not cancel group {group.request.id} in time")
