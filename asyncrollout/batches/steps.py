"""Turns as steps, for agents that see and do numbers: every array has one entry for each step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.batches.flat_turns import FlatTurns, Floats
from asyncrollout.errors import UsageError
from asyncrollout.trajectories import Remembered, StopReason
from asyncrollout.types import Observation

_NUMBERS = "biufc"


def step_arrays(played: FlatTurns, credit: Floats | None) -> dict[str, Any]:
    """One row for each step, in order; `final_observations` and `trajectory_rewards` have one for each trajectory."""
    last = np.diff(played.trajectory, append=-1) != 0
    by_itself = np.array([each.stop_reason is StopReason.TERMINATED for each in played.trajectories])
    seen = [_raw(turn.observation) for turn in played.turns]
    finals = [_raw(trajectory.final) for trajectory in played.trajectories]
    remembered = [turn.observation for turn in played.turns if isinstance(turn.observation, Remembered)]
    states = [each.state for each in remembered]
    if 0 < len(states) < len(seen):
        raise UsageError("the batch mixes agents that record the state of their memory with others: split it")
    observations = _stacked("observation", seen, played.name)
    arrays = {
        "observations": observations,
        "actions": _stacked("action", [turn.action for turn in played.turns], played.name),
        "rewards": played.turn_reward,
        "dones": last,
        "terminated": last & by_itself[played.trajectory],
        "versions": np.array([turn.version for turn in played.turns], dtype=np.int32),
        "turn": played.turn,
        "final_observations": _finals(played, finals, _pick(observations, 0)),
        "trajectory_rewards": played.reward,
        **played.columns(played.trajectory),
    }
    known = next((state for state in states if state is not None), None)
    if known is not None:
        begin = _zeros(known)  # before its first step an episode has no state yet
        filled = [begin if state is None else state for state in states]
        arrays["states"] = _stacked("state", filled, played.name)
    if (logprobs := _logprobs(played)) is not None:
        arrays["old_logprobs"] = logprobs
    if credit is not None:
        arrays["advantages"] = credit
    return arrays


def _raw(observation: Any) -> Any:
    if isinstance(observation, Remembered):
        observation = observation.observation
    return observation.data if isinstance(observation, Observation) else observation


def _finals(played: FlatTurns, finals: list[Any], first: Any) -> Any:
    """The last observation of each trajectory, like the `first` one of all; zeros for one that failed without any."""
    filled = [
        _zeros(first) if final is None and not valid else final
        for final, valid in zip(finals, played.valid.tolist(), strict=True)
    ]
    uids = ["", *[trajectory.uid for trajectory in played.trajectories]]
    stacked = _stacked("final observation", [first, *filled], lambda row: f"trajectory {uids[row]!r}")
    return _pick(stacked, slice(1, None))


def _pick(arrays: Any, rows: int | slice) -> Any:
    return {key: _pick(part, rows) for key, part in arrays.items()} if isinstance(arrays, dict) else arrays[rows]


def _zeros(value: Any) -> Any:
    return {key: _zeros(part) for key, part in value.items()} if isinstance(value, dict) else np.zeros_like(value)


def _stacked(what: str, values: Sequence[Any], name: Callable[[int], str]) -> Any:
    """Values of one shape as an array, dicts of them as a dict of arrays."""
    if isinstance(values[0], dict):
        keys = values[0].keys()
        for row, value in enumerate(values):
            if not isinstance(value, dict) or value.keys() != keys:
                raise UsageError(f"{name(row)}: its {what} does not have the keys {list(keys)} of the first one")
        return {key: _stacked(f"{what}[{key!r}]", [value[key] for value in values], name) for key in keys}
    parts = [_array(value) for value in values]
    for row, part in enumerate(parts):
        if part is None:
            kind = type(values[row]).__name__
            raise UsageError(f"{name(row)}: its {what} is a {kind}, not numbers; form='texts' or 'tokens' needs none")
        if parts[0] is not None and part.shape != parts[0].shape:
            raise UsageError(
                f"{name(row)}: its {what} has shape {part.shape}, the first one {parts[0].shape}: "
                "steps of one batch must be alike"
            )
    return np.stack([part for part in parts if part is not None])


def _array(value: Any) -> NDArray[Any] | None:
    """Numbers as an array; None if it is something else."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists that do not make a rectangle
        return None
    return array if array.dtype.kind in _NUMBERS else None


def _logprobs(played: FlatTurns) -> NDArray[np.float32] | None:
    found = [turn.logprobs for turn in played.turns]
    if all(logprobs is None for logprobs in found):
        return None
    for row, logprobs in enumerate(found):
        if logprobs is None or len(logprobs) != 1:
            told = "none" if logprobs is None else f"{len(logprobs)} of them"
            raise UsageError(f"{played.name(row)}: a step has one logprob, that of its action, and this one has {told}")
    return np.concatenate([part for part in found if part is not None], dtype=np.float32, casting="unsafe")
