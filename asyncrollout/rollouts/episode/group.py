"""One task, played several times from the same seed."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import anyio.lowlevel
import msgspec

from asyncrollout import validation
from asyncrollout.concurrency import task_group
from asyncrollout.errors import ProviderError
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Agent
from asyncrollout.registry import EnvRef, EnvSpec
from asyncrollout.rollouts.episode.episode import EnvEpisode, Episode
from asyncrollout.rollouts.episode.group_videos import GroupVideos
from asyncrollout.rollouts.episode.observer import NullObserver, RolloutObserver
from asyncrollout.rollouts.episode.progress import SCORE, Progress
from asyncrollout.rollouts.episode.scoring import Scorer
from asyncrollout.rollouts.sampling.task_source import GroupRequest, Share
from asyncrollout.seeding import sampling_seed
from asyncrollout.trajectories import Group, Limits, Trajectory, Verdict, member_uid
from asyncrollout.types import check_bounds
from asyncrollout.video.recorder import VideoRecorder

FAILED = "failed"
"""The reason for dropping a group in which too many members failed."""

_NO_LIMITS = Limits()
_STARTED_AT_ONCE = 32  # members; each start costs some tenths of a millisecond


class Failures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How failed members are handled.

    They are played again, up to `retries` times per group. If some still fail, the group is dropped, unless at least
    `min_valid` members have an outcome.
    """

    retries: Annotated[int, msgspec.Meta(ge=0)] = 2
    min_valid: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        check_bounds(self)

    def verdict(self, group: Group) -> Verdict | None:
        """A verdict on a group that cannot be used, which no filter sees."""
        valid, size = len(group.completed), len(group.trajectories)
        if valid == size or (self.min_valid is not None and valid >= self.min_valid):
            return None
        return Verdict(keep=False, reason=FAILED)


_FAILURES = Failures()


class Slots(Protocol):
    """Slots for rollouts in flight, such as an `anyio.CapacityLimiter`."""

    async def acquire_on_behalf_of(self, borrower: object, /) -> None: ...

    def release_on_behalf_of(self, borrower: object, /) -> None: ...


class GroupPlayer(Protocol):
    """Plays groups on request: in this process (`GroupRunner`), or on shards."""

    @property
    def envs(self) -> Mapping[str, Share]: ...

    async def run(
        self,
        request: GroupRequest,
        *,
        size: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        sampling_base: int | None = None,
        slots: Slots | None = None,
    ) -> Group:
        """Play a group; arguments replace what all groups share, but `env_kwargs` are added to it."""


async def run_group(
    pool: EnvPool,
    env: EnvRef,
    agent: Agent,
    *,
    seed: int,
    size: int,
    task: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
    id: str | None = None,  # noqa: A002
    tag: str = "",
    limits: Limits = _NO_LIMITS,
    failures: Failures = _FAILURES,
    scorer: Scorer | None = None,
    sampling_base: int | None = None,
    slots: Slots | None = None,
    watch: RolloutObserver | None = None,
    record: VideoRecorder | None = None,
) -> Group:
    """Play `size` episodes at once: the same env seed, but each with its own sampling seed.

    The group always has all its members; if too many failed, its verdict says so. `slots` bounds rollouts in flight.
    `record` must be open.
    """
    size, seed = validation.check_int("size", size, 1), validation.check_int("seed", seed, 0)
    spec = pool.find(env)
    runner = GroupRunner(
        pool=pool,
        envs={tag: Share(spec)},
        agent=agent,
        size=size,
        limits=limits,
        failures=failures,
        scorer=scorer,
        slots=slots,
        observer=NullObserver() if watch is None else watch,
        recorder=record,
    )
    request = GroupRequest(0, f"{spec.name}-{seed}" if id is None else id, seed, task, tag)
    return await runner.run(
        request, env_kwargs=env_kwargs, sampling_base=seed if sampling_base is None else sampling_base
    )


@dataclass(frozen=True, kw_only=True)
class GroupRunner:
    """Plays groups on request, and has what all of them share.

    `env_kwargs` are for all `envs`, which are found by the tag of a request. Each group's sampling seed is drawn from
    `seed` and its id.
    """

    pool: EnvPool
    envs: Mapping[str, Share]
    agent: Agent
    size: int
    seed: int = 0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = _NO_LIMITS
    failures: Failures = _FAILURES
    scorer: Scorer | None = None
    slots: Slots | None = None
    observer: RolloutObserver
    recorder: VideoRecorder | None = None

    async def run(
        self,
        request: GroupRequest,
        *,
        size: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        sampling_base: int | None = None,
        slots: Slots | None = None,
    ) -> Group:
        """Play a group; arguments replace what all groups share, but `env_kwargs` are added to it."""
        share = self.envs[request.tag]
        with GroupVideos(self.recorder, request.tag or share.env.name) as videos:
            group = _RunningGroup(
                runner=self,
                request=request,
                spec=share.env,
                env_kwargs={**self.env_kwargs, **share.env_kwargs, **(env_kwargs or {})},
                sampling_base=sampling_seed(self.seed, request.id) if sampling_base is None else sampling_base,
                slots=self.slots if slots is None else slots,
                videos=videos,
                retries=max(self.failures.retries - self.observer.retries_used(request.id), 0),
            )
            played = videos.settle(await group.play(self.size if size is None else size))
        return msgspec.structs.replace(played, verdict=self.failures.verdict(played))


@dataclass(kw_only=True)
class _RunningGroup:
    """One group while it is played."""

    runner: GroupRunner
    request: GroupRequest
    spec: EnvSpec
    env_kwargs: Mapping[str, Any]
    sampling_base: int
    slots: Slots | None
    videos: GroupVideos
    retries: int
    recalled: set[str] = field(default_factory=set)  # uids of members that an earlier process has finished
    progress: dict[str, Progress] = field(default_factory=dict)  # of members that wait to be scored together

    async def play(self, size: int) -> Group:
        group_id = self.request.id
        members: dict[int, Trajectory] = {}

        async def play(member: int) -> None:
            members[member] = await self._play_member(member, member_uid(group_id, member))

        async with task_group() as tasks:
            for member in range(size):
                tasks.start_soon(play, member)
                if (member + 1) % _STARTED_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()  # thousands at once would block the event loop
        if len(members) < size:
            raise ProviderError(f"group {group_id}: a policy or a hook raised CancelledError by itself")
        group = Group(group_id, [members[member] for member in range(size)], self.request.tag)
        return await self._score(group) if self._is_scored_as_a_group else group

    async def _play_member(self, member: int, uid: str) -> Trajectory:
        """A member as an earlier process finished it, or played until it is valid or the retries are used up."""
        scorer, observer = self.runner.scorer, self.runner.observer
        known = observer.recall(uid)
        if known is not None:
            self.recalled.add(uid)
            return known
        while True:
            trajectory, progress = await self._play_once(member, uid)
            if scorer is not None and self._is_scored_as_a_group:
                progress.begins("")
                self.progress[uid] = progress
            elif trajectory.valid and scorer is not None:
                ended = progress.begins(SCORE)
                trajectory = await scorer.score(trajectory)
                trajectory = msgspec.structs.replace(trajectory, score_seconds=progress.begins("") - ended)
            if trajectory.valid or not self.retries:
                break
            self.retries -= 1
            observer.failed(trajectory)
        return trajectory if self._is_scored_as_a_group else await observer.finished(self.request.tag, trajectory)

    async def _play_once(self, member: int, uid: str) -> tuple[Trajectory, Progress]:
        """An episode of any kind, in its slot."""
        observer = self.runner.observer
        if self.slots is not None:
            await self.slots.acquire_on_behalf_of(uid)
        try:
            episode = self._episode(member, uid)
            progress = observer.dispatched(uid)
            trajectory = await episode.play(uid, progress)
        finally:
            if self.slots is not None:
                self.slots.release_on_behalf_of(uid)
        return self.videos.on_record(trajectory), progress

    def _episode(self, member: int, uid: str) -> Episode:
        runner = self.runner
        is_lost = runner.observer.was_interrupted(uid) and not self.spec.replayable
        return EnvEpisode(
            pool=runner.pool,
            spec=self.spec,
            env_kwargs=self.env_kwargs,
            agent=runner.agent,
            seed=self.request.seed,
            task=self.request.task,
            member=member,
            sampling_seed=sampling_seed(self.sampling_base, member),
            limits=runner.limits,
            recording=None if is_lost else self.videos.begin(uid),  # nobody would end it, and the retry has none then
            is_lost=is_lost,
        )

    @property
    def _is_scored_as_a_group(self) -> bool:
        return self.runner.scorer is not None and self.runner.scorer.takes_groups

    async def _score(self, group: Group) -> Group:
        assert self.runner.scorer is not None
        waited_since = {uid: progress.since for uid, progress in self.progress.items()}
        for progress in self.progress.values():
            progress.begins(SCORE)
        scored = await self.runner.scorer.score_group(group, known=self.recalled)
        now = time.monotonic()
        for progress in self.progress.values():
            progress.begins("")
        members = []
        for member in scored.trajectories:
            if (since := waited_since.get(member.uid)) is not None:
                timed = msgspec.structs.replace(member, score_seconds=now - since)
                members.append(await self.runner.observer.finished(self.request.tag, timed))
            else:
                members.append(member)
        return msgspec.structs.replace(scored, trajectories=members)
