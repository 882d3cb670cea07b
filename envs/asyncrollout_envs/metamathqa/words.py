"""Numbers in words: five, twenty-five, 12 million, 3 fifths, 5 and a half, 2 out of five."""

import re
from fractions import Fraction

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WHOLE = {word: number for number, word in enumerate(_ONES)} | {
    word: 10 * number for number, word in enumerate(_TENS, start=2)
}
_IN_WORDS = re.compile(rf"\b(?:({'|'.join(_TENS)})[- ]({'|'.join(_ONES[1:10])})|({'|'.join(_WHOLE)}))\b")
_PARTS = {
    "half": 2, "halves": 2, "quarter": 4, "quarters": 4,
    **{f"{name}{plural}": number for number, name in enumerate(
        ("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"), start=3) for plural in ("", "s")},
}  # fmt: skip
_SCALES = {
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "lakh": 10**5, "crore": 10**7,
}  # fmt: skip
_SCALE = re.compile(rf" ?({'|'.join(_SCALES)})s?\b")
_HYPHEN = re.compile(rf"(?<=[0-9])-(?=(?:{'|'.join(_PARTS)})\b)")
_PART = re.compile(rf" ({'|'.join(_PARTS)})\b(?! (?:of|an?)\b)")
_MINUS = re.compile(r"^(?:minus|negative) (?=[0-9])")
_DIVIDED = re.compile(r"(?<=[0-9]) (?:divided by|out of|over) (?=[0-9])")
_AND_A_PART = re.compile(r"(?<=[0-9]) and (?:(?:a|1) (half|third|quarter)\b|(?=[0-9]++ ?/))")
_HALF = re.compile(r"^(?:a )?half$")


def with_digits(text: str) -> str:
    """A text in lower case with digits for the words of numbers."""
    text = _HYPHEN.sub(" ", _IN_WORDS.sub(_digits, text))
    text = _AND_A_PART.sub(lambda found: f" 1/{_PARTS[found[1]]}" if found[1] else " ", text)
    return _HALF.sub("1/2", _DIVIDED.sub("/", _MINUS.sub("-", text)))


def read_scale(text: str) -> tuple[Fraction, str]:
    """What a number is to be multiplied by, as the words after it say, and what follows them."""
    factor = Fraction(1)
    while scale := _SCALE.match(text):
        factor *= _SCALES[scale[1]]
        text = text[scale.end() :]
    if part := _PART.match(text):
        factor /= _PARTS[part[1]]
        text = text[part.end() :]
    return factor, text


def _digits(found: re.Match[str]) -> str:
    tens, ones, alone = found.groups()
    return str(_WHOLE[alone] if alone else _WHOLE[tens] + _WHOLE[ones])
