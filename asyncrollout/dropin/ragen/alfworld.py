"""Single-turn prompts of ALFWorld, whose states repeat the task and list all that is possible.

The environment is not shipped: this is for one that is registered as `alfworld`, such as RAGEN's own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrollout.text.replies import find_answer

ENV_TYPE = "alfworld"

_LONGEST_PAST = 200  # characters of an observation that is over
_TASK = re.compile(r"Your task is to: (.+)")
_POSSIBLE = re.compile(r"Admissible actions: \[(.*)\]")
_NOT_SEEN = re.compile(
    r"-= Welcome to TextWorld, ALFRED! =-|You have \d+ actions left\.?"
    r"|(?:Admissible actions:|Always output:|Strictly follow this format\.|Max response length:).*"
)


@dataclass(frozen=True)
class AlfworldTemplates:
    """Format strings, one for each line; `past` comes once for each of the last turns."""

    task: str = "Your task is to: {task}."
    taken: str = "You have taken {taken} step(s) so far."
    recent: str = "Your last {shown} observations, and the actions that you chose:"
    past: str = "[Observation {turn}: '{observation}', action {turn}: '{action}']"
    current: str = "This is step {turn}. You observe: {observation}"
    possible: str = "Your possible actions are: [{actions}]"
    warning: str = "Your last reply had no valid action, so the state is the same as before."
    reply: str = (
        "It is your turn. You have {actions_left} actions left. "
        "Always reply in exactly this form, without any other text: {format}{length}"
    )


def write_turn(
    texts: AlfworldTemplates, history: Sequence[Mapping[str, Any]], start: int, *, warns: bool, form: str, length: str
) -> str:
    """The last turn of a history, after the turns from `start` on."""
    last = len(history) - 1
    state = history[last]["state"]
    task = _TASK.search(history[0]["state"])
    lines = [texts.task.format(task=task[1].strip().removesuffix("."))] if task else []
    lines += [texts.taken.format(taken=last)] if last else []
    lines += [texts.recent.format(shown=last - start)] if start < last else []
    for index in range(start, last):
        turn = history[index]
        lines.append(
            texts.past.format(
                turn=index + 1, observation=_shortened(turn["state"]), action=_action(turn["llm_response"])
            )
        )
    lines.append(texts.current.format(turn=last + 1, observation=_observation(state)))
    lines += [texts.possible.format(actions=possible[1])] if (possible := _POSSIBLE.search(state)) else []
    lines += [texts.warning] if warns else []
    left = history[last]["actions_left"]
    return "\n".join([*lines, texts.reply.format(actions_left=left, format=form, length=length)])


def _observation(state: str) -> str:
    """Without what other lines of the prompt say."""
    return re.sub(r"\n\s*\n+", "\n", _NOT_SEEN.sub("", state)).strip()


def _shortened(state: str) -> str:
    seen = _observation(state)
    return seen if len(seen) <= _LONGEST_PAST else seen[: _LONGEST_PAST - 3] + "..."


def _action(reply: str) -> str:
    answer = find_answer(reply, tags=("answer",))
    return answer.text.strip() if answer.tagged else reply.strip()
