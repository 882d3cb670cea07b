"""RLinf's interfaces for evaluations: a video of each environment, and the evaluation itself."""

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncrollout.dropin import portal
from asyncrollout.dropin.configs import plain
from asyncrollout.dropin.rlinf.config import EvaluationConfig, as_evaluation, read_evaluation
from asyncrollout.dropin.rlinf.plan import make_plan
from asyncrollout.dropin.rlinf.player import open_player
from asyncrollout.dropin.rlinf.ranks import devices, spread
from asyncrollout.dropin.rlinf.results import EvaluatedEpisode, EvaluationTotals, decided, summarize
from asyncrollout.dropin.rlinf.run import run_plan
from asyncrollout.errors import UsageError
from asyncrollout.logs import get_logger
from asyncrollout.registry import allowed_env
from asyncrollout.video import VideoWriter

log = get_logger(__name__)

_FPS = 30
_IMAGE_AXES = 3


def create_video_writer(  # noqa: PLR0917 (as OmniGibson has them)
    fpath: str | os.PathLike[str],
    resolution: tuple[int, int] | None = None,  # noqa: ARG001
    codec_name: str = "libx264",  # noqa: ARG001
    rate: float = _FPS,
    pix_fmt: str = "yuv420p",  # noqa: ARG001
    stream_options: Any = None,  # noqa: ARG001
    context_options: Any = None,  # noqa: ARG001
) -> VideoWriter:
    """An MP4 that is written frame by frame; the first frame decides its size. The encoding is always H.264."""
    return VideoWriter(fpath, fps=rate)


def create_video_writers(config: Any, rank: int = 0) -> list[VideoWriter]:
    """A writer for each env of a process, in the order of its envs; none if `save_video` is off."""
    chosen = _read(config)
    eval_, workers = chosen.env.eval, chosen.cluster.workers("env")
    if rank not in range(len(workers)):
        raise UsageError(f"rank={rank}: cluster.component_placement.env has {len(workers)} processes, numbered from 0")
    video = eval_.video_cfg
    if not video.save_video:
        return []
    directory = Path(video.video_base_dir)
    slots = [slot for slot in spread(eval_.total_num_envs, workers) if slot.rank == rank]
    return [
        create_video_writer(directory / f"{video.prefix}_{slot.video_id}.mp4", rate=video.fps or _FPS) for slot in slots
    ]


def write_video(obs: Any, video_writer: VideoWriter, mode: str = "rgb", batch_size: int | None = None) -> None:  # noqa: ARG001
    """Add an image `(height, width, 3)`, or each of several, to a video."""
    if mode != "rgb":
        raise UsageError(f"mode={mode!r}: only mode='rgb' is available")
    images = np.asarray(obs.detach().cpu() if hasattr(obs, "detach") else obs)
    for image in images if images.ndim > _IMAGE_AXES else [images]:
        video_writer.write(image)


class EvaluationResult(msgspec.Struct, frozen=True):
    """Every episode, in the order of the envs, their totals, and the split that was played, if the envs have any."""

    episodes: list[EvaluatedEpisode]
    summary: EvaluationTotals
    split: str | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """Totals under RLinf's names; those without a value (no episode ended) are left out."""
        found = self.summary
        named = {"success_once": found.success.mean, "return": found.reward.mean, "episode_len": found.steps.mean}
        known = {f"eval/{name}": value for name, value in named.items() if value is not None}
        return {**known, "eval/num_trajectories": float(found.episodes - found.failed)}


def evaluate(config: Any, *overrides: str, policy: Any = None, allow_import: bool = False) -> EvaluationResult:
    """Evaluate a configuration, with a video of each env, and wait for the results; as `asyncrollout eval`.

    `config` is a file name, a dict, or an object with the same keys as attributes; `overrides` are values such as
    `env.eval.total_num_envs=8`. `policy` is a function of an observation, a `Policy` or an `Agent`, in place of the
    configured one. A configuration that names code to import needs `allow_import`.
    """
    chosen = _read(config, *overrides)
    if chosen.imports and not allow_import:
        named = ", ".join(map(repr, chosen.imports))
        raise UsageError(f"the configuration names code to import, {named}: allow it with allow_import=True")
    return portal.run(_evaluate, chosen, policy)


async def _evaluate(config: EvaluationConfig, policy: Any) -> EvaluationResult:
    spec = allowed_env(config.env.eval.env_type, allow_import=True)  # or `evaluate` has refused it
    plan = make_plan(config, spec, visible=devices())
    async with open_player(config, spec, own=policy) as player:
        episodes = decided(await run_plan(plan, config.env.eval, player, on_episode=_log))
    return EvaluationResult(episodes, summarize(episodes), plan.split)


def _log(episode: EvaluatedEpisode) -> None:
    outcome = {"error": episode.error} if episode.error else {"success": episode.success, "reward": episode.reward}
    log.info("episode_ended", env=episode.env, task=episode.task, steps=episode.steps, **outcome)


def _read(config: Any, *overrides: str) -> EvaluationConfig:
    if isinstance(config, str | os.PathLike):
        return read_evaluation(Path(config), overrides)
    found = plain(config)
    if not isinstance(found, dict):
        raise UsageError(f"config: expected a file name or a dict, found {config!r:.100}")
    return as_evaluation(found, overrides)
