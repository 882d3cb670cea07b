"""Numbers in words: five, twenty-five, 12 million, 3 fifths, 5 and a half, 2 out of five."""

import re
from collections.abc import Set as AbstractSet
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
_COUNTED_BY = ("hundred", "thousand", "million", "billion", "trillion")
_SCALE = re.compile(rf" ?({'|'.join(_SCALES)})s?\b")
_HYPHEN = re.compile(rf"(?<=[0-9])-(?=(?:{'|'.join(_PARTS)})\b)")
_PART = re.compile(rf" ({'|'.join(_PARTS)})\b(?! (?:of|an?)\b)")
_MINUS = re.compile(r"^(?:minus|negative) (?=[0-9])")
_DIVIDED = re.compile(r"(?<=[0-9]) (?:divided by|out of|over) (?=[0-9])")
_AND_A_PART = re.compile(r"(?<=[0-9]) and (?:(?:a|1) (half|third|quarter)\b|(?=[0-9]++ ?/))")
_HALF = re.compile(r"^(?:a )?half$")
_ONE_OF = re.compile(rf"^an? (?=(?:{'|'.join((*_SCALES, *_PARTS))})\b)")
_SEVERAL = re.compile(
    rf"\b(?:{'|'.join((*_TENS, *_WHOLE))})(?:(?:[- ]| and )(?:{'|'.join((*_TENS, *_WHOLE, *_COUNTED_BY))}))+\b"
)


def with_digits(text: str, counted: AbstractSet[str] = frozenset()) -> str:
    """A text in lower case with digits for the words of numbers; those that the question counts stay words."""
    text = _SEVERAL.sub(
        lambda found: found[0] if counted & {*found[0].split()} else _in_full(found[0]), _ONE_OF.sub("one ", text)
    )
    text = _HYPHEN.sub(" ", _IN_WORDS.sub(_digits, text))
    text = _AND_A_PART.sub(lambda found: f" 1/{_PARTS[found[1]]}" if found[1] else " ", text)
    return _HALF.sub("1/2", _DIVIDED.sub("/", _MINUS.sub("-", text)))


def read_scale(text: str, counted: AbstractSet[str] = frozenset()) -> tuple[Fraction, str]:
    """What a number is to be multiplied by, as the words after it say, and what follows them.

    Words that the question counts, as in "how many quarters", change no number.
    """
    factor = Fraction(1)
    while (scale := _SCALE.match(text)) and scale[1] not in counted:
        factor *= _SCALES[scale[1]]
        text = text[scale.end() :]
    if (part := _PART.match(text)) and part[1].removesuffix("s") not in counted:
        factor /= _PARTS[part[1]]
        text = text[part.end() :]
    return factor, text


def _in_full(words: str) -> str:
    """The number that several words are, as in "two hundred and five"; words that are none stay."""
    total = part = 0
    least, room = 10**15, 1_000  # what a scale, and what a word before the next scale, must be smaller than
    for word in re.findall(r"[a-z]+", words):
        if word == "and":
            continue
        if word == "hundred" and 0 < part < 100:
            part, room = part * 100, 100
        elif word in _COUNTED_BY and word != "hundred" and part and _SCALES[word] < least:
            total, part, least, room = total + part * _SCALES[word], 0, _SCALES[word], 1_000
        elif (number := _WHOLE.get(word, 0)) and number < room:
            part, room = part + number, 10 if number >= 20 else 1
        else:
            return words
    return str(total + part)


def _digits(found: re.Match[str]) -> str:
    tens, ones, alone = found.groups()
    return str(_WHOLE[alone] if alone else _WHOLE[tens] + _WHOLE[ones])
