r"""The answer that a text states, without what is around it: bold, quotes, math signs, `\boxed{}`, a full stop."""

import re
from collections import deque

_LEAD = re.compile(r"\banswer[*_`]*+(?:\s++is\b(?:[*_`]*+:)?+|:)[*_`]*+", re.IGNORECASE)
_LAST_LEAD = re.compile(r".*(?::(?=[\s*`])|\bis\b)")
_SENTENCE_END = re.compile(r"[.!?](?=\s)")
_BOXED = "\\boxed{"
_LONGEST_GROUP = 1_000

_CLOSING = ".,;:!?"
_LOOSE = " \t\r\n*`"  # never a part of an answer's ends, so they need no partner
_PAIRS = (
    *(("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")),
    *(('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019")),
)
_COMMANDS = (_BOXED, "\\text{", "\\textbf{", "\\mathbf{", "\\mathrm{", "\\mbox{")
_MOST_LAYERS = 8


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
    last = deque(_LEAD.finditer(text), maxlen=1)
    boxed = text.rfind(_BOXED)
    if boxed >= 0 and (not last or boxed > last[0].start()):
        start = boxed + len(_BOXED)
        return undress(text[start : _closing_brace(text, start)]) or None
    if not last:
        return None
    line = text[last[0].end() :].lstrip(_LOOSE).partition("\n")[0]
    return undress(_SENTENCE_END.split(line, maxsplit=1)[0]) or None


def undress(text: str) -> str:
    r"""Without what is around an answer: bold, quotes, math signs, `\boxed{..}`, `\text{..}`, closing punctuation."""
    for _ in range(_MOST_LAYERS):
        inner = text.strip(_LOOSE).rstrip(_CLOSING).rstrip(_LOOSE)
        for start, end in _PAIRS:
            if len(inner) > len(start) + len(end) and inner.startswith(start) and inner.endswith(end):
                inner = inner[len(start) : -len(end)]
        for command in _COMMANDS:
            if inner.startswith(command) and _closing_brace(inner, len(command)) == len(inner) - 1:
                inner = inner[len(command) : -1]
        if inner == text:
            break
        text = inner
    return text


def _closing_brace(text: str, start: int) -> int:
    """Where the group that begins at `start` ends."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[start : start + _LONGEST_GROUP]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return start + brace.start()
    return min(len(text), start + _LONGEST_GROUP)
