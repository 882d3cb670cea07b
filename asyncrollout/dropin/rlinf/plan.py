"""The plan of an evaluation, made before anything starts: each env's episodes, process and video name."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from asyncrollout.dropin.rlinf.config import Eval, EvaluationConfig
from asyncrollout.dropin.rlinf.ranks import DEVICES, EnvSlot, RankedWorker, spread, visible_devices
from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec, check_exists, load_factory
from asyncrollout.trajectories import Limits
from asyncrollout.validation import did_you_mean

_EVALUATED = "test"
_DECIDED = ("text", "worker", "expert", "record")  # keywords of EnvPool.open


class PlannedEnv(msgspec.Struct, frozen=True):
    """One env: its slot, its process in the pool, the seeds and tasks of its episodes, its video's name."""

    slot: EnvSlot
    process: int
    seeds: tuple[int, ...]
    tasks: tuple[Any, ...]
    name: str


class EvaluationPlan(msgspec.Struct, frozen=True):
    """All envs; `environs` are the environment variables of each process of the pool.

    `split` is the one that is played, None if the envs have none; `most_steps` is a limit that no env takes itself.
    """

    spec: EnvSpec
    kwargs: dict[str, Any]
    limits: Limits
    envs: tuple[PlannedEnv, ...]
    environs: tuple[dict[str, str], ...]
    split: str | None = None
    most_steps: int | None = None

    @property
    def episodes(self) -> int:
        return sum(len(env.seeds) for env in self.envs)

    def bounded(self, *, text: bool) -> tuple[dict[str, Any], Limits]:
        """Keyword arguments and limits for a player in words, which the text interface counts, or without."""
        most = self.most_steps
        if most is None:
            return self.kwargs, self.limits
        if text:
            own = self.kwargs.get("max_actions_per_traj")
            return {**self.kwargs, "max_actions_per_traj": most if own is None else min(most, own)}, self.limits
        return self.kwargs, msgspec.structs.replace(self.limits, turns=min(most, self.limits.turns or most))


def make_plan(config: EvaluationConfig, spec: EnvSpec, *, visible: str | None = None) -> EvaluationPlan:
    """The plan for envs of a spec. `visible` is CUDA_VISIBLE_DEVICES as it is."""
    check_exists(spec)
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
    kwargs, split, most_steps = _env_kwargs(chosen, spec)
    return EvaluationPlan(spec, kwargs, config.limits, envs, tuple(environs), split, most_steps)


def _task(tasks: list[Any], index: int) -> Any:
    return tasks[index % len(tasks)] if tasks else None


def _env_kwargs(chosen: Eval, spec: EnvSpec) -> tuple[dict[str, Any], str | None, int | None]:
    """Keyword arguments of each env, the split that they name, and a step limit that the env does not take itself."""
    kwargs = dict(chosen.env_kwargs)
    for key in _DECIDED:
        if key in kwargs:
            raise UsageError(f"env.eval.env_kwargs.{key}: the evaluation sets it: remove the key")
    known = _parameters(spec)
    most = chosen.max_episode_steps
    for key, value in (("resolution", chosen.resolution), ("max_episode_steps", most)):
        if value is None or key not in known:
            continue
        if kwargs.setdefault(key, value) != value:
            raise UsageError(f"env.eval.env_kwargs.{key}={kwargs[key]!r:.100}: env.eval.{key} is {value!r}: give one")
    if chosen.resolution is not None and "resolution" not in known:
        raise UsageError(f"env.eval.resolution: {spec.name} has no such option: remove the key")
    if (split := _split(chosen, spec)) is not None:
        kwargs["split"] = split
    return kwargs, split, None if "max_episode_steps" in known else most


def _split(chosen: Eval, spec: EnvSpec) -> str | None:
    """The split that the envs play, None if they have none."""
    asked, given = chosen.split, chosen.env_kwargs.get("split")
    if not spec.splits:
        if asked is not None:
            raise UsageError(f"env.eval.split: {spec.name} has no splits: remove the key")
        return None
    if asked is not None and given not in (None, asked):
        raise UsageError(f"env.eval.env_kwargs.split={given!r:.100}: env.eval.split is {asked!r}: give one of them")
    split = str(asked or given or _EVALUATED)
    if split not in spec.splits:
        raise UsageError(f"env.eval.split: {spec.name} has no split {split!r}{did_you_mean(split, spec.splits)}")
    return split


def _parameters(spec: EnvSpec) -> Collection[str]:
    try:
        return inspect.signature(load_factory(spec.factory)).parameters
    except (TypeError, ValueError):  # some built-in ones have no signature
        return ()
