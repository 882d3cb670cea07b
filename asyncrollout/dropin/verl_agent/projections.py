"""How verl-agent reads replies: `<think>` and `<action>` are both required, and whole words count."""

import re
from collections.abc import Sequence
from typing import Any

from asyncrollout.text.replies import find_answer, read_choice, why_unread
from asyncrollout.types import TextOptions

STILL = 0
ACTIONS = {STILL: "Still", 1: "Up", 2: "Down", 3: "Left", 4: "Right"}

_CHOICES = {name.lower(): action for action, name in ACTIONS.items()}
_ONE_ACTION = TextOptions(max_actions_per_turn=1)
_END = 20  # characters of an untagged reply that are sent to the shop, which cannot read them
_CHINESE = re.compile("[\u4e00-\u9fff]")


def sokoban_projection(actions: Sequence[str]) -> tuple[list[int], list[bool]]:
    """Numbers of moves. An unreadable reply stands still; one without `<think>` is played, but is not valid."""
    found = [_move(reply) for reply in actions]
    valids = [move is not None and _has_thought(reply) for move, reply in zip(found, actions, strict=True)]
    return [STILL if move is None else move for move in found], valids


def webshop_projection(actions: Sequence[str]) -> tuple[list[str], list[bool]]:
    """Actions in lower case. A reply without `<think>` or with Chinese characters is played, but is not valid.

    Of a reply without `<action>` the shop gets the last characters, which do nothing there.
    """
    found = [_tagged(reply) for reply in actions]
    valids = [
        text is not None and _has_thought(reply) and not _CHINESE.search(reply)
        for text, reply in zip(found, actions, strict=True)
    ]
    return [
        reply.lower()[-_END:] if text is None else text.lower() for text, reply in zip(found, actions, strict=True)
    ], valids


def _tagged(reply: str) -> str | None:
    answer = find_answer(reply, tags=("action",))
    return answer.text if answer.tagged else None


def _move(reply: str) -> int | None:
    text = _tagged(reply)
    parsed: Any = None if text is None else read_choice(f"<action>{text}</action>", _ONE_ACTION, _CHOICES)
    return int(parsed.actions[0]) if parsed is not None and parsed.valid else None


def _has_thought(reply: str) -> bool:
    return "<think>" in reply and "</think>" in reply


def why_invalid(reply: str, *, is_shop: bool = False) -> str:
    """Of a reply that a projection calls invalid, for `env.explain_invalid`."""
    if _tagged(reply) is not None:
        if not _has_thought(reply):
            return "no <think> and </think>"
        if is_shop:
            return "it has Chinese characters"
    return why_unread(reply, ("action",))
