r"""Answers to mathematical questions: found in a solution or a reply, and compared.

Two answers that are both numbers are compared as numbers, exactly: 1,000 = $1000.00, 1/2 = 0.5 = \frac{1}{2},
1 1/2 = 1.5, 2e3 = 2000, but 1/3 is not 0.333. A unit after a space is left out, as it is spelled in many ways and
given by the question: 5 cm = 5, but 5 pi is not 5. So is a percent sign: 50% = 50, and not 0.5. All else is compared as
text, without case, math signs, closing punctuation, and white space that is not between digits. What a single letter
is said to equal stands for the whole, x = 5 for 5, and so does a number in parentheses.
"""

import re
from collections import deque
from fractions import Fraction

LONGEST_ANSWER = 1_000
"""Longer ones are not read: no question has such an answer, and every comparison stays quick."""

_STATED = re.compile(r"answer\s+is\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s)")
_BOXED = "\\boxed{"

_WRAPPED = (("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"), ('"', '"'), ("'", "'"))
_COMMANDS = (_BOXED, "\\text{", "\\textbf{", "\\mathrm{", "\\mbox{")
_CLOSING = ".,;:!?"
_MOST_LAYERS = 8

_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*+\{([^{}]*+)\}")
_SPACES = re.compile(r"\\[ ;:]|~")
_NOTHING = re.compile(r"\\(?:left|right)\b|\\[,!]")
_REPLACED = (("\u2212", "-"), ("{,}", ","), ("\\%", "%"), ("\\$", "$"), ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"))

# From here on white space is one space at most, and no pattern has to give back what it took.
_LATEX_FRACTION = re.compile(r"\\[dtc]?frac ?(?:\{ ?([-+]?[0-9]++) ?\} ?\{ ?([0-9]++) ?\}|([0-9]) ?([0-9]))")
_DEGREES = re.compile(r"\^ ?\{? ?\\circ ?\}?|°")
_LEFT_SIDE = re.compile(r"[^\W\d_] ?= ?(?=[^ =])")
_NUMBER = re.compile(
    r"""(?P<sign>[-+]?)[ ]?[$€£¥]?[ ]?(?P<inner_sign>[-+]?)
    (?: (?:(?P<whole>[0-9]++)[ ])? (?P<top>[0-9]++) [ ]?/[ ]? (?P<bottom>[0-9]++)
      | (?P<decimal> (?: [0-9]{1,3}(?:,[0-9]{3})++ | [0-9]*+ ) (?:\.[0-9]*+)? ) (?:e(?P<exponent>[-+]?[0-9]{1,3}+))? )
    (?:[ ]?%|[ ](?P<unit>[^\W\d_][^0-9,;:=+*<>()\\^]*+(?:\^[ ]?\{?[23]\}?)?))?""",
    re.VERBOSE,
)
_ENCLOSED = re.compile(r"\(([^(),]*+)\)")
_NO_UNIT = re.compile(
    r"\b(?:and|or|to|over|hal(?:f|ves)|thirds?|quarters?|times|squared|cubed|minus|plus|point|[ap]\.?m|dozen|hundred|"
    r"thousand|[mbtr]++illion)\b"
    r"|\A(?:pi|sqrt|[a-fijkn-rt-z\u03b1-\u03c9])\b"  # factors: of the single letters, only g, h, l, m and s are units
)
_LOOSE_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")


def answer_of(response: str) -> str:
    """What follows the last "The answer is" of a solution, without colon, full stop and math signs; or nothing."""
    _, stated, answer = response.rpartition("The answer is")
    answer = answer.strip().removeprefix(":").strip()
    return _unwrapped(answer) if stated and len(answer) <= LONGEST_ANSWER else ""


def stated_answer(text: str) -> str:
    """What a reply in prose states: what follows the last "answer is", or the last `\\boxed{..}` if that is later."""
    last = deque(_STATED.finditer(text), maxlen=1)
    stated = last[0] if last else None
    boxed = text.rfind(_BOXED)
    if boxed >= 0 and (stated is None or boxed > stated.start()):
        end = _closing_brace(text, boxed + len(_BOXED))
        return text[boxed + len(_BOXED) : end].strip()
    if stated is None:
        return ""
    line = text[stated.end() :].replace("**", "").lstrip(": \t\r\n").partition("\n")[0]
    return _SENTENCE_END.split(line, maxsplit=1)[0].strip()


def same_answer(given: str, expected: str) -> bool:
    """Whether an answer is the expected one. Never raises, and never takes long."""
    if given == expected:
        return True
    given, expected = given.strip(), expected.strip()
    if max(len(given), len(expected)) > LONGEST_ANSWER:
        return False
    first, second = _plain(given), _plain(expected)
    value, expected_value = _number(first), _number(second)
    if value is not None and expected_value is not None:
        return value == expected_value
    return _squeezed(first) == _squeezed(second) != ""


def same_letters(given: str, expected: str) -> bool:
    """Whether two answers are the same but for case and white space."""
    return "".join(given.lower().split()) == "".join(expected.lower().split())


def _unwrapped(text: str) -> str:
    """Without what is around an answer: math signs, \\boxed{..}, bold, quotes, closing punctuation."""
    for _ in range(_MOST_LAYERS):
        inner = text.strip().rstrip(_CLOSING).rstrip()
        for start, end in _WRAPPED:
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
    for brace in re.finditer(r"[{}]", text[start : start + LONGEST_ANSWER]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return start + brace.start()
    return min(len(text), start + LONGEST_ANSWER)


def _plain(text: str) -> str:
    text = _unwrapped(text)
    for old, new in _REPLACED:
        text = text.replace(old, new)
    text = _TEXT.sub(r" \1 ", _SPACES.sub(" ", _NOTHING.sub("", text)))
    text = _DEGREES.sub(" degrees", _LATEX_FRACTION.sub(_slashed, _single_spaced(text)))
    text = _unwrapped(_single_spaced(text))
    left_side = _LEFT_SIDE.match(text)
    return _unwrapped(text[left_side.end() :] if left_side else text).casefold()


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _slashed(fraction: re.Match[str]) -> str:
    top, bottom = (group for group in fraction.groups() if group is not None)
    return f" {top}/{bottom}"


def _number(text: str) -> Fraction | None:
    """The value of a number in any of its forms, with or without a unit."""
    text = text.strip()
    enclosed = _ENCLOSED.fullmatch(text)
    found = _NUMBER.fullmatch(enclosed[1].strip() if enclosed else text)
    if found is None or _NO_UNIT.search(found["unit"] or ""):
        return None
    whole, top, bottom, decimal, exponent = found.group("whole", "top", "bottom", "decimal", "exponent")
    if bottom is not None:
        if not int(bottom):
            return None
        value = Fraction(int(whole or 0)) + Fraction(int(top), int(bottom))
    elif any(digit in decimal for digit in "0123456789"):
        value = Fraction(f"{decimal.replace(',', '').rstrip('.') or 0}e{exponent or 0}")
    else:
        return None
    negative = (found["sign"] == "-") != (found["inner_sign"] == "-")
    return -value if negative else value


def _squeezed(text: str) -> str:
    """Without the white space that means nothing: 12 34 is not 1234."""
    return _LOOSE_SPACE.sub("", _single_spaced(text.replace("$", " "))).rstrip(_CLOSING)
