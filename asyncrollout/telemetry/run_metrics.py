"""The metrics of a run at one moment, and as plain numbers by name."""

from typing import Literal

import msgspec

from asyncrollout.types import Durations

Trend = Literal["up", "down", "level"]


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the rollouts at one moment.

    `queued` counts calls waiting for a worker, `restarts` workers that this process has replaced. `shards` counts those
    that are ready, on so many `nodes`. The wanted batches, and the groups in all of them, are None if the run has no
    end.
    """

    wanted_batches: int | None = None
    wanted_groups: int | None = None
    playing: int = 0
    buffered: int = 0
    waiting_policy: int = 0
    waiting_env: int = 0
    waiting_score: int = 0
    waiting_else: int = 0
    queued: int = 0
    restarts: int = 0
    version: int = 0
    shards: int = 0
    nodes: int = 0


class RunMetrics(Gauges, frozen=True, kw_only=True):
    """A run at one moment; what is unknown is None. Evaluations count in `evaluated_rollouts` alone.

    What is on record counts for the whole run, over all its processes: see `docs/figures.md`, which has the definition
    of each figure.
    `groups` counts those that were judged, or became `stale` before: `kept` ones, and `dropped` ones by reason;
    `keep_rate` is the share kept. `retries` counts failed attempts that are played again.
    `success_rate` is over rollouts whose env reports success; one that was cut off without a report is a failure.
    Rewards are means over judged groups. `reward_change` is the mean of the recent groups minus that of as many before
    them; `reward_trend` is "up" or "down" if that is significant at the 1% level.
    """

    seconds: float = 0.0
    eta: float | None = None
    batches: int = 0
    delivered: int = 0
    groups: int = 0
    kept: int = 0
    keep_rate: float | None = None
    dropped: dict[str, int] = {}
    stale: int = 0
    lag: int = 0
    rollouts: int = 0
    evaluated_rollouts: int = 0
    retries: int = 0
    errors: dict[str, int] = {}
    success_rate: float | None = None
    turns: int = 0
    invalid: int = 0
    tokens: int = 0
    turns_per_second: float = 0.0
    tokens_per_second: float = 0.0
    policy_seconds: Durations = Durations()
    env_seconds: Durations = Durations()
    score_seconds: Durations = Durations()
    reward_mean: float | None = None
    reward_recent: float | None = None
    reward_change: float | None = None
    reward_trend: Trend | None = None
    reward_history: tuple[float, ...] = ()


_SIGNS: dict[Trend, int] = {"down": -1, "level": 0, "up": 1}


def flat(figures: RunMetrics) -> dict[str, float]:
    """Numbers by name, such as `dropped/constant_reward` and `env_seconds/p95`; unknown ones are left out."""
    found: dict[str, float] = {}
    for name, value in msgspec.to_builtins(figures).items():
        if isinstance(value, dict):
            found.update((f"{name}/{key}", number) for key, number in value.items())
        elif name == "reward_trend" and figures.reward_trend is not None:
            found[name] = _SIGNS[figures.reward_trend]
        elif isinstance(value, int | float):
            found[name] = value
    return found
