"""Turns as steps, for agents with numeric observations and actions: one row per step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.batches.flat_turns import FlatTurns, Floats
from asyncrollout.errors import UsageError
from asyncrollout.trajectories import Remembered, StopReason
from asyncrollout.types import Observation

_NUMBERS = "biufc"


def step_arrays(flat: FlatTurns, advantages: Floats | None) -> dict[str, Any]:
    """One row per step, in order; only `final_observations` has one per trajectory."""
    last = np.diff(flat.trajectory, append=-1) != 0
    by_itself = np.array([each.stop_reason is StopReason.TERMINATED for each in flat.trajectories])
    seen = [_data(turn.seen) for turn in flat.turns]
    finals = [_data(trajectory.final) for trajectory in flat.trajectories]
    if 0 < sum(isinstance(turn.observation, Remembered) for turn in flat.turns) < len(seen):
        raise UsageError("the batch mixes agents that record the state of their memory with others: split it")
    observations = _stacked("observation", seen, flat.name)
    arrays = {
        "observations": observations,
        "actions": _stacked("action", [turn.action for turn in flat.turns], flat.name),
        "turn_rewards": flat.turn_reward,
        "dones": last,
        "terminated": last & by_itself[flat.trajectory],
        "versions": np.array([turn.version for turn in flat.turns], dtype=np.int32),
        "turn": flat.turn,
        "final_observations": _finals(flat, finals, _pick(observations, 0)),
        **flat.columns(flat.trajectory),
    }
    states = [turn.state for turn in flat.turns]
    known = next((state for state in states if state is not None), None)
    if known is not None:
        begin = _zeros(known)  # before its first step an episode has no state yet
        filled = [begin if state is None else state for state in states]
        arrays["states"] = _stacked("state", filled, flat.name)
    if (logprobs := _logprobs(flat)) is not None:
        arrays["old_logprobs"] = logprobs
    if advantages is not None:
        arrays["advantages"] = advantages
    return arrays


def _data(observation: Any) -> Any:
    return observation.data if isinstance(observation, Observation) else observation


def _finals(flat: FlatTurns, finals: list[Any], first: Any) -> Any:
    """The last observation of each trajectory, shaped like `first`; zeros if it failed before it saw any."""
    filled = [
        _zeros(first) if final is None and not valid else final
        for final, valid in zip(finals, flat.valid.tolist(), strict=True)
    ]
    uids = ["", *[trajectory.uid for trajectory in flat.trajectories]]
    stacked = _stacked("final observation", [first, *filled], lambda row: f"trajectory {uids[row]!r}")
    return _pick(stacked, slice(1, None))


def _pick(arrays: Any, rows: int | slice) -> Any:
    return {key: _pick(part, rows) for key, part in arrays.items()} if isinstance(arrays, dict) else arrays[rows]


def _zeros(value: Any) -> Any:
    return {key: _zeros(part) for key, part in value.items()} if isinstance(value, dict) else np.zeros_like(value)


def _stacked(what: str, values: Sequence[Any], name: Callable[[int], str]) -> Any:
    """Values of one shape as one array; dicts as a dict of arrays."""
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
            raise UsageError(f"{name(row)}: its {what} is a {kind}, not numbers: use form='texts' or 'tokens'")
        if parts[0] is not None and part.shape != parts[0].shape:
            raise UsageError(
                f"{name(row)}: its {what} has shape {part.shape}, the first one {parts[0].shape}: "
                "all steps of a batch must have the same shape"
            )
    return np.stack([part for part in parts if part is not None])


def _array(value: Any) -> NDArray[Any] | None:
    """Numbers as an array; None for anything else."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists that do not make a rectangle
        return None
    return array if array.dtype.kind in _NUMBERS else None


def _logprobs(flat: FlatTurns) -> NDArray[np.float32] | None:
    found = [turn.logprobs for turn in flat.turns]
    if all(logprobs is None for logprobs in found):
        return None
    for row, logprobs in enumerate(found):
        if logprobs is None or len(logprobs) != 1:
            count = 0 if logprobs is None else len(logprobs)
            raise UsageError(f"{flat.name(row)} has {count} logprobs: a step has exactly one, that of its action")
    return np.concatenate([part for part in found if part is not None], dtype=np.float32, casting="unsafe")
