"""Turns as conversations, for trajectories without token ids."""

from typing import Any, NamedTuple

import numpy as np

from asyncrollout.batches.flat_turns import FlatTurns, Floats
from asyncrollout.batches.samples import Messages, conversations
from asyncrollout.trajectories import Trajectory, Turn
from asyncrollout.types import total_reward


class _TextRow(NamedTuple):
    messages: Messages
    replies: list[int]  # places among them
    turns: slice  # of the batch


def text_arrays(flat: FlatTurns, advantages: Floats | None, *, by_turn: bool) -> dict[str, Any]:
    """A row per trajectory, or per turn, `by_turn` or where turns saw only a window of the conversation.

    The last message of a row is a reply.
    """
    rows: list[_TextRow] = []
    start = 0
    for trajectory in flat.trajectories:
        if trajectory.turns:
            rows += _rows(trajectory, start, by_turn=by_turn)
        start += len(trajectory.turns)
    firsts = np.array([row.turns.start for row in rows])
    owners = flat.trajectory[firsts]
    arrays = {
        "messages": [row.messages for row in rows],
        "replies": [row.replies for row in rows],
        "turn_rewards": np.array([_earned(flat.turns[row.turns]) for row in rows]),
        "versions": np.array([min(turn.version for turn in flat.turns[row.turns]) for row in rows], dtype=np.int32),
        "sample": flat.turn[firsts],
        **flat.columns(owners),
    }
    if advantages is not None:
        arrays["advantages"] = advantages[firsts]
    return arrays


def _earned(turns: list[Turn]) -> float:
    return total_reward((turn.reward, turn.info) for turn in turns)


def _rows(trajectory: Trajectory, start: int, *, by_turn: bool) -> list[_TextRow]:
    """The rows of a trajectory whose first turn is number `start`: one, or one per turn."""
    seen = conversations(trajectory)
    if not by_turn and all(each.is_whole for each in seen):
        replies = [len(each.messages) - 1 for each in seen]
        return [_TextRow(seen[-1].messages, replies, slice(start, start + len(seen)))]
    return [
        _TextRow(each.messages, [len(each.messages) - 1], slice(row, row + 1))
        for row, each in enumerate(seen, start=start)
    ]
