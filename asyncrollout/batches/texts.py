"""Turns as conversations, for trajectories without token ids."""

from typing import Any, NamedTuple

import numpy as np

from asyncrollout.batches.flat_turns import FlatTurns, Floats
from asyncrollout.errors import UsageError
from asyncrollout.trajectories import Trajectory, Turn
from asyncrollout.types import Observation, total_reward

Messages = list[dict[str, Any]]


class _Row(NamedTuple):
    messages: Messages
    replies: list[int]  # places among them
    turns: slice  # of the batch


def text_arrays(flat: FlatTurns, advantages: Floats | None, *, by_turn: bool) -> dict[str, Any]:
    """A row per trajectory, or per turn, `by_turn` or where turns saw only a window of the conversation.

    The last message of a row is a reply.
    """
    rows: list[_Row] = []
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


def _rows(trajectory: Trajectory, start: int, *, by_turn: bool) -> list[_Row]:
    """The rows of a trajectory whose first turn is number `start`: one, or one for each turn."""
    messages = trajectory.messages or _conversation(trajectory)
    replies = _places_of_replies(trajectory, messages)
    system = messages[:1] if messages[0].get("role") == "system" else []
    firsts = [max(turn.first_message, len(system)) for turn in trajectory.turns]
    if not by_turn and all(first == len(system) for first in firsts):
        return [_Row(messages[: replies[-1] + 1], replies, slice(start, start + len(replies)))]
    seen = [system + messages[first : reply + 1] for first, reply in zip(firsts, replies, strict=True)]
    return [_Row(said, [len(said) - 1], slice(start + turn, start + turn + 1)) for turn, said in enumerate(seen)]


def _places_of_replies(trajectory: Trajectory, messages: Messages) -> list[int]:
    """Where the turns' own replies are: an assistant also speaks in the examples of a prompt."""
    places = [turn.message for turn in trajectory.turns]
    if trajectory.messages and min(places) >= 0:
        if all(place < len(messages) for place in places):
            return places
        raise UsageError(f"trajectory {trajectory.uid!r} has a turn whose reply is not among its messages")
    found = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if len(found) < len(places):
        raise UsageError(
            f"trajectory {trajectory.uid!r} has {len(places)} turns, "
            f"but {len(found)} replies in its messages: form='texts' cannot show it"
        )
    if len(found) > len(places) + (not trajectory.valid):  # what a failure left behind is a reply at most
        raise UsageError(
            f"trajectory {trajectory.uid!r} has {len(places)} turns and {len(found)} messages of an assistant, and "
            "does not say which of them are its replies: Turn(message=...) is the place of each"
        )
    return found[: len(places)]


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
