"""Reading a model's reply: find the answer, split it into actions, or give the reason why there is none.

Nothing here raises or takes long, on any reply: models in training write megabytes of anything. Tags are found
with `rfind`, and only the end of prose is searched.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Generic, TypeVar

import msgspec

from asyncrollout.images import IMAGE_MARK
from asyncrollout.text.stated import find_led, find_stated
from asyncrollout.types import Parsed, TextOptions

LONGEST = 32_768
"""How many characters of an answer, or of the end of an untagged reply, are read."""

_FURTHEST_TAG = 8 * LONGEST  # from the end
_TAGS = ("answer", "action")
_WORD = re.compile(r"[\w-]+")
_NO_IMAGE = "(image)"  # a mark that a reply has written stands for no picture
_LONGEST_SHOWN = 100  # characters of an answer in a reason
_DRESSING = " \t\r\n.,;:!\"'`*_[](){}<>"


class StatedAnswer(msgspec.Struct, frozen=True):
    """The part of a reply that actions are read from, and its tag, if any; or the reason why there is none."""

    text: str = ""
    tag: str = ""
    reason: str = ""

    @property
    def tagged(self) -> bool:
        return bool(self.tag)


E = TypeVar("E")


class Projecting(Generic[E]):
    """Base class of text interfaces that read replies without the env: override `project`, and add the prompts.

    `create_projection_function` uses its `project`, and its `default_action` for an invalid reply.
    """

    default_action: Any = ""

    def __init__(self, env: E, options: TextOptions) -> None:
        self._env = env
        self._options = options

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        """The actions of a reply; by default, the text of its answer."""
        return read_reply(reply, options, str)

    def parse(self, reply: str) -> Parsed:
        return self.project(reply, self._options)


def find_answer(reply: str, *, strict: bool = False, tags: tuple[str, ...] = _TAGS) -> StatedAnswer:
    """The content of the last `<answer>` or `<action>` tag (or other `tags`), else the prose outside `<think>`.

    `strict` requires the whole reply to be `<think>..</think><answer>..</answer>`, and does not accept `<action>`.
    """
    answer = _find_strict(reply, tags) if strict else _find_lenient(reply, tags)
    if len(answer.text) > LONGEST and answer.tagged:
        return StatedAnswer(reason=f"the answer is longer than {LONGEST} characters")
    return answer


def read_reply(
    reply: str,
    options: TextOptions,
    read: Callable[[str], Any],
    find_bare: Callable[[str], str | None] | None = None,
    *,
    several: bool = True,
) -> Parsed:
    """The actions of a reply.

    `read` turns the text of one action into an action, or None; unless strict, it is also tried on what that text
    states, undressed: "**up**." and "The answer is up" are up. `find_bare` finds the text of the one action in prose
    without tags. Unless `several`, the whole answer is one action.
    """
    answer = find_answer(reply, strict=options.strict)
    if answer.reason:
        return Parsed((), valid=False, reason=answer.reason)
    if answer.tagged or len(answer.text) <= LONGEST:
        texts = _split(answer.text, options) if several else [answer.text]
        parsed = _read_all(texts, read if options.strict else partial(_read_stated, read=read))
        if parsed.valid or answer.tagged:  # valid without tags: the reply is its actions and nothing else
            return parsed
    bare = (find_bare(answer.text[-LONGEST:]) if find_bare else None) or find_led(answer.text[-LONGEST:])
    if bare is None:
        return Parsed((), valid=False, reason="no <answer> tag, and no action in the text outside <think>")
    return _read_all([bare], read)


def read_choice(
    reply: str,
    options: TextOptions,
    choices: Mapping[str, Any],
    meaning: Callable[[Any], Any] = repr,
    *,
    plainly: Callable[[str], str] = str,
) -> Parsed:
    """The actions of a reply, for named actions; `choices` maps each name, in lower case, to its action.

    Only whole words count, and only one name per action: "jump" is not up, "up or down" is invalid. Several names are
    one if their actions have the same `meaning`. `plainly` rewrites an answer before names are searched in it; it never
    gets more than the part of a reply that is read.
    """

    def read(text: str) -> Any:
        text = plainly(text)
        plain = " ".join(text.split()).strip(_DRESSING).lower()
        if plain in choices or options.strict:
            return choices.get(plain)
        return choices.get(_only_word(text, choices, meaning) or "")

    return read_reply(reply, options, read, lambda text: _only_word(plainly(text), choices, meaning))


def turn_format(options: TextOptions, example: str = "your action", *, most: int | None = None) -> str:
    """The paragraph of a system prompt that says how to reply; `most` caps the number of actions."""
    shape = f"{'<think> your reasoning </think>' if options.think else ''}<answer> {example} </answer>"
    most = min(limit for limit in (options.max_actions_per_turn, options.max_actions_per_traj, most) if limit)
    if most == 1:
        return f"Always reply in this form: {shape}"
    return (
        f"Always reply in this form: {shape}\n"
        f"You can give up to {most} actions in one reply, "
        f"separated by {options.separator}, such as <answer> {example} {options.separator} {example} </answer>"
    )


def _find_strict(reply: str, tags: tuple[str, ...]) -> StatedAnswer:
    reply = reply.strip()
    tags = tuple(tag for tag in tags if tag != "action")
    not_so = "not of the form " + " or ".join(f"<think>..</think><{tag}>..</{tag}>" for tag in tags)
    if not reply.startswith("<think>"):
        return StatedAnswer(reason=f"{not_so}: it does not begin with <think>")
    tag = next((tag for tag in tags if reply.endswith(f"</{tag}>")), None)
    if tag is None:
        return StatedAnswer(reason=f"{not_so}: it does not end with {' or '.join(f'</{tag}>' for tag in tags)}")
    thought_end = reply.find("</think>")
    start = reply.rfind(f"<{tag}>")
    if thought_end < 0 or start < thought_end or reply[thought_end + len("</think>") : start].strip():
        return StatedAnswer(reason=f"{not_so}: </think> is not followed by one <{tag}>")
    content = reply[start + len(tag) + 2 : -len(tag) - 3]
    if f"</{tag}>" in content:
        return StatedAnswer(reason=f"{not_so}: there is more than one </{tag}>")
    return _tagged(content, tag)


def _find_lenient(reply: str, tags: tuple[str, ...]) -> StatedAnswer:
    """The last tag outside thoughts, else the one that ends an unclosed thought, else the prose."""
    said = _outside_thoughts(reply[:-LONGEST] + _odd_tag(tags).sub(_plain_tag, reply[-LONGEST:]), tags)
    for part in said:
        found = _last_tag(part[-_FURTHEST_TAG:], tags)
        if found is not None:
            return _tagged(*found)
    for part in said[:2]:
        if part.strip():
            return StatedAnswer(text=part.strip())
    return StatedAnswer(reason="the reply is empty" if not reply.strip() else "the reply has nothing outside <think>")


@cache
def _odd_tag(tags: tuple[str, ...]) -> re.Pattern[str]:
    """Matches misspelt tags: upper case, spaces, or <thinking>."""
    names = "|".join((*tags, "think"))
    return re.compile(rf"<(?!(?-i:/?(?:{names})>))\s?/?\s?(?:{names}|thinking)\s?>", re.IGNORECASE)


def _outside_thoughts(reply: str, tags: tuple[str, ...]) -> tuple[str, str, str]:
    """The parts of a reply to read, in this order; the last one for its tag only.

    Thoughts end at the last `</think>`, even without a `<think>`, which the prompt may be pre-filled with. An unclosed
    thought after that runs to the end of the reply; if it ends with an answer, its `</think>` was forgotten.
    """
    before, closed, after = reply.rpartition("</think>")
    after, opened, thought = after.partition("<think>")
    before = before.rpartition("<think>")[0].rpartition("</think>")[2] if closed else ""
    closing = tuple(f"</{tag}>" for tag in tags)
    forgotten = thought if opened and thought.rstrip().endswith(closing) else ""
    return after, before, forgotten


def _plain_tag(odd: re.Match[str]) -> str:
    return "".join(odd[0].lower().split()).replace("thinking", "think")


def _last_tag(text: str, tags: tuple[str, ...]) -> tuple[str, str] | None:
    """The content of the last closed tag, else of the last open one (a stop string cut it off)."""
    closed = [(*span, tag) for tag in tags if (span := _closed(text, tag))]
    if closed:
        start, end, tag = max(closed)
        return text[start:end], tag
    opened = [(at + len(tag) + 2, tag) for tag in tags if (at := text.rfind(f"<{tag}>")) >= 0]
    if not opened:
        return None
    start, tag = max(opened)
    return text[start:], tag


def _closed(text: str, tag: str) -> tuple[int, int] | None:
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    if start < 0:
        return None
    start += len(tag) + 2
    return start, text.find(f"</{tag}>", start)


def _tagged(content: str, tag: str) -> StatedAnswer:
    content = content.strip()
    return StatedAnswer(text=content, tag=tag) if content else StatedAnswer(reason="the answer is empty")


def _split(text: str, options: TextOptions) -> list[str]:
    parts = (part.strip() for part in text.split(options.separator))
    return [part for part in parts if part][: options.max_actions_per_turn]


def _read_all(texts: Iterable[str], read: Callable[[str], Any]) -> Parsed:
    actions = []
    for text in texts:
        action = read(text)
        if action is None:
            return Parsed((), valid=False, reason=f"not an action: {text[:100]!r}")
        actions.append(action)
    if not actions:
        return Parsed((), valid=False, reason="the answer is empty")
    return Parsed(tuple(actions))


def _read_stated(text: str, read: Callable[[str], Any]) -> Any:
    action = read(text)
    return read(find_stated(text, tagged=True) or "") if action is None else action


def _only_word(text: str, choices: Mapping[str, Any], meaning: Callable[[Any], Any]) -> str | None:
    """The one name in `text`; None if there is none, or several with different actions."""
    words = {word.lower() for word in {*_WORD.findall(text)}}
    lower = text.lower()
    found = [name for name in choices if _is_named(name, words, lower)]
    meant = {meaning(choices[name]) for name in found}
    return found[0] if len(meant) == 1 else None


def _is_named(name: str, words: set[str], lower: str) -> bool:
    """Whether a name is among the words, or stands in the text as a phrase; a bare number could mean anything."""
    if name in words:
        return not name.isdigit()
    parts, phrase = _phrase(name)
    return phrase is not None and parts <= words and name in lower and phrase.search(lower) is not None


@cache
def _phrase(name: str) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """The words of a name, and what finds it where it is more than one word."""
    if _WORD.fullmatch(name):
        return frozenset(), None
    return frozenset(_WORD.findall(name)), re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")


def after_invalid(text: str, reason: str | None) -> str:
    """The text after a line that says why the last reply was invalid, if it was."""
    return f"Your last reply was invalid: {reason.replace(IMAGE_MARK, _NO_IMAGE)}.\n{text}" if reason else text


def why_unread(reply: str, tags: tuple[str, ...] = _TAGS) -> str:
    """Why no action was read from a reply that must have it in one of these tags."""
    answer = find_answer(reply, tags=tags)
    if answer.reason or answer.tagged:
        return answer.reason or f"not an action: {answer.text[:_LONGEST_SHOWN]!r}"
    return f"no {' or '.join(f'<{tag}>' for tag in tags)} tag"
