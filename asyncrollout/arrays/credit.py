"""What each turn of a batch was worth: `asyncrollout.advantages` by name, or a function of the caller's."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from asyncrollout import advantages
from asyncrollout.arrays.played import Floats, Played
from asyncrollout.checks import nearest
from asyncrollout.errors import UsageError

Advantage = str | Callable[..., ArrayLike] | None
"""A name from `asyncrollout.advantages`, a function `(scores, groups) -> advantages` of trajectories, or none."""

GIGPO = "gigpo"
_NAMES = ["grpo", "dr_grpo", "rloo", "reinforce_pp", "max_rl", "pass_at_k", GIGPO]
_DATA = frozenset({"scores", "groups", "valid", "group", "trajectory", "reward", "anchor"})


def credit(played: Played, advantage: Advantage, options: dict[str, Any], arguments: list[str]) -> Floats | None:
    """The advantage of every turn; 0 for those of trajectories that failed, which no statistic counts either.

    `arguments` are what else the caller could have meant by an unknown option.
    """
    function = advantage if callable(advantage) else _find(advantage, options, arguments)
    if function is None:
        return None
    if advantage == GIGPO:
        return _of_turns(played, function, options)
    return _of_trajectories(played, function, options)[played.trajectory]


def _of_trajectories(played: Played, function: Callable[..., Any], options: dict[str, Any]) -> Floats:
    worth = np.zeros(len(played.trajectories))
    counted = np.flatnonzero(played.valid)
    if counted.size:
        found = np.asarray(function(played.reward[counted], played.group[counted], **options), dtype=np.float64)
        if found.shape != counted.shape or not np.isfinite(found).all():
            name = getattr(function, "__name__", repr(function))
            raise UsageError(f"advantage={name} must give {counted.size} finite numbers, and gave {found!r:.200}")
        worth[counted] = found
    return worth


def _of_turns(played: Played, function: Callable[..., Any], options: dict[str, Any]) -> Floats:
    worth = np.zeros(len(played.turns))
    counted = np.flatnonzero(played.valid[played.trajectory])
    if counted.size:
        turns = [played.turns[row] for row in counted.tolist()]
        owners = played.trajectory[counted]
        worth[counted] = function(
            group=played.group[owners],
            trajectory=owners,
            reward=_with_scores(played)[counted],
            anchor=[turn.anchor for turn in turns],
            valid=[turn.valid for turn in turns],
            **options,
        ).advantage
    return worth


def _with_scores(played: Played) -> Floats:
    """The turns' rewards; what a trajectory's own has beyond them (a score, given at its end) is its last turn's."""
    rewards = played.turn_reward.copy()
    totals = np.bincount(played.trajectory, rewards, minlength=len(played.trajectories))
    last = np.flatnonzero(np.diff(played.trajectory, append=-1))
    for owner, row in zip(played.trajectory[last].tolist(), last.tolist(), strict=True):
        if not math.isclose(totals[owner], played.reward[owner], rel_tol=1e-9, abs_tol=1e-9):
            rewards[row] += played.reward[owner] - totals[owner]
    return rewards


def _find(name: Any, options: dict[str, Any], arguments: list[str]) -> Callable[..., Any] | None:
    if name is not None and name not in _NAMES:
        raise UsageError(f"advantage={name!r} is neither a function nor a known name{nearest(str(name), _NAMES)}")
    function = None if name is None else getattr(advantages, name)
    known = [] if function is None else [key for key in inspect.signature(function).parameters if key not in _DATA]
    for option in options:
        if option not in known:
            raise UsageError(f"advantage={name!r} has no option {option!r}{nearest(option, [*known, *arguments])}")
    return function
