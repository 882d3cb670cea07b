"""Results of an evaluation: every episode, and totals with their intervals."""

from collections.abc import Sequence
from typing import Any

import msgspec

from asyncrollout.dropin.rlinf.plan import PlannedEnv
from asyncrollout.errors import RolloutError
from asyncrollout.stats import Estimate, mean, mean_count, share
from asyncrollout.successes import RolloutResult, Successes
from asyncrollout.trajectories import StopReason, Trajectory
from asyncrollout.video.files import stem_of


class EvaluatedEpisode(msgspec.Struct, frozen=True):
    """One episode; `error` says why it has no outcome. `video` is the name of its file, if it was recorded.

    `success` is whether the env reported it at any step; None if it never did, until `decided` knows all episodes.
    """

    env: str
    rank: int
    gpu: int
    env_idx: int
    episode: int
    seed: int
    task: str
    success: bool | None = None
    reward: float | None = None
    steps: int = 0
    stop_reason: str = ""
    seconds: float = 0.0
    error: str = ""
    video: str | None = None


class EvaluationTotals(msgspec.Struct, frozen=True):
    """Totals of some episodes; failed ones have no outcome and are counted separately."""

    episodes: int
    failed: int
    success: Estimate
    reward: Estimate
    steps: Estimate


def as_episode(
    planned: PlannedEnv, number: int, played: Trajectory | RolloutError, *, text: bool, video: bool
) -> EvaluatedEpisode:
    """The record of an env's episode, or of an env that could not be made; `text`: its turns were replies."""
    slot, task = planned.slot, planned.tasks[number]
    known: dict[str, Any] = {
        "env": slot.video_id,
        "rank": slot.rank,
        "gpu": slot.gpu,
        "env_idx": slot.env_idx,
        "episode": number,
        "seed": planned.seeds[number],
        "task": "" if task is None else str(task),
    }
    if isinstance(played, RolloutError):
        return EvaluatedEpisode(**known, error=f"{type(played).__name__}: {played}")
    if task is None:
        known["task"] = next(
            (str(turn.info["activity"]) for turn in played.turns if "activity" in turn.info), played.env
        )
    return EvaluatedEpisode(
        **known,
        success=_success_once(played) if played.valid else None,
        reward=played.reward if played.valid else None,
        steps=sum(len(turn.info["actions"]) for turn in played.turns) if text else len(played.turns),
        stop_reason=played.stop_reason.value,
        seconds=played.seconds,
        error="" if played.error is None else f"{type(played.error).__name__}: {played.error}",
        video=f"{stem_of(planned.name, number)}.mp4" if video else None,
    )


def _success_once(played: Trajectory) -> bool | None:
    """Whether the env reported success at any step, as RLinf counts it; the info of an invalid reply is not the env's.

    None if it reported nothing.
    """
    found = [turn.info["success"] for turn in played.turns if turn.valid and turn.info.get("success") is not None]
    return any(map(bool, found)) if found else None


def decided(episodes: Sequence[EvaluatedEpisode]) -> list[EvaluatedEpisode]:
    """The episodes of one env, with the success of each that has an outcome."""
    found = Successes([_result(episode) for episode in episodes if not episode.error])
    return [
        episode if episode.error else msgspec.structs.replace(episode, success=found.succeeded(_result(episode)))
        for episode in episodes
    ]


def _result(episode: EvaluatedEpisode) -> RolloutResult:
    ended = episode.stop_reason in (StopReason.TERMINATED, StopReason.TRUNCATED)
    return RolloutResult("", episode.success, ended, episode.reward or 0.0)


def summarize(episodes: Sequence[EvaluatedEpisode]) -> EvaluationTotals:
    valid = [episode for episode in episodes if not episode.error]
    return EvaluationTotals(
        episodes=len(episodes),
        failed=len(episodes) - len(valid),
        success=share([float(bool(episode.success)) for episode in valid], len(valid)),
        reward=mean([episode.reward or 0.0 for episode in valid]),
        steps=mean_count([float(episode.steps) for episode in valid]),
    )
