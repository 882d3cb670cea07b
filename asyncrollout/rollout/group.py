"""One task, played several times from the same seed."""

from collections.abc import Mapping
from typing import Annotated, Any, Protocol

import anyio
import msgspec

from asyncrollout.agents.seeds import sampling_seed
from asyncrollout.errors import EnvError, ProviderError, UsageError
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Agent
from asyncrollout.registry import EnvSpec, find_env
from asyncrollout.rollout.episode import as_data, run_rollout
from asyncrollout.rollout.progress import Progress
from asyncrollout.rollout.scoring import Scorer
from asyncrollout.tasks import task_group
from asyncrollout.trajectories import Group, Limits, StopReason, Trajectory, Verdict, member_uid

_NO_LIMITS = Limits()


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
        valid, size = len(group.valid), len(group.trajectories)
        if valid == size or (self.min_valid is not None and valid >= self.min_valid):
            return None
        return Verdict(keep=False, reason="failed")


_FAILURES = Failures()


class Watch(Protocol):
    """Who wants to know of each rollout of a group."""

    def dispatched(self, uid: str) -> Progress: ...

    def failed(self, uid: str) -> None:
        """It will be played again."""


class _Nobody:
    def dispatched(self, uid: str) -> Progress:
        return Progress(uid)

    def failed(self, uid: str) -> None: ...


async def run_group(
    pool: EnvPool,
    env: EnvSpec | str,
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
    slots: anyio.CapacityLimiter | None = None,
    watch: Watch | None = None,
) -> Group:
    """Play `size` episodes at once: the same env seed, but each with its own sampling seed.

    The group always has all its members; if too many failed, its verdict says so. `slots` bounds rollouts under way.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UsageError(f"a group has at least one member: size={size!r}")
    spec = find_env(env)
    id = f"{spec.name}-{seed}" if id is None else id  # noqa: A001
    base = seed if sampling_base is None else sampling_base
    watching = _Nobody() if watch is None else watch
    members: dict[int, Trajectory] = {}
    retries = failures.retries

    async def play(member: int) -> None:
        nonlocal retries
        uid = member_uid(id, member)
        while True:
            trajectory, progress = await play_once(uid, member)
            if trajectory.valid and scorer is not None and not scorer.takes_groups:
                progress.begins("its score")
                trajectory = await scorer.score(trajectory)
                progress.begins("")
            if trajectory.valid or not retries:
                break
            retries -= 1
            watching.failed(uid)
        members[member] = trajectory

    async def play_once(uid: str, member: int) -> tuple[Trajectory, Progress]:
        if slots is not None:
            await slots.acquire_on_behalf_of(uid)
        try:
            progress = watching.dispatched(uid)
            progress.begins("its env")
            async with pool.open(spec, **(env_kwargs or {})) as opened:
                trajectory = await run_rollout(
                    opened,
                    agent,
                    seed=seed,
                    task=task,
                    limits=limits,
                    member=member,
                    uid=uid,
                    sampling_seed=sampling_seed(base, member),
                    progress=progress,
                )
        except EnvError as error:  # it could not be opened
            failed = as_data(error, spec.name, seed, 0)
            trajectory = Trajectory(uid, spec.name, seed, [], 0.0, StopReason.ENV_ERROR, failed, member, task)
        finally:
            if slots is not None:
                slots.release_on_behalf_of(uid)
        return trajectory, progress

    async with task_group() as tasks:
        for member in range(size):
            tasks.start_soon(play, member)
    if len(members) < size:
        raise ProviderError(f"group {id}: a policy or a hook raised CancelledError by itself")
    group = Group(id, [members[member] for member in range(size)], tag)
    if scorer is not None and scorer.takes_groups:
        group = await scorer.score_group(group)
    return msgspec.structs.replace(group, verdict=failures.verdict(group))
