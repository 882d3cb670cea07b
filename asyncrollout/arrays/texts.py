"""Turns as conversations, where only texts are known."""

from typing import Any

import numpy as np

from asyncrollout.arrays.played import Floats, Played
from asyncrollout.errors import UsageError
from asyncrollout.trajectories import Trajectory, Turn
from asyncrollout.types import Observation, total_reward

Messages = list[dict[str, Any]]


def text_arrays(played: Played, credit: Floats | None, *, by_turn: bool) -> dict[str, Any]:
    """A row for each trajectory, or, where turns saw a window of the conversation only (or `by_turn`), for each turn.

    A row ends with the reply that its prompt led to.
    """
    messages: list[Messages] = []
    turns: list[slice] = []  # of each row
    start = 0
    for trajectory in played.trajectories:
        samples = _samples(trajectory, by_turn=by_turn)
        size = len(trajectory.turns) // len(samples) if samples else 0
        turns += [slice(start + size * row, start + size * (row + 1)) for row in range(len(samples))]
        messages += samples
        start += len(trajectory.turns)
    firsts = np.array([row.start for row in turns])
    owners = played.trajectory[firsts]
    arrays = {
        "messages": messages,
        "reward": played.reward[owners],
        "turn_reward": np.array([_earned(played.turns[row]) for row in turns]),
        "versions": np.array([min(turn.version for turn in played.turns[row]) for row in turns], dtype=np.int32),
        "sample": played.turn[firsts],
        **played.columns(owners),
    }
    if credit is not None:
        arrays["advantage"] = credit[firsts]
    return arrays


def _earned(turns: list[Turn]) -> float:
    return total_reward((turn.reward, turn.info) for turn in turns)


def _samples(trajectory: Trajectory, *, by_turn: bool) -> list[Messages]:
    """The rows of a trajectory: one, or one for each turn."""
    messages = trajectory.messages or _conversation(trajectory)
    replies = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if len(replies) < len(trajectory.turns):
        raise UsageError(
            f"trajectory {trajectory.uid!r} has {len(trajectory.turns)} turns, "
            f"but {len(replies)} replies in its messages: form='texts' cannot show it"
        )
    ends = [place + 1 for place, _ in zip(replies, trajectory.turns, strict=False)]
    system = messages[:1] if messages and messages[0].get("role") == "system" else []
    starts = [max(turn.first_message, len(system)) for turn in trajectory.turns]
    if by_turn or any(start > len(system) for start in starts):
        return [system + messages[start:end] for start, end in zip(starts, ends, strict=True)]
    return [messages[: ends[-1]]] if ends else []


def _conversation(trajectory: Trajectory) -> Messages:
    """Messages for an agent that keeps none: what each turn showed, and the reply."""
    messages = []
    for turn in trajectory.turns:
        seen = turn.observation.text if isinstance(turn.observation, Observation) else turn.observation
        if not isinstance(seen, str):
            raise UsageError(
                f"trajectory {trajectory.uid!r} has no messages, and saw a {type(seen).__name__}: try form='steps'"
            )
        messages += [{"role": "user", "content": seen}, {"role": "assistant", "content": turn.reply}]
    return messages
