"""VAGEN's prompt formats: which tags a reply has, in which order, and how actions are read from it."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.images import IMAGE_MARK
from asyncrollout.validation import did_you_mean

_INSIDE_THINK = ("observation", "reasoning", "prediction")
_GAPS = ("gap1", "gap2")


class ReplyFormat(msgspec.Struct, frozen=True):
    """The tags of a reply in their order; those `inside` are in `<think>`.

    `whole` replies have nothing around their tags, or no action is read. With `gaps`, any text may stand between tags.
    """

    tags: tuple[str, ...]
    inside: tuple[str, ...] = ()
    whole: bool = False
    gaps: bool = False

    @property
    def shape(self) -> str:
        """The form of a reply, to be shown in a prompt."""
        inner = "".join(f"<{tag}>...</{tag}>" for tag in self.inside) or "..."
        parts = [f"<{tag}>{inner if tag == 'think' else '...'}</{tag}>" for tag in self.tags]
        return " your reasoning ".join(parts) if self.gaps else "".join(parts)


def _think(*inside: str) -> ReplyFormat:
    return ReplyFormat(("think", "answer"), inside)


_BASES = {
    "grounding": _think("observation", "reasoning"),
    "worldmodeling": _think("reasoning", "prediction"),
    "grounding_worldmodeling": _think(*_INSIDE_THINK),
}
STYLES = ("", "_symbolic", "_structured")
"""How states are described in such a reply: in words, as a grid of symbols, or as data."""

LEGACY: dict[str, ReplyFormat] = {
    "free_think": ReplyFormat(("think", "answer"), whole=True),
    "no_think": ReplyFormat(("answer",), whole=True),
    **{f"{base}{style}": reply for base, reply in _BASES.items() for style in STYLES},
}
"""The formats of VAGEN's first version, whose environments are called `sokoban` and `frozenlake`."""

CURRENT: dict[str, ReplyFormat] = {
    "free_think": ReplyFormat(("think", "answer")),
    "wm": ReplyFormat(("observation", "think", "answer", "prediction")),
    "free_wm": ReplyFormat(("observation", "answer", "prediction"), gaps=True),
}
"""The formats of VAGEN as it is, whose environments are called `Sokoban` and `FrozenLake`."""


def find_format(name: Any, known: dict[str, ReplyFormat], env: str) -> ReplyFormat:
    if name not in known:
        raise UsageError(f"{env}: prompt_format={name!r:.100} is not a format{did_you_mean(str(name), known)}")
    return known[name]


class ReadReply(msgspec.Struct, frozen=True):
    """A reply with the texts of its tags, by VAGEN's keys in `info`, and the actions it names."""

    actions: tuple[str, ...]
    format_correct: bool
    info: dict[str, Any]


def read_legacy(reply: str, form: ReplyFormat, separator: str, most: int, special: Sequence[str] | None) -> ReadReply:
    """As VAGEN's first version reads replies: special tokens are removed, and names keep their case."""
    raw = reply.replace(IMAGE_MARK, "")
    is_correct = _texts(raw.strip(), form, whole=True) is not None
    texts = None if form.whole and not is_correct else _texts(raw, form)
    found = {} if texts is None else {tag: _cleaned(text, special) for tag, text in texts.items()}
    if texts is not None and form.inside:
        found["think"] = _cleaned("".join(f"<{tag}>{texts[tag]}</{tag}>" for tag in form.inside), special)
    actions, answer = _actions(found.get("answer", ""), separator, most)
    if answer is not None:
        found["answer"] = f" {separator} ".join(answer)
    info = {"llm_raw_response": raw, "llm_response": _written(form, found), **_contents(form, found)}
    return ReadReply(actions, is_correct, {"think_content": "", **info, **_outcome(actions, is_correct)})


def read_current(reply: str, form: ReplyFormat, separator: str, most: int) -> ReadReply:
    """As VAGEN reads replies: text around them is allowed, and names have no case."""
    texts = _texts(reply, form)
    found = {tag: text.strip() for tag, text in (texts or {}).items()}
    actions, answer = _actions(found.get("answer", "").lower(), separator, most)
    if answer is not None:
        found["answer"] = separator.join(answer)
    info = {"llm_raw_response": reply, "llm_response": _written(form, found), **_contents(form, found)}
    if form.gaps:
        between = " ".join(found[gap] for gap in _GAPS if found.get(gap))
        info |= {"think_content": between, "reasoning_content": between}
    elif "observation" in form.tags:
        info["reasoning_content"] = info["think_content"]
    is_correct = texts is not None
    return ReadReply(actions, is_correct, {**info, **_outcome(actions, is_correct)})


def _texts(reply: str, form: ReplyFormat, *, whole: bool = False) -> dict[str, str] | None:
    """What stands between the tags, or None if a tag is missing or in another place.

    Each text ends at the first place where the next tags follow, which is what a lazy regular expression finds. Looking
    for one place after the other takes linear time, where such an expression may take forever on a model's loops.
    """
    names, marks = _layout(form)
    first, *others = marks
    match = re.compile(rf"\s*{first}").match(reply) if whole else re.compile(first).search(reply)
    texts = {}
    for place, (name, mark) in enumerate(zip(names, others, strict=True)):
        if match is None:
            return None
        start = match.end()
        is_last = place == len(others) - 1
        match = re.compile(rf"{mark}\s*\Z" if whole and is_last else mark).search(reply, start)
        if match is not None:
            texts[name] = reply[start : match.start()]
    return None if match is None else texts


@cache
def _layout(form: ReplyFormat) -> tuple[list[str], list[str]]:
    """The names of the texts in a reply, and the tags before, between and after them as patterns."""
    names: list[str] = []
    marks = [""]
    for place, tag in enumerate(form.tags):
        if place and form.gaps:
            names.append(_GAPS[place - 1])
            marks.append("")
        elif place:
            marks[-1] += r"\s*"
        marks[-1] += f"<{tag}>"
        inner = form.inside if tag == "think" else ()
        for at, below in enumerate(inner):
            marks[-1] += rf"\s*<{below}>"
            names.append(below)
            marks.append(f"</{below}>" + (r"\s*" if at == len(inner) - 1 else ""))
        if not inner:
            names.append(tag)
            marks.append("")
        marks[-1] += f"</{tag}>"
    return names, marks


def _actions(answer: str, separator: str, most: int) -> tuple[tuple[str, ...], list[str] | None]:
    """The names in an answer that are played; if there are more of them, also these as the answer to keep."""
    names = [name.strip() for name in answer.split(separator) if name.strip()]
    return tuple(names[:most]), names[:most] if len(names) > most else None


def _cleaned(text: str, special: Sequence[str] | None) -> str:
    for token in special or ():
        text = text.replace(token, "").strip()
    return text


def _written(form: ReplyFormat, found: dict[str, str]) -> str:
    return "".join(f"<{tag}>{found.get(tag, '').strip()}</{tag}>" for tag in form.tags)


def _contents(form: ReplyFormat, found: dict[str, str]) -> dict[str, Any]:
    named = {"action" if tag == "answer" else tag: found.get(tag, "") for tag in (*form.tags, *form.inside)}
    return {f"{name}_content": text for name, text in named.items()}


def _outcome(actions: Sequence[str], is_correct: bool) -> dict[str, Any]:
    return {"actions": [*actions], "format_correct": is_correct}
