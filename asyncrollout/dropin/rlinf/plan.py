"""The plan of an evaluation, made before anything starts: each env's episodes, process and video name."""

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrollout.dropin.rlinf.config import EvaluationConfig
from asyncrollout.dropin.rlinf.ranks import DEVICES, EnvSlot, RankedWorker, spread, visible_devices
from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec, load_factory
from asyncrollout.rollouts.evaluator import read_splits
from asyncrollout.trajectories import Limits

_DECIDED = ("text", "worker", "expert", "record")  # keywords of EnvPool.open


class PlannedEnv(msgspec.Struct, frozen=True):
    """One env: its slot, its process in the pool, the seeds and tasks of its episodes, its video's name."""

    slot: EnvSlot
    process: int
    seeds: tuple[int, ...]
    tasks: tuple[Any, ...]
    name: str


class EvaluationPlan(msgspec.Struct, frozen=True):
    """All envs; `environs` are the environment variables of each process of the pool."""

    spec: EnvSpec
    kwargs: dict[str, Any]
    limits: Limits
    envs: tuple[PlannedEnv, ...]
    environs: tuple[dict[str, str], ...]

    @property
    def split(self) -> str | None:
        """What the envs play, if they have splits."""
        return self.kwargs.get("split") if self.spec.splits else None

    @property
    def episodes(self) -> int:
        return sum(len(env.seeds) for env in self.envs)


def make_plan(config: EvaluationConfig, spec: EnvSpec, *, visible: str | None = None) -> EvaluationPlan:
    """The plan for envs of a spec. `visible` is CUDA_VISIBLE_DEVICES as it is."""
    chosen, workers = config.env.eval, config.cluster.workers("env")
    slots = spread(chosen.total_num_envs, workers)
    is_alone = getattr(load_factory(spec.factory), "alone_in_process", False)
    envs = tuple(
        PlannedEnv(
            slot,
            index if is_alone else slot.rank,
            tuple(chosen.seed + index + round_ * len(slots) for round_ in range(chosen.episodes)),
            tuple(_task(chosen.tasks, index + round_ * len(slots)) for round_ in range(chosen.episodes)),
            f"{chosen.video_cfg.prefix}_{slot.video_id}",
        )
        for index, slot in enumerate(slots)
    )
    by_rank: Mapping[int, RankedWorker] = {worker.rank: worker for worker in workers}
    ranks = [slot.rank for slot in slots] if is_alone else sorted({slot.rank for slot in slots})
    environs = [{DEVICES: visible_devices(by_rank[rank].gpus, visible)} for rank in ranks]
    kwargs, limits = _settings(config, spec)
    return EvaluationPlan(spec, kwargs, limits, envs, tuple(environs))


def _task(tasks: list[Any], index: int) -> Any:
    return tasks[index % len(tasks)] if tasks else None


def _settings(config: EvaluationConfig, spec: EnvSpec) -> tuple[dict[str, Any], Limits]:
    """Keyword arguments and limits; a step limit that the env does not take itself is applied from outside."""
    chosen, kwargs, limits = config.env.eval, dict(config.env.eval.env_kwargs), config.limits
    for key in _DECIDED:
        if key in kwargs:
            raise UsageError(f"env.eval.env_kwargs.{key}: the evaluation sets it: remove the key")
    known = inspect.signature(load_factory(spec.factory)).parameters
    if "split" not in kwargs and (split := _split(chosen.split, spec)) is not None:
        kwargs["split"] = split
    if chosen.resolution is not None:
        if "resolution" not in known:
            raise UsageError(f"env.eval.resolution: {spec.name} has no such option: remove the key")
        kwargs["resolution"] = chosen.resolution
    if (most := chosen.max_episode_steps) is None:
        return kwargs, limits
    if "max_episode_steps" in known:
        kwargs["max_episode_steps"] = most
    elif spec.text is not None:
        kwargs["max_actions_per_traj"] = most
    else:
        limits = msgspec.structs.replace(limits, turns=min(most, limits.turns or most))
    return kwargs, limits


def _split(asked: str | None, spec: EnvSpec) -> str | None:
    """What the env plays; None if it has no splits, or to leave it to the env."""
    try:
        return read_splits({spec.name: spec}, asked).get(spec.name)
    except UsageError as error:
        raise UsageError(f"env.eval.split: {error}") from error
