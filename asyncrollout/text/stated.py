r"""The answer that a text states, without what is around it: bold, quotes, math signs, `\boxed{}`, a full stop."""

import re
from collections import deque

_LEAD = re.compile(r"\banswer[*_`]*+(?:\s++is\b(?:[*_`]*+:)?+|:)[*_`]*+", re.IGNORECASE)
_LAST_LEAD = re.compile(r".*(?::(?=[\s*`])|\bis\b)")
_SENTENCE_END = re.compile(r"[.!?](?=\s)")
_BOXED = "\\boxed{"
_LONGEST_GROUP = 1_000

_LOOSE = " \t\r\n*`"  # never a part of an answer's ends, so they need no partner
_CLOSING = ".,;:!?" + _LOOSE
_PAIRS = (
    *(("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")),
    *(('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019")),
)
_COMMANDS = (_BOXED, "\\text{", "\\textbf{", "\\mathbf{", "\\mathrm{", "\\mbox{")


def find_stated(text: str, *, tagged: bool = False) -> str | None:
    r"""The answer that a text states, undressed; None if there is none.

    It is the last `\boxed{..}`, or what follows the last "answer is" or "answer:" if that is later. Without either it
    is all of a `tagged` text, and of prose the last line, or the part of that after a colon or an "is".
    """
    led = find_led(text)
    if led is not None:
        return led
    if tagged:
        return undress(text) or None
    line = text.rstrip().rpartition("\n")[2]
    return undress(line[found.end() :] if (found := _LAST_LEAD.match(line)) else line) or None


def find_led(text: str) -> str | None:
    r"""The answer that a text calls so, undressed: in `\boxed{..}`, or after "answer is" or "answer:"."""
    last = deque(_LEAD.finditer(text), maxlen=1) if "answer" in text.casefold() else ()
    boxed = text.rfind(_BOXED)
    if boxed >= 0 and (not last or boxed > last[0].start()):
        start = boxed + len(_BOXED)
        end = _closing_brace(text, start)
        return undress(text[start : start + _LONGEST_GROUP if end is None else end]) or None
    if not last:
        return None
    line = text[last[0].end() :].lstrip(_LOOSE).partition("\n")[0]
    return undress(_SENTENCE_END.split(line, maxsplit=1)[0]) or None


def undress(text: str) -> str:
    r"""Without what is around an answer: bold, quotes, math signs, `\boxed{..}`, `\text{..}`, closing punctuation.

    However many layers there are: each costs its own length, as nothing is copied before the end.
    """
    if text[:1].isalnum() and text[-1:].isalnum():
        return text  # nothing that is taken off begins or ends so
    start, end = _trimmed(text, 0, len(text))
    while (inner := _trimmed(text, *_unwrapped(text, start, end))) != (start, end):
        start, end = inner
    return text[start:end]


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start] in _LOOSE:
        start += 1
    while start < end and text[end - 1] in _CLOSING:
        end -= 1
    return start, end


def _unwrapped(text: str, start: int, end: int) -> tuple[int, int]:
    for opening, closing in _PAIRS:
        is_longer = end - start > len(opening) + len(closing)
        if is_longer and text.startswith(opening, start, end) and text.endswith(closing, start, end):
            start, end = start + len(opening), end - len(closing)
    for command in _COMMANDS:
        if text.startswith(command, start, end) and _closing_brace(text, start + len(command)) == end - 1:
            start, end = start + len(command), end - 1
    return start, end


def _closing_brace(text: str, start: int) -> int | None:
    """Where the group that begins at `start` ends, if it does so soon."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[start : start + _LONGEST_GROUP]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return start + brace.start()
    return None
