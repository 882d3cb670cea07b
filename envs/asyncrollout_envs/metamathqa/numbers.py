r"""Numbers as answers have them, computed exactly: 1,000, 1 1/2, 2.5 \times 10^6, \frac{\sqrt{3}}{2}, 1+\sqrt2, 5π.

A value is a sum of terms q√r·π^p. What can still be computed is no answer, and has no value: 17 * 24, 2 + 3, \sqrt{16}.
Of powers, those of ten have one.
"""

import re
from fractions import Fraction

Value = dict[tuple[int, int], Fraction]
"""Terms: (a radicand without square factors, a power of pi) to a factor."""

_ONE = (1, 0)
_DEEPEST = 12
_MOST_TERMS = 8
_LARGEST_RADICAND = 10**6
_LARGEST_EXPONENT = 300

_VULGAR = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5",
    "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]*+)?(?:e[-+]?[0-9]{1,3}+(?![\w.]))?
               |\.[0-9]++(?:e[-+]?[0-9]{1,3}+(?![\w.]))?)
      |(?P<frac>\\[dtc]?frac)|(?P<sqrt>\\sqrt|√|sqrt(?![a-z]))|(?P<pi>\\pi(?![a-z])|π|pi(?![a-z]))
      |(?P<vulgar>[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])|(?P<power>[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]++)
      |(?P<sign>\\times(?![a-z])|\\cdot(?![a-z])|\\div(?![a-z])|[-+*/^(){}\u00d7·\u22c5÷\u2212])
    )""",
    re.VERBOSE,
)
_MIXED = re.compile(r" ([0-9]++) ?/ ?([0-9]++)(?![0-9.,])")
_EXPONENT = re.compile(r" ?(?:\{ ?([-+]?[0-9]{1,4}) ?\}|\( ?([-+]?[0-9]{1,4}) ?\)|([-+]?[0-9]{1,4}))")
_TIMES_TEN = re.compile(r"\s*(?:\\times|\\cdot|[*\u00d7·\u22c5]) ?10 ?(?:\^|[⁰¹²³⁴⁵⁶⁷⁸⁹⁻])")
_DIGIT = re.compile(r" ?([0-9])")
_AFTER_FRAC = re.compile(r"\\[dtc]?frac ?[0-9]?$")
_SIGNS = {"\\times": "*", "\u00d7": "*", "\\cdot": "*", "·": "*", "\u22c5": "*", "\\div": "/", "÷": "/", "\u2212": "-"}


class _UnreadableError(Exception):
    """The text is not a number."""


def read_number(text: str) -> tuple[Value, str] | None:
    """The value that a text in lower case begins with, and what follows it; None if it begins with none."""
    reader = _Reader(text)
    try:
        value = reader.sum()
    except (_UnreadableError, ZeroDivisionError):
        return None
    return value, text[reader.at :]


def scaled(value: Value, factor: Fraction) -> Value:
    return {key: number * factor for key, number in value.items()}


class _Reader:
    """Reads from left to right; `at` is where the next token begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self.at = 0

    def sum(self) -> Value:
        total = self._product(self._leading_sign())
        while (sign := self._peek()) in ("+", "-"):
            self._take()
            term = self._product(-1 if sign == "-" else 1)
            if total.keys() & term.keys() or len(total) + len(term) > _MOST_TERMS:
                raise _UnreadableError  # like terms can still be added
            total = total | term
        return total

    def _leading_sign(self) -> int:
        if self._peek() not in ("+", "-"):
            return 1
        return -1 if self._take()[1] == "-" else 1

    def _product(self, sign: int) -> Value:
        value, is_plain = self._factor()
        is_fraction = False
        while True:
            kind, text, _ = self._look()
            if text in ("*", "/"):
                before = self.at
                self._take()
                other, other_is_plain = self._factor()
                if text == "/":
                    if is_plain and other_is_plain and (is_fraction or not (_is_whole(value) and _is_whole(other))):
                        raise _UnreadableError  # only of two whole numbers it is a fraction
                    is_fraction = True
                    value = _divided(value, other)
                elif is_plain and other_is_plain and not self._is_power_of_ten(before):
                    raise _UnreadableError
                else:
                    value = _multiplied(value, other)
                is_plain = is_plain and other_is_plain
            elif kind in ("sqrt", "pi") or (text == "(" and not is_plain):
                other, _ = self._factor()
                value, is_plain = _multiplied(value, other), False
            elif text == "(" and is_plain:
                other, other_is_plain = self._factor()
                if other_is_plain:
                    raise _UnreadableError
                value, is_plain = _multiplied(value, other), False
            else:
                return scaled(value, Fraction(sign))

    def _factor(self) -> tuple[Value, bool]:
        """A value, and whether it is rational."""
        kind, text, _ = self._look()
        if kind == "number":
            return self._number()
        if kind == "vulgar":
            self._take()
            return {_ONE: Fraction(_VULGAR[text])}, True
        if kind == "frac":
            self._take()
            top, bottom = self._group(), self._group()
            return _checked(_divided(top, bottom))
        if kind == "sqrt":
            self._take()
            return _root(self._group()), False
        if kind == "pi":
            self._take()
            return {(1, self._exponent() or 1): Fraction(1)}, False
        if text == "(":
            value, is_plain = _checked(self._enclosed(")"))
            if is_plain and value[_ONE].denominator == 1:
                raise _UnreadableError
            return value, is_plain
        raise _UnreadableError

    def _number(self) -> tuple[Value, bool]:
        text = self._take()[1].replace(",", "")
        value = Fraction(text.rstrip(".") if "e" not in text else text.replace(".e", "e"))
        exponent = self._exponent()
        if exponent is not None:
            if value != 10 or abs(exponent) > _LARGEST_EXPONENT:
                raise _UnreadableError
            return {_ONE: value**exponent}, True
        return {_ONE: value + self._rest_of_mixed(text)}, True

    def _rest_of_mixed(self, whole: str) -> Fraction:
        """The fraction of a mixed number: 1 1/2, 1\\frac{1}{2}, 1½."""
        if not whole.isdigit():
            return Fraction(0)
        kind, text, _ = self._look()
        if kind == "vulgar":
            self._take()
            return Fraction(_VULGAR[text])
        if kind == "frac":
            self._take()
            value = _divided(self._group(), self._group())
            if [*value] != [_ONE] or value[_ONE] < 0:
                raise _UnreadableError
            return value[_ONE]
        part = _MIXED.match(self._text, self.at)
        if part is None:
            return Fraction(0)
        self.at = part.end()
        return Fraction(int(part[1]), int(part[2]))

    def _exponent(self) -> int | None:
        kind, text, _ = self._look()
        if kind == "power":
            self._take()
            text = text.translate(_SUPERSCRIPTS)
        elif text == "^":
            self._take()
            found = _EXPONENT.match(self._text, self.at)
            if found is None:
                raise _UnreadableError
            self.at = found.end()
            text = next(group for group in found.groups() if group is not None)
        else:
            return None
        try:
            return int(text)
        except ValueError:
            raise _UnreadableError from None

    def _is_power_of_ten(self, at: int) -> bool:
        return _TIMES_TEN.match(self._text, at) is not None

    def _group(self) -> Value:
        r"""What a command applies to: {..}, (..), or as in \sqrt2 and \frac12 one digit or number."""
        text = self._peek()
        if text == "{":
            return self._enclosed("}")
        if text == "(":
            return self._enclosed(")")
        digit = _DIGIT.match(self._text, self.at)
        before = _AFTER_FRAC.search(self._text[: self.at])
        if digit and before:
            self.at = digit.end()
            return {_ONE: Fraction(int(digit[1]))}
        kind, text, _ = self._look()
        if kind == "number" and text.isdigit():
            self._take()
            return {_ONE: Fraction(int(text))}
        if kind == "pi":
            return self._factor()[0]
        raise _UnreadableError

    def _enclosed(self, closing: str) -> Value:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _UnreadableError
        self._take()
        value = self.sum()
        if self._peek() != closing:
            raise _UnreadableError
        self._take()
        self._depth -= 1
        return value

    def _look(self) -> tuple[str, str, int]:
        found = _TOKEN.match(self._text, self.at)
        if found is None or found.lastgroup is None:
            return "", "", self.at
        text = found[found.lastgroup]
        return found.lastgroup, _SIGNS.get(text, text), found.end()

    def _peek(self) -> str:
        return self._look()[1]

    def _take(self) -> tuple[str, str]:
        kind, text, self.at = self._look()
        return kind, text


def _is_whole(value: Value) -> bool:
    return value[_ONE].denominator == 1


def _checked(value: Value) -> tuple[Value, bool]:
    return value, [*value] == [_ONE]


def _multiplied(one: Value, other: Value) -> Value:
    total: Value = {}
    for (radicand, power), factor in one.items():
        for (other_radicand, other_power), other_factor in other.items():
            outside, inside = _without_squares(radicand * other_radicand)
            key = inside, power + other_power
            total[key] = total.get(key, Fraction(0)) + factor * other_factor * outside
    if len(total) > _MOST_TERMS:
        raise _UnreadableError
    return {key: factor for key, factor in total.items() if factor} or {_ONE: Fraction(0)}


def _divided(one: Value, other: Value) -> Value:
    """By one term only: 1/(q√r·π^p) is √r/(qr)·π^-p."""
    if len(other) != 1:
        raise _UnreadableError
    ((radicand, power), factor) = next(iter(other.items()))
    return _multiplied(one, {(radicand, -power): 1 / (factor * radicand)})


def _root(value: Value) -> Value:
    if [*value] != [_ONE]:
        raise _UnreadableError
    number = value[_ONE]
    top, bottom = number.numerator, number.denominator
    if top <= 0 or top * bottom > _LARGEST_RADICAND:
        raise _UnreadableError
    outside, inside = _without_squares(top * bottom)
    if inside == 1:
        raise _UnreadableError  # it can still be computed
    return {(inside, 0): Fraction(outside, bottom)}


def _without_squares(number: int) -> tuple[int, int]:
    """What can be taken out of the root of a number, and what stays in it."""
    if number > _LARGEST_RADICAND**2:
        raise _UnreadableError
    outside, divisor = 1, 2
    while divisor * divisor <= number and divisor <= 1_000:
        while number % (divisor * divisor) == 0:
            number //= divisor * divisor
            outside *= divisor
        divisor += 1
    return outside, number
