"""What each turn of a batch was worth: `asyncrollout.advantages` by name, or a function of the caller's."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from asyncrollout import advantages, rewards
from asyncrollout.batches.flat_turns import FlatTurns, Floats
from asyncrollout.errors import UsageError
from asyncrollout.types import total_reward
from asyncrollout.validation import did_you_mean

Advantage = str | Callable[..., ArrayLike] | None
"""A name from `asyncrollout.advantages`, a function `(scores, groups) -> advantages` of trajectories, or none."""

Normalization = Mapping[str, Any]
"""The options of `rewards.normalize` that say how: `grouping` and `method`."""

_NORMALIZATION = ("grouping", "method")
GIGPO = "gigpo"
_NAMES = ["grpo", "dr_grpo", "rloo", "reinforce_pp", "max_rl", "pass_at_k", GIGPO]
_DATA = frozenset({"scores", "groups", "valid", "group", "trajectory", "reward", "anchor", "episode_reward"})


def normalized(played: FlatTurns, normalization: Normalization | None) -> Floats:
    """The trajectories' rewards, as `rewards.normalize` gives them for these options."""
    if normalization is None:
        return played.reward
    if not isinstance(normalization, Mapping):
        raise UsageError(
            f"reward_normalization={normalization!r:.100} must be a mapping, "
            "such as {'grouping': 'state', 'method': 'mean'}"
        )
    for key in normalization:
        if key not in _NORMALIZATION:
            raise UsageError(f"reward_normalization has no option {key!r}{did_you_mean(str(key), _NORMALIZATION)}")
    return rewards.normalize(played.reward, groups=played.group, tags=played.tags, valid=played.valid, **normalization)


def turn_advantages(
    played: FlatTurns, scores: Floats, advantage: Advantage, options: dict[str, Any], arguments: list[str]
) -> Floats | None:
    """The advantage of every turn by its trajectory's score; 0 for those that failed, which no statistic counts either.

    `arguments` are what else the caller could have meant by an unknown option.
    """
    function = advantage if callable(advantage) else _find(advantage, options, arguments)
    if function is None:
        return None
    if advantage == GIGPO:
        return _of_turns(played, scores, function, options)
    return _of_trajectories(played, scores, function, options)[played.trajectory]


def _of_trajectories(
    played: FlatTurns, scores: Floats, function: Callable[..., Any], options: dict[str, Any]
) -> Floats:
    worth = np.zeros(len(played.trajectories))
    counted = np.flatnonzero(played.valid)
    if counted.size:
        found = np.asarray(function(scores[counted], played.group[counted], **options), dtype=np.float64)
        if found.shape != counted.shape or not np.isfinite(found).all():
            name = getattr(function, "__name__", repr(function))
            raise UsageError(f"advantage={name} must give {counted.size} finite numbers, and gave {found!r:.200}")
        worth[counted] = found
    return worth


def _of_turns(played: FlatTurns, scores: Floats, function: Callable[..., Any], options: dict[str, Any]) -> Floats:
    worth = np.zeros(len(played.turns))
    counted = np.flatnonzero(played.valid[played.trajectory])
    if counted.size:
        turns = [played.turns[row] for row in counted.tolist()]
        owners = played.trajectory[counted]
        earned, whole = _with_scores(played)
        worth[counted] = function(
            group=played.group[owners],
            trajectory=owners,
            reward=earned[counted],
            episode_reward=(whole if scores is played.reward else scores)[owners],
            anchor=[turn.anchor for turn in turns],
            valid=[turn.valid for turn in turns],
            **options,
        ).advantage
    return worth


def _with_scores(played: FlatTurns) -> tuple[Floats, Floats]:
    """The turns' rewards, and the trajectories': what these have beyond (a score, given at the end) is the last turn's.

    What is only rounding counts nowhere: without a score, a trajectory's reward is the exact sum of its steps.
    """
    earned, whole = played.turn_reward.copy(), played.reward.copy()
    last = np.flatnonzero(np.diff(played.trajectory, append=-1))
    for owner, row in zip(played.trajectory[last].tolist(), last.tolist(), strict=True):
        turns = played.trajectories[owner].turns
        total = total_reward((turn.reward, turn.info) for turn in turns)
        if math.isclose(total, whole[owner], rel_tol=1e-9, abs_tol=1e-9):
            whole[owner] = total
        elif played.valid[owner]:
            earned[row] += whole[owner] - total
    return earned, whole


def _find(name: Any, options: dict[str, Any], arguments: list[str]) -> Callable[..., Any] | None:
    if name is not None and name not in _NAMES:
        raise UsageError(f"advantage={name!r} is neither a function nor a known name{did_you_mean(str(name), _NAMES)}")
    function = None if name is None else getattr(advantages, name)
    known = [] if function is None else [key for key in inspect.signature(function).parameters if key not in _DATA]
    for option in options:
        if option not in known:
            raise UsageError(f"advantage={name!r} has no option {option!r}{did_you_mean(option, [*known, *arguments])}")
    return function
