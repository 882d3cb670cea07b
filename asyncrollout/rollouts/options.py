"""The options of `Rollouts`, checked, and what the engine reads from them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncrollout.agents.chat import ChatAgent
from asyncrollout.errors import UsageError
from asyncrollout.journal.run import may_change
from asyncrollout.pool.pool import EnvPool
from asyncrollout.pool.worker.env_runner import is_async
from asyncrollout.protocols import Agent, Policy
from asyncrollout.registry import EnvRef, EnvSpec, find_env
from asyncrollout.rollouts.episode.group import Failures
from asyncrollout.rollouts.episode.scoring import Score
from asyncrollout.rollouts.sampling.batch_buffer import OnExhausted
from asyncrollout.rollouts.sampling.filtering import Keep
from asyncrollout.rollouts.sampling.shares import SharesOf
from asyncrollout.rollouts.sampling.stream import Order, StreamRules
from asyncrollout.rollouts.sampling.task_source import Share, Tasks
from asyncrollout.rollouts.shards.shard_set import ShardBackend
from asyncrollout.telemetry import Sink
from asyncrollout.trajectories import Limits
from asyncrollout.validation import check_choice, check_int, check_seconds, did_you_mean
from asyncrollout.video.files import VIDEOS
from asyncrollout.video.recorder import VideoRecorder

_MEANT = {"weight": "share", "fraction": "share", "name": "env", "kwargs": "env_kwargs", "config": "env_kwargs"}

Find = Callable[[EnvRef], EnvSpec]


@dataclass(kw_only=True)
class RolloutsOptions:
    """The arguments of `Rollouts`, which documents them; numbers and choices are checked."""

    env: EnvRef | list[Share | dict[str, Any]]
    env_kwargs: Mapping[str, Any] | None
    policy: Policy | None
    agent: Agent | None
    group_size: int
    keep: Keep | None
    seed: int
    tasks: Tasks | None
    score: Score | None
    limits: Limits
    failures: Failures
    order: Order
    max_in_flight: int
    max_lag: int | None
    max_num_gen_batches: int | None
    on_exhausted: OnExhausted
    shares: SharesOf
    stall_seconds: float
    gc_threshold: int | None
    workers: int | None
    pool: EnvPool | None
    shards: ShardBackend | None
    run_dir: str | PathLike[str] | None
    resume: bool | int
    accept_changes: Collection[str]
    metrics: Sequence[Sink]
    record: bool | VideoRecorder

    def __post_init__(self) -> None:
        self.group_size = check_int("group_size", self.group_size, 1)
        self.seed = check_int("seed", self.seed, 0)
        self.max_in_flight = check_int("max_in_flight", self.max_in_flight, self.group_size)
        if self.max_lag is not None:
            self.max_lag = check_int("max_lag", self.max_lag, 0)
        if self.max_num_gen_batches is not None:
            self.max_num_gen_batches = check_int("max_num_gen_batches", self.max_num_gen_batches, 1)
        for option, kind in ((self.limits, Limits), (self.failures, Failures)):
            if not isinstance(option, kind):
                name = kind.__name__
                raise UsageError(f"{name.lower()}={option!r:.100} is not a {name}: write {name.lower()}={name}(...)")
        if self.gc_threshold is not None:
            self.gc_threshold = check_int("gc_threshold", self.gc_threshold, 1)
        check_seconds("stall_seconds", self.stall_seconds)
        check_choice("order", self.order, ("finish", "start"))
        check_choice("on_exhausted", self.on_exhausted, ("raise", "short", "fill"))
        check_choice("shares", self.shares, ("drawn", "delivered"))
        if self.shares == "delivered" and self.order == "start":
            raise UsageError(
                "shares='delivered' draws by what was kept so far, which depends on timing: not with order='start'"
            )
        if self.shards is not None:
            self._check_shards(self.shards)
        self.resume = read_resume(self.run_dir, self.resume)
        self.accept_changes = read_accepted(self.accept_changes)

    def _check_shards(self, shards: Any) -> None:
        if not hasattr(shards, "launcher"):
            raise UsageError(f"shards={shards!r:.100} is not a RayShards: write shards=RayShards({shards!r:.20})")
        if self.pool is not None:
            raise UsageError("pool= is a pool of this process: with shards=, leave it out; each shard has its own")
        if self.record:
            raise UsageError(
                "record= writes videos beside the envs, on the nodes of the shards: leave it out, or evaluate with "
                "videos without shards="
            )

    @property
    def rules(self) -> StreamRules:
        return StreamRules(
            group_size=self.group_size,
            max_in_flight=self.max_in_flight,
            order=self.order,
            ahead=1 if self.max_lag is None else self.max_lag,
            max_lag=self.max_lag,
            max_num_gen_batches=self.max_num_gen_batches,
            on_exhausted=self.on_exhausted,
            stall_seconds=self.stall_seconds,
        )

    @property
    def directory(self) -> Path | None:
        return None if self.run_dir is None else Path(self.run_dir)


def read_envs(env: Any, env_kwargs: Mapping[str, Any] | None, find: Find = find_env) -> list[Share]:
    """One env, or several with tags and shares; each with the `EnvSpec` that `find` returns."""
    if isinstance(env, str | EnvSpec) or callable(env):
        env = [Share(env, env_kwargs=dict(env_kwargs or {}))]
    elif env_kwargs:
        raise UsageError("env_kwargs is for one env: with several, each entry of env=[...] has its own")
    if not isinstance(env, Sequence) or not env:
        raise UsageError(f"env={env!r:.100} is neither the name of an env nor a list of them")
    shares = [_read_share(entry, place, find) for place, entry in enumerate(env)]
    tags = [share.tag for share in shares]
    if len({*tags}) < len(tags):
        raise UsageError(f"env: the tags {tags} are not all different: give each entry its own tag=")
    return shares


def _read_share(entry: Any, place: int, find: Find) -> Share:
    unknown = [key for key in entry if key not in Share.__struct_fields__] if isinstance(entry, Mapping) else []
    for key in unknown:
        meant = _MEANT.get(key)
        hint = f": did you mean {meant!r}?" if meant else did_you_mean(str(key), Share.__struct_fields__)
        raise UsageError(f"env[{place}] takes no {key!r}{hint}")
    try:
        share = entry if isinstance(entry, Share) else msgspec.convert(entry, Share)
    except msgspec.ValidationError as error:
        raise UsageError(f"env[{place}]: {error}") from error
    spec = find(share.env)
    return msgspec.structs.replace(share, env=spec, tag=share.tag or spec.name)


def runs_on_loop(shares: Sequence[Share]) -> bool:
    """Whether no env needs a worker process."""
    return all(share.env.runs == "light" or is_async(share.env) for share in shares)


def as_agent(policy: Policy | None, agent: Agent | None) -> Agent:
    """The agent to play with."""
    if (policy is None) == (agent is None):
        raise UsageError("Rollouts takes either policy= or agent=")
    if agent is None:
        assert policy is not None
        agent = ChatAgent(policy)
    if not hasattr(agent, "open"):
        hint = ": give it as policy=" if hasattr(agent, "generate") else ""
        raise UsageError(f"agent={agent!r:.100} is not an agent: it has no open(){hint}")
    return agent


def read_resume(run_dir: Any, resume: Any) -> bool | int:
    """Whether to resume a run, or at which batch."""
    if run_dir is not None and "\0" in str(run_dir):
        raise UsageError(f"run_dir={run_dir!r} is not the path of a directory")
    if not isinstance(resume, bool) and (not isinstance(resume, int | np.integer) or resume < 0):
        raise UsageError(f"resume={resume!r} is neither True, False nor the number of a batch")
    if resume is not False and run_dir is None:
        raise UsageError("resume is for Rollouts with a run_dir")
    return resume if isinstance(resume, bool) else int(resume)


def read_accepted(accept_changes: Any) -> frozenset[str]:
    """The names of settings that may differ from those the run started with."""
    if isinstance(accept_changes, str) or not isinstance(accept_changes, Collection):
        raise UsageError(
            f"accept_changes={accept_changes!r:.100} is not a list of names such as 'agent.system_prompt' and 'policy'"
        )
    for name in accept_changes:
        if not isinstance(name, str) or not may_change(name):
            raise UsageError(f"accept_changes: {name!r:.100} must stay the same: only agent and policy may change")
    return frozenset(accept_changes)


def read_recorder(record: Any, run_dir: Path | None) -> VideoRecorder | None:
    """What records videos; without a directory of its own, into that of the run."""
    if record is None or record is False:
        return None
    recorder = VideoRecorder() if record is True else record
    if not isinstance(recorder, VideoRecorder):
        raise UsageError(f"record={record!r:.100} is neither True nor a VideoRecorder(...)")
    if recorder.directory is None:
        if run_dir is None:
            raise UsageError("record: where do the videos go? Give a run_dir, or record=VideoRecorder(directory)")
        recorder.directory = (run_dir / VIDEOS).absolute()
    return recorder
