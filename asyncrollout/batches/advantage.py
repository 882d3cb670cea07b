"""The advantage of each turn of a batch: by a name from `asyncrollout.advantages`, or by the caller's function."""

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
"""Options of `rewards.normalize`: `grouping` and `method`."""

_NORMALIZATION = ("grouping", "method")
GIGPO = "gigpo"
_NAMES = ["grpo", "dr_grpo", "rloo", "reinforce_pp", "max_rl", "pass_at_k", GIGPO]
_DATA = frozenset({"scores", "groups", "valid", "group", "trajectory", "reward", "anchor", "episode_reward"})


def normalized(flat: FlatTurns, normalization: Normalization | None) -> Floats:
    """The trajectories' rewards, normalized by `rewards.normalize` if there are options for it."""
    if normalization is None:
        return flat.reward
    if not isinstance(normalization, Mapping):
        raise UsageError(
            f"reward_normalization={normalization!r:.100} must be a mapping, "
            "such as {'grouping': 'state', 'method': 'mean'}"
        )
    for key in normalization:
        if key not in _NORMALIZATION:
            raise UsageError(f"reward_normalization has no option {key!r}{did_you_mean(str(key), _NORMALIZATION)}")
    return rewards.normalize(flat.reward, groups=flat.group, tags=flat.tags, valid=flat.valid, **normalization)


def turn_advantages(
    flat: FlatTurns, scores: Floats, advantage: Advantage, options: dict[str, Any], arguments: list[str]
) -> Floats | None:
    """The advantage of every turn; 0 in failed trajectories, which are left out of all statistics.

    `arguments` are further names to suggest for an unknown option.
    """
    function = advantage if callable(advantage) else _find(advantage, options, arguments)
    if function is None:
        return None
    if advantage == GIGPO:
        return _of_turns(flat, scores, function, options)
    return _of_trajectories(flat, scores, function, options)[flat.trajectory]


def _of_trajectories(flat: FlatTurns, scores: Floats, function: Callable[..., Any], options: dict[str, Any]) -> Floats:
    result = np.zeros(len(flat.trajectories))
    counted = np.flatnonzero(flat.valid)
    if counted.size:
        found = np.asarray(function(scores[counted], flat.group[counted], **options), dtype=np.float64)
        if found.shape != counted.shape or not np.isfinite(found).all():
            name = getattr(function, "__name__", repr(function))
            raise UsageError(f"advantage={name} must return {counted.size} finite numbers, not {found!r:.200}")
        result[counted] = found
    return result


def _of_turns(flat: FlatTurns, scores: Floats, function: Callable[..., Any], options: dict[str, Any]) -> Floats:
    found = np.zeros(len(flat.turns))
    counted = np.flatnonzero(flat.valid[flat.trajectory])
    if counted.size:
        turns = [flat.turns[row] for row in counted.tolist()]
        owners = flat.trajectory[counted]
        earned, whole = _with_scores(flat)
        found[counted] = function(
            group=flat.group[owners],
            trajectory=owners,
            reward=earned[counted],
            episode_reward=(whole if scores is flat.reward else scores)[owners],
            anchor=[turn.anchor for turn in turns],
            valid=[turn.valid for turn in turns],
            **options,
        ).advantage
    return found


def _with_scores(flat: FlatTurns) -> tuple[Floats, Floats]:
    """Rewards of turns and of trajectories; what a score adds to a trajectory's reward goes to its last turn.

    Rounding does not count as a score: without one, a trajectory's reward is the exact sum of its steps.
    """
    earned, whole = flat.turn_reward.copy(), flat.reward.copy()
    last = np.flatnonzero(np.diff(flat.trajectory, append=-1))
    for owner, row in zip(flat.trajectory[last].tolist(), last.tolist(), strict=True):
        turns = flat.trajectories[owner].turns
        total = total_reward((turn.reward, turn.info) for turn in turns)
        if math.isclose(total, whole[owner], rel_tol=1e-9, abs_tol=1e-9):
            whole[owner] = total
        elif flat.valid[owner]:
            earned[row] += whole[owner] - total
    return earned, whole


def _find(name: Any, options: dict[str, Any], arguments: list[str]) -> Callable[..., Any] | None:
    if name is not None and name not in _NAMES:
        raise UsageError(
            f"advantage={name!r} is neither a function nor an available name{did_you_mean(str(name), _NAMES)}"
        )
    function = None if name is None else getattr(advantages, name)
    known = [] if function is None else [key for key in inspect.signature(function).parameters if key not in _DATA]
    for option in options:
        if option not in known:
            raise UsageError(f"advantage={name!r} has no option {option!r}{did_you_mean(option, [*known, *arguments])}")
    return function
