"""Results of an evaluation: every episode, and totals with their intervals."""

from collections.abc import Sequence
from typing import Any

import msgspec

from asyncrollout.dropin.rlinf.plan import PlannedEnv
from asyncrollout.errors import RolloutError
from asyncrollout.stats import Estimate, mean, mean_count, share
from asyncrollout.successes import RolloutResult, Successes, reported
from asyncrollout.trajectories import StopReason, Trajectory, Turn
from asyncrollout.video.files import stem_of


class EvaluatedEpisode(msgspec.Struct, frozen=True):
    """One episode; `error` says why it has no outcome. `video` is the name of its file, if it was recorded; while the
    evaluation runs, the name that it will have if its env draws anything.

    `success` is what the env reported; None if it did not, until `decided` knows all episodes.
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
    planned: PlannedEnv, number: int, played: Trajectory | RolloutError, *, video: bool, text: bool = True
) -> EvaluatedEpisode:
    """The record of an env's episode, or of an env that could not be made; a turn in `text` may have several steps."""
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
        success=reported(played) if played.valid else None,
        reward=played.reward if played.valid else None,
        steps=sum(_steps(turn) if text else 1 for turn in played.turns),
        stop_reason=played.stop_reason.value,
        seconds=played.seconds,
        error="" if played.error is None else f"{type(played.error).__name__}: {played.error}",
        video=f"{stem_of(planned.name, number)}.mp4" if video else None,
    )


def _steps(turn: Turn) -> int:
    """The text interface lists the actions that it stepped; an env of its own kind may report anything by that name."""
    actions = turn.info.get("actions")
    return len(actions) if isinstance(actions, list) else 1


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
