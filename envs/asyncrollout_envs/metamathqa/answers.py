r"""Answers to mathematical questions: found in a solution, and compared.

Two answers that are numbers (`numbers`) are compared as numbers, exactly: 1,000 = $1000.00, 1/2 = 0.5 = \frac{1}{2}, 1
1/2 = 1.5, 10^3 = 1000, 12 million = 12000000, 3 fifths = 3/5, but 1/3 is not 0.333. A unit (`units`, or words that
the question has) counts where both have one: 5 cm = 5, 300 cm = 3 m, but 3 km is not 3 m. A percent sign is a unit:
50% = 50, and not 0.5. Other words after a number make it another answer: 5 pm is not 5.

All else is compared as text, without case, math signs, closing punctuation, and white space that is not between digits;
lists in brackets one by one. What a single letter is said to equal stands for the whole, x = 5 for 5, and so does a
number or a letter in parentheses.
"""

import re
from fractions import Fraction

import msgspec

from asyncrollout.text.stated import find_stated, undress
from asyncrollout_envs.metamathqa import units, words
from asyncrollout_envs.metamathqa.numbers import Value, read_number, scaled

LONGEST_ANSWER = 1_000
"""Longer ones are not read: no question has such an answer, and every comparison stays quick."""

_CLOSING = ".,;:!?"
_MOST_DEPTH = 4

_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\s*+\{([^{}]*+)\}")
_SPACES = re.compile(r"\\[ ;:]|~")
_NOTHING = re.compile(r"\\(?:left|right)(?![a-zA-Z])|\\[,!]")
_REPLACED = (
    ("\u2212", "-"), ("\u2013", "-"), ("{,}", ","), ("\\%", "%"), ("\\$", "$"), ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"), ("\\cfrac", "\\frac"), ("\\{", "{"), ("\\}", "}"),
)  # fmt: skip
_SIGNS = {
    "\u221e": "\\infty", "infinity": "\\infty", "\u222a": "\\cup", "<=": "\\leq", "\u2264": "\\leq",
    ">=": "\\geq", "\u2265": "\\geq",
}  # fmt: skip
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))
_SHORT_RELATION = re.compile(r"\\([lg])e(?![a-z])")
_BRACED = re.compile(r"(?<=[_^])\{(\w)\}")
_HALF_OF_DAY = re.compile(r"(?<=[0-9 ])([ap])\. ?m\b\.?")
_POUNDS = re.compile(r"\bpounds?\b")
_DEGREES = re.compile(r" ?\^ ?\{? ?\\circ ?\}?| ?\\degree\b|°")
_LEFT_SIDE = re.compile(r"(?:[^\W\d_]|\([^\W\d_](?: ?, ?[^\W\d_])++\)) ?= ?(?=[^ =])")
_PART_DRESSED = re.compile(r"(?<!\S)(?:\*\*([^*]++)\*\*|\$([^$ ]++)\$|\\\(([^\\]++)\\\))(?!\S)")
_CHOICE = re.compile(r"(?:(?:option|choice) )?\(?([a-z])\)?")
_ENCLOSED = re.compile(r"\(([^(),]*+)\)")
_MONEY = re.compile(r"([-+]?) ?([$€£¥₹]) ?([-+]?)(?=[ 0-9.\\])")
_LATEX_FRACTION = re.compile(r"\\frac ?(?:\{ ?([-+]?[0-9]++) ?\} ?\{ ?([0-9]++) ?\}|([0-9]) ?([0-9]))")
_LOOSE_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


class Quantity(msgspec.Struct, frozen=True):
    value: Value
    unit: units.Unit


def answer_of(response: str) -> str:
    """What follows the last "The answer is" of a solution, without colon, full stop and math signs; or nothing."""
    _, stated, answer = response.rpartition("The answer is")
    answer = answer.strip().removeprefix(":").strip()
    return undress(answer) if stated and len(answer) <= LONGEST_ANSWER else ""


def same_answer(given: str, expected: str, question: str = "") -> bool:
    """Whether an answer is the expected one. Never raises, and never takes long."""
    if given == expected:
        return True
    given, expected = given.strip(), expected.strip()
    if max(len(given), len(expected)) > LONGEST_ANSWER:
        return False
    asked = units.asked_by(question)
    one, other = _plain(given), _plain(expected)
    if "£" in given + expected + question:  # else they are a weight
        one, other = _POUNDS.sub("gbp", one), _POUNDS.sub("gbp", other)
    return _same(one, other, asked, _MOST_DEPTH)


def same_letters(given: str, expected: str) -> bool:
    """Whether two answers are the same but for case and white space."""
    return "".join(given.lower().split()) == "".join(expected.lower().split())


def _same(first: str, second: str, asked: units.Asked, depth: int) -> bool:
    one, other = _quantity(first, asked), _quantity(second, asked)
    if one is not None and other is not None:
        factor = units.comparable(one.unit, other.unit)
        return factor is not None and scaled(one.value, factor) == other.value
    if _squeezed(first) == _squeezed(second) != "":
        return True
    parts, other_parts = _listed(first), _listed(second)
    return (
        len(parts) == len(other_parts) > 1
        and (first[0], first[-1]) == (second[0], second[-1])
        and depth > 0
        and all(_same(part, against, asked, depth - 1) for part, against in zip(parts, other_parts, strict=True))
    )


def _plain(text: str) -> str:
    text = _PART_DRESSED.sub(r"\1\2\3", text)  # which undress() would take for a whole
    text = find_stated(text, tagged=True) or undress(text)
    for old, new in _REPLACED:
        text = text.replace(old, new)
    text = _TEXT.sub(r" \1 ", _SPACES.sub(" ", _NOTHING.sub("", text)))
    text = _DEGREES.sub(" ° ", " ".join(text.split()))
    text = undress(" ".join(text.split()))
    left_side = _LEFT_SIDE.match(text)
    text = undress(text[left_side.end() :] if left_side else text).casefold()
    choice = _CHOICE.fullmatch(text)
    return choice[1] if choice else text


def _quantity(text: str, asked: units.Asked) -> Quantity | None:
    """The value of a number in any of its forms, and its unit."""
    text = text.strip()
    enclosed = _ENCLOSED.fullmatch(text)
    text = words.with_digits(enclosed[1].strip() if enclosed else text, asked.counted)
    if "," in text and text.startswith("("):
        return None  # (1,234) is a pair
    money = _MONEY.match(text)
    sign = 1
    if money:
        sign = -1 if (money[1] == "-") != (money[3] == "-") else 1
        text = text[money.end() :].lstrip()
        if text.startswith(("-", "+")):
            return None
    found = read_number(text)
    if found is None:
        return None
    value, rest = found
    factor, after = words.read_scale(rest, asked.counted)
    unit = units.read_unit(f"{money[2]}{after}" if money else after, asked, glued=not money and rest[:1].isalpha())
    return None if unit is None else Quantity(scaled(value, factor * Fraction(sign)), unit)


def _listed(text: str) -> list[str]:
    """The parts of a list in brackets, such as those of a point or an interval."""
    if len(text) < 2 or _BRACKETS.get(text[0]) is None or text[-1] not in _BRACKETS.values():
        return []
    parts, depth, start = [], 0, 1
    for place, sign in enumerate(text[1:-1], start=1):
        depth += (sign in _BRACKETS) - (sign in _BRACKETS.values())
        if depth < 0:
            return []
        if sign == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:-1].strip()] if not depth else []


def _squeezed(text: str) -> str:
    """Without the white space that means nothing: 12 34 is not 1234."""
    text = _LATEX_FRACTION.sub(_slashed, text.replace("$", " "))
    text = _SHORT_RELATION.sub(r"\\\1eq", _SIGN.sub(lambda sign: f"{_SIGNS[sign[0]]} ", _BRACED.sub(r"\1", text)))
    text = _HALF_OF_DAY.sub(r"\1m", text)
    return _LOOSE_SPACE.sub("", " ".join(text.split())).rstrip(_CLOSING)


def _slashed(fraction: re.Match[str]) -> str:
    top, bottom = (group for group in fraction.groups() if group is not None)
    return f" {top}/{bottom} "
