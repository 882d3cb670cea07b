"""The text interface of an env that has none, made from its spaces."""

import inspect
import json
import re
from collections.abc import Hashable
from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.text.replies import (
    LONGEST,
    StatedAnswer,
    find_answer,
    read_choice,
    read_reply,
    turn_format,
)
from asyncrollout.text.spaces import members, values
from asyncrollout.text.spaces.kinds import MOST_IN_ACTION, can_be_written, form_of, kind_of, short
from asyncrollout.text.stated import find_stated
from asyncrollout.types import Observation, Parsed, TextOptions

_LONGEST_SECTION = 1_500  # characters of an env's own documentation
_HEADING = re.compile(r"^[ \t]*#{1,4}[ \t]+(.+)$", re.MULTILINE)


class SpaceText:
    """Describes observations by their space, and reads replies as members of the action space.

    Without an `action_space`, the answer's text is the action. Without an `observation_space`, or if its kind is
    unknown, an observation is described by its value. In a reply without tags, a number is an action only if it is
    what the reply states; a name, or an action written as JSON, may be anywhere in it.
    """

    def __init__(self, env: Any, options: TextOptions) -> None:
        self._space = getattr(env, "action_space", None)
        self._shown = getattr(env, "observation_space", None)
        if self._space is not None and not can_be_written(self._space):
            raise UsageError(
                f"{_name(env)}: its action space {short(self._space)} cannot be written as text; Discrete, Text, Box, "
                f"MultiDiscrete and MultiBinary of up to {MOST_IN_ACTION} numbers, and Dict and Tuple of these can. "
                "Set EnvSpec(text=...), or open it with text=False"
            )
        self._is_text = self._space is None or kind_of(self._space) == "Text"
        # one text per turn, since it may contain the separator
        self._options = msgspec.structs.replace(options, max_actions_per_turn=1) if self._is_text else options
        own = _is_own(env, "action_space")
        self._names = members.names_of(self._space, getattr(env, "unwrapped", env)) if own else {}
        self._choices = {name: number for number, name in self._names.items()}
        self._choices |= {str(number): number for number in self._names}
        self._in_json = kind_of(self._space) in ("Dict", "Tuple")
        self._form = form_of(self._space, self._names) + (", written as JSON" if self._in_json else "")
        self._last: Any = None
        self._restored_anchor: str | None = None
        self.default_action = members.default(self._space)
        self._prompt = self._write_prompt(env)

    def parse(self, reply: str) -> Parsed:
        answer = find_answer(reply, strict=self._options.strict)
        parsed = Parsed((), valid=False, reason=answer.reason) if answer.reason else self._read_answer(answer)
        if parsed.valid:
            return parsed
        return Parsed((), valid=False, reason=f"{parsed.reason}; an action is {self._form}")

    def describe(self, observation: Any) -> str | Observation:
        self._last, self._restored_anchor = observation, None
        pictures: list[Any] = []
        text = values.describe(observation, self._shown, pictures)
        if len(text) > LONGEST:
            text = f"{text[:LONGEST]}... ({len(text)} characters)"
        return Observation(text=text, images=tuple(pictures), data=observation) if pictures else text

    def system_prompt(self) -> str:
        return self._prompt

    def anchor(self) -> Hashable:
        """A key of the last observation described; of an array above 128 KB, of a sample."""
        return values.digest(self._last) if self._restored_anchor is None else self._restored_anchor

    def snapshot(self) -> bytes:
        return str(self.anchor()).encode()

    def restore(self, state: bytes) -> None:
        self._restored_anchor = state.decode()

    def write_action(self, action: Any) -> str:
        """An action as a reply would state it."""
        plain = members.write(self._space, action)
        if isinstance(plain, str):
            return plain
        name = self._names.get(plain) if isinstance(plain, int) else None
        return name or json.dumps(plain, ensure_ascii=False)

    def _read_answer(self, answer: StatedAnswer) -> Parsed:
        # long replies take milliseconds to search, and this is done twice
        brief = f"<think></think><answer>{answer.text}</answer>" if answer.tagged else answer.text[-LONGEST - 1 :]
        if self._names:
            parsed = read_choice(brief, self._options, self._choices)
            if parsed.valid:
                return parsed
        alone = self._options.strict or not (self._in_json or answer.tagged)

        def read(text: str) -> Any:
            return text if self._space is None else members.read(self._space, text, strict=alone)

        find_bare = None if self._is_text else str if self._in_json else _find_number
        return read_reply(brief, self._options, read, find_bare, several=not self._is_text)

    def _write_prompt(self, env: Any) -> str:
        example = "your action" if self._is_text else self.write_action(self.default_action)
        paragraphs = (
            f"You are playing {_name(env)}.",
            _rules(env),
            "" if self._shown is None else f"An observation is {form_of(self._shown)}.",
            f"An action is {self._form}.",
            turn_format(self._options, example),
        )
        return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _find_number(prose: str) -> str | None:
    """What a reply states, without the brackets that a number may stand in."""
    return (find_stated(prose) or "").strip("[]() ") or None


def _name(env: Any) -> str:
    return getattr(getattr(env, "spec", None), "id", None) or type(getattr(env, "unwrapped", env)).__name__


def _is_own(env: Any, space: str) -> bool:
    """Whether a space is the env's own, not a wrapper's."""
    inner = getattr(env, "unwrapped", env)
    return inner is env or bool(getattr(env, space, None) == getattr(inner, space, None))


def _rules(env: Any) -> str:
    """The rules from the class's docstring; the sections are Gymnasium's."""
    wanted = ["description", "rewards", "reward"]
    wanted += [space.replace("_", " ") for space in ("action_space", "observation_space") if _is_own(env, space)]
    doc = type(getattr(env, "unwrapped", env)).__doc__ or ""
    opening, *rest = _HEADING.split(inspect.cleandoc(doc))
    sections = [opening.strip()]
    sections += [
        f"{title.strip()}\n{body.strip()}"
        for title, body in zip(rest[::2], rest[1::2], strict=True)
        if title.strip(" :").lower() in wanted
    ]
    return "\n\n".join(map(_cut, filter(None, sections)))


def _cut(section: str) -> str:
    if len(section) <= _LONGEST_SECTION:
        return section
    return section[:_LONGEST_SECTION].rpartition("\n")[0] + "\n..."
