"""What an evaluation does, decided beforehand: which env plays what, in which process, and how its video is called."""

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrollout.dropin.rlinf.config import EvaluationConfig
from asyncrollout.dropin.rlinf.ranks import EnvSlot, RankedWorker, spread, visible_devices
from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec, load_factory
from asyncrollout.trajectories import Limits

_DECIDED = ("text", "worker", "expert", "record")  # keywords of EnvPool.open


class PlannedEnv(msgspec.Struct, frozen=True):
    """One env: its seat, the process of the pool that it lives in, its episodes' seeds and tasks, its video's name."""

    seat: EnvSlot
    process: int
    seeds: tuple[int, ...]
    tasks: tuple[Any, ...]
    name: str


class EvaluationPlan(msgspec.Struct, frozen=True):
    """All of it; `environs` are the environment variables of the pool's processes."""

    spec: EnvSpec
    kwargs: dict[str, Any]
    limits: Limits
    parts: tuple[PlannedEnv, ...]
    environs: tuple[dict[str, str], ...]

    @property
    def episodes(self) -> int:
        return sum(len(part.seeds) for part in self.parts)


def make_plan(config: EvaluationConfig, spec: EnvSpec, *, visible: str | None = None) -> EvaluationPlan:
    """The plan for envs of a spec. `visible` is CUDA_VISIBLE_DEVICES as it is."""
    chosen, workers = config.env.eval, config.cluster.workers("env")
    seats = spread(chosen.total_num_envs, workers)
    is_alone = getattr(load_factory(spec.factory), "alone_in_process", False)
    parts = tuple(
        PlannedEnv(
            seat,
            index if is_alone else seat.rank,
            tuple(chosen.seed + index + round_ * len(seats) for round_ in range(chosen.episodes)),
            tuple(_task(chosen.tasks, index + round_ * len(seats)) for round_ in range(chosen.episodes)),
            f"{chosen.video_cfg.prefix}_{seat.video_id}",
        )
        for index, seat in enumerate(seats)
    )
    by_rank: Mapping[int, RankedWorker] = {worker.rank: worker for worker in workers}
    ranks = [seat.rank for seat in seats] if is_alone else sorted({seat.rank for seat in seats})
    environs = [{"CUDA_VISIBLE_DEVICES": visible_devices(by_rank[rank].gpus, visible)} for rank in ranks]
    kwargs, limits = _settings(config, spec)
    return EvaluationPlan(spec, kwargs, limits, parts, tuple(environs))


def _task(tasks: list[Any], index: int) -> Any:
    return tasks[index % len(tasks)] if tasks else None


def _settings(config: EvaluationConfig, spec: EnvSpec) -> tuple[dict[str, Any], Limits]:
    """Keyword arguments and limits: what an env does not take itself is seen to from outside, if that can be."""
    chosen, kwargs, limits = config.env.eval, dict(config.env.eval.env_kwargs), config.limits
    for key in _DECIDED:
        if key in kwargs:
            raise UsageError(f"env.eval.env_kwargs.{key}: an evaluation decides that itself: leave the key out")
    known = inspect.signature(load_factory(spec.factory)).parameters
    if chosen.resolution is not None:
        if "resolution" not in known:
            raise UsageError(f"env.eval.resolution: {spec.name} has none to choose: leave the key out")
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
