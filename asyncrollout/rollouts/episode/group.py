"""One task, played several times from the same seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import anyio.lowlevel
import msgspec

from asyncrollout import validation
from asyncrollout.concurrency import task_group
from asyncrollout.errors import EnvCrashed, EnvError, ProviderError
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Agent
from asyncrollout.registry import EnvRef, EnvSpec
from asyncrollout.rollouts.episode.episode import as_data, run_rollout
from asyncrollout.rollouts.episode.observer import NullObserver, RolloutObserver
from asyncrollout.rollouts.episode.progress import Progress
from asyncrollout.rollouts.episode.scoring import Scorer
from asyncrollout.rollouts.episode.videos import GroupVideos
from asyncrollout.seeding import sampling_seed
from asyncrollout.trajectories import Group, Limits, StopReason, Trajectory, Verdict, member_uid
from asyncrollout.video.recorder import VideoRecorder

FAILED = "failed"
"""Why a group is dropped in which too many members failed."""

_NO_LIMITS = Limits()
_STARTED_AT_ONCE = 32  # members; each start costs some tenths of a millisecond


class Failures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of members that fail.

    They are played again, up to `retries` times in the whole group. If some still fail, the group is dropped; or it is
    accepted, if at least `min_valid` members have an outcome.
    """

    retries: Annotated[int, msgspec.Meta(ge=0)] = 2
    min_valid: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"Failures: retries={self.retries!r} is not a number from 0")
        if self.min_valid is not None and self.min_valid < 1:
            raise ValueError(f"Failures: min_valid={self.min_valid!r} is not a number from 1")

    def verdict(self, group: Group) -> Verdict | None:
        """A verdict on a group that cannot be used, whatever a filter would say."""
        valid, size = len(group.completed), len(group.trajectories)
        if valid == size or (self.min_valid is not None and valid >= self.min_valid):
            return None
        return Verdict(keep=False, reason=FAILED)


_FAILURES = Failures()


class Slots(Protocol):
    """Places for rollouts under way, such as an `anyio.CapacityLimiter`."""

    async def acquire_on_behalf_of(self, borrower: object, /) -> None: ...

    def release_on_behalf_of(self, borrower: object, /) -> None: ...


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

    The group always has all its members; if too many failed, its verdict says so. `slots` bounds rollouts under way.
    `record` is open.
    """
    size, seed = validation.check_int("size", size, 1), validation.check_int("seed", seed, 0)
    spec = pool.find(env)
    films = GroupVideos(record, tag or spec.name)
    group = _Playing(
        pool=pool,
        spec=spec,
        env_kwargs=env_kwargs or {},
        agent=agent,
        seed=seed,
        task=task,
        id=f"{spec.name}-{seed}" if id is None else id,
        tag=tag,
        limits=limits,
        scorer=scorer,
        sampling_base=seed if sampling_base is None else sampling_base,
        slots=slots,
        watch=NullObserver() if watch is None else watch,
        films=films,
    )
    with films:
        played = films.settle(await group.play(size, failures.retries))
    return msgspec.structs.replace(played, verdict=failures.verdict(played))


@dataclass(kw_only=True)
class _Playing:
    """A group that is played."""

    pool: EnvPool
    spec: EnvSpec
    env_kwargs: Mapping[str, Any]
    agent: Agent
    seed: int
    task: Any
    id: str
    tag: str
    limits: Limits
    scorer: Scorer | None
    sampling_base: int
    slots: Slots | None
    watch: RolloutObserver
    films: GroupVideos
    retries: int = 0
    recalled: set[str] = field(default_factory=set)

    async def play(self, size: int, retries: int) -> Group:
        self.retries = max(retries - self.watch.retries_used(self.id), 0)
        members: dict[int, Trajectory] = {}

        async def play(member: int) -> None:
            members[member] = await self._play_member(member, member_uid(self.id, member))

        async with task_group() as tasks:
            for member in range(size):
                tasks.start_soon(play, member)
                if (member + 1) % _STARTED_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()  # thousands at once would hold everybody up
        if len(members) < size:
            raise ProviderError(f"group {self.id}: a policy or a hook raised CancelledError by itself")
        group = Group(self.id, [members[member] for member in range(size)], self.tag)
        return await self._score(group) if self._is_scored_as_a_group else group

    async def _play_member(self, member: int, uid: str) -> Trajectory:
        known = self.watch.recall(uid)
        if known is not None:
            self.recalled.add(uid)
            return known
        while True:
            trajectory, progress = await self._play_once(member, uid)
            if trajectory.valid and self.scorer is not None and not self._is_scored_as_a_group:
                progress.begins("its score")
                trajectory = await self.scorer.score(trajectory)
                progress.begins("")
            if trajectory.valid or not self.retries:
                break
            self.retries -= 1
            self.watch.failed(trajectory)
        return trajectory if self._is_scored_as_a_group else await self.watch.finished(self.tag, trajectory)

    async def _play_once(self, member: int, uid: str) -> tuple[Trajectory, Progress]:
        if self.slots is not None:
            await self.slots.acquire_on_behalf_of(uid)
        try:
            is_broken_off = self.watch.is_broken_off(uid)
            progress = self.watch.dispatched(uid)
            progress.begins("its env")
            if is_broken_off and not self.spec.replayable:
                raise EnvCrashed(f"env {self.spec.name!r} ({uid}) was left within an episode, and is not replayable")
            async with self.pool.open(self.spec, record=self.films.begin(uid), **self.env_kwargs) as opened:
                trajectory = await run_rollout(
                    opened,
                    self.agent,
                    seed=self.seed,
                    task=self.task,
                    limits=self.limits,
                    member=member,
                    uid=uid,
                    sampling_seed=sampling_seed(self.sampling_base, member),
                    progress=progress,
                )
        except EnvError as error:  # it could not be opened, or played on
            failed = as_data(error, self.spec.name, self.seed, 0)
            trajectory = Trajectory(
                uid, self.spec.name, self.seed, [], 0.0, StopReason.ENV_ERROR, failed, member, self.task
            )
        finally:
            if self.slots is not None:
                self.slots.release_on_behalf_of(uid)
        return self.films.on_record(trajectory), progress

    @property
    def _is_scored_as_a_group(self) -> bool:
        return self.scorer is not None and self.scorer.takes_groups

    async def _score(self, group: Group) -> Group:
        assert self.scorer is not None
        scored = await self.scorer.score_group(group, known=self.recalled)
        members = [
            member if member.uid in self.recalled else await self.watch.finished(self.tag, member)
            for member in scored.trajectories
        ]
        return msgspec.structs.replace(scored, trajectories=members)
