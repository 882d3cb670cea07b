"""How an observation becomes a message to a language model."""

from collections.abc import Callable

from asyncrollout.text.replies import after_invalid
from asyncrollout.types import Outcome

Template = Callable[[int, str, Outcome], str]
"""From the number of the turn (0 is the first), the observation's text, and the whole outcome."""


def plain(turn: int, text: str, outcome: Outcome) -> str:  # noqa: ARG001
    """What the env says, after the reason why the last reply was invalid, if it was."""
    return after_invalid(text, outcome.info.get("invalid_reason"))


def bare(turn: int, text: str, outcome: Outcome) -> str:  # noqa: ARG001
    """What the env says, and nothing else."""
    return text


def ragen(turn: int, text: str, outcome: Outcome) -> str:
    """In RAGEN's form: the reward of the turn before, the turn, the state, and the actions that are left."""
    parts = [f"Reward:\n{outcome.reward:g}\n"] if turn else []
    parts.append(f"Turn {turn + 1}:\nState:\n{text}")
    if (left := outcome.info.get("actions_left")) is not None:
        parts.append(f"You have {left} actions left.")
    return "\n".join(parts)


TEMPLATES: dict[str, Template] = {"plain": plain, "bare": bare, "ragen": ragen}
