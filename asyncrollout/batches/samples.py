"""How the turns of a trajectory make up samples of tokens and conversations.

Nothing else reads `Turn.joined` and `Turn.first_message`: these two functions are what they mean.
"""

from itertools import pairwise
from typing import Any, NamedTuple

from asyncrollout.errors import UsageError
from asyncrollout.trajectories import Trajectory, Turn
from asyncrollout.types import Observation

Messages = list[dict[str, Any]]


class SampleConversation(NamedTuple):
    """What a turn saw, with its reply as the last message; `is_whole` if it saw everything from the beginning."""

    messages: Messages
    is_whole: bool


def has_ids(turn: Turn) -> bool:
    """Whether the tokens of its prompt and its reply are known."""
    return turn.prompt_ids is not None and turn.token_ids is not None


def samples(trajectory: Trajectory) -> list[range]:
    """The turns of each sample; a turn whose prompt does not continue the tokens before it starts a new one."""
    starts = [place for place, turn in enumerate(trajectory.turns) if not place or (has_ids(turn) and not turn.joined)]
    return [range(*ends) for ends in pairwise([*starts, len(trajectory.turns)])]


def conversations(trajectory: Trajectory) -> list[SampleConversation]:
    """What each turn saw and replied: the system message, if there is one, and the turn's window on the messages."""
    messages = trajectory.messages or _messages(trajectory)
    system = messages[:1] if messages[0].get("role") == "system" else []
    found = []
    for turn, reply in zip(trajectory.turns, _reply_places(trajectory, messages), strict=True):
        first = max(turn.first_message, len(system))
        found.append(SampleConversation(system + messages[first : reply + 1], first == len(system)))
    return found


def _reply_places(trajectory: Trajectory, messages: Messages) -> list[int]:
    """Where the turns' own replies are: a prompt's examples are messages of an assistant, too."""
    places = [turn.message for turn in trajectory.turns]
    if trajectory.messages and min(places) >= 0:
        if all(place < len(messages) for place in places):
            return places
        raise UsageError(f"trajectory {trajectory.uid!r} has a turn whose reply is not among its messages")
    found = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if len(found) < len(places):
        raise UsageError(
            f"trajectory {trajectory.uid!r} has {len(places)} turns, but {len(found)} replies in its messages: "
            "form='texts' needs one for each turn"
        )
    if len(found) > len(places) + (not trajectory.valid):  # a failure may leave one reply behind
        raise UsageError(
            f"trajectory {trajectory.uid!r} has {len(places)} turns and {len(found)} messages of an assistant, and "
            "does not say which of them are its replies: set Turn(message=...) to the place of each"
        )
    return found[: len(places)]


def _messages(trajectory: Trajectory) -> Messages:
    """Messages for an agent that keeps none: what each turn saw, and its reply."""
    messages = []
    for turn in trajectory.turns:
        seen = turn.seen.text if isinstance(turn.seen, Observation) else turn.seen
        if not isinstance(seen, str):
            raise UsageError(
                f"trajectory {trajectory.uid!r} has no messages, and saw a {type(seen).__name__}: try form='steps'"
            )
        messages += [{"role": "user", "content": seen}, {"role": "assistant", "content": turn.reply}]
    return messages
