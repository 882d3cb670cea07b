"""What models read of Sokoban and WebShop: the same facts as verl-agent's prompts, in the same order."""

from collections.abc import Mapping, Sequence
from typing import Any

IMAGE = "<image>"
"""Where a processor puts the tokens of a picture."""

_LONGEST_WITH_HISTORY = 13_000  # characters; a longer prompt is given without its history

_SOKOBAN = "You are an expert player of Sokoban."

_SYMBOLS = """\
The room is a grid of these symbols:
- # is a wall. You cannot walk through it, and nothing can be pushed into it.
- _ is floor, where you can walk and push boxes.
- O is a target, where a box belongs.
- X is a box, which you push onto a target.
- P is you, the player.
- √ is a box on a target.
- S is you on a target."""

_GOAL = "Goal: push every box (X) onto a target (O). You win once all boxes are on targets."

_RULES = """\
Rules:
- Boxes can be pushed and never pulled: plan ahead, so that none gets stuck.
- Neither you nor a box can go through a wall{wall}.
- A box in a corner or along a wall may never move again: avoid such traps."""

_VISUAL_GOAL = "Your goal is to push every box onto a target. You win once all boxes are on targets."

_TILES = """\
The picture shows:
- You: a blue disc with two white eyes.
- Box: a brown crate with a dark cross. It turns green on a target.
- Target: a light tile with a red frame and a red cross, where a box belongs."""

_MOVES = "Your possible actions are: up, down, left, right."

_ONE_MOVE = """\
Choose exactly ONE action for this step.
First reason step by step: where boxes and targets are, how a box gets to a target, which corners and walls to avoid. \
Put your reasoning between <think> and </think>.
Then choose one of the possible actions and put it between <action> and </action>."""

_SHOP = "You are an expert agent that shops in the WebShop online store."

_ONE_CLICK = """\
Choose one action for this step.
First reason step by step about the situation, and about which action brings you closer to what you want to buy. \
Put your reasoning between <think> and </think>.
Then choose one of the possible actions and put it between <action> and </action>."""

History = Sequence[Mapping[str, Any]]


def sokoban_prompt(room: str, history: History) -> str:
    intro = (_SOKOBAN, _SYMBOLS, _GOAL, _RULES.format(wall=" (#)"))
    return "\n\n".join([*intro, f"{_past(history)}\n{room}\n{_MOVES}", _ONE_MOVE])


def visual_sokoban_prompt() -> str:
    """A picture says all: no history is shown, as in verl-agent."""
    intro = (f"{_SOKOBAN} {_VISUAL_GOAL}", _RULES.format(wall=""), _TILES)
    return "\n\n".join([*intro, f"You see the room in this picture: {IMAGE}\n{_MOVES}", _ONE_MOVE])


def webshop_prompt(task: str, page: str, history: History, available: Sequence[str]) -> str:
    actions = "\n".join(f"'{action}'," for action in available)
    prompt = "\n".join(
        [
            _SHOP,
            f"Your task is to: {task}",
            f"{_past(history)}\n{page}",
            f"Your possible actions are:\n[\n{actions}\n]",
            "",
            _ONE_CLICK,
        ]
    )
    is_too_long = history and len(prompt) > _LONGEST_WITH_HISTORY
    return webshop_prompt(task, page, (), available) if is_too_long else prompt


def _past(history: History) -> str:
    """How many steps were taken, the last of them, and which one comes now."""
    if not history:
        return "You see now:"
    taken = history[-1]["step"]
    seen = "\n".join(
        f"[Step {one['step']}: you saw '{one['observation']}' and chose '{one['action']}']" for one in history
    )
    return (
        f"So far you have taken {taken} step(s). These are your last {len(history)} observations and actions:\n{seen}\n"
        f"This is step {taken + 1}. You see now:"
    )
