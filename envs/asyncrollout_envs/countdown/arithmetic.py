"""Arithmetic as language models write it: read without `eval`, in linear time, and computed exactly.

An expression holds whole numbers, + - * / and parentheses. The signs of print (the multiplication cross and dot, the
division and minus signs) and LaTeX's \\times, \\cdot and \\div are read, too, and a closing `= 24`, or an opening `24
=`, is left out. A sign before a number or a parenthesis is no number of its own: whatever positive value it helps to
reach can be reached without. All else (powers, decimals, names) makes an expression unreadable.
"""

import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

import msgspec

LONGEST_EXPRESSION = 1_000
MOST_NUMBERS = 32
MOST_DIGITS = 12
DEEPEST = 32

_SYMBOL = re.compile(r"[0-9]+|\S")
_RESULT = re.compile(r"\s*[-+]?[0-9][0-9.,/\s]*|\s*\?\s*")
_OPERATORS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u22c5": "*", "\u00f7": "/", "\u2212": "-"})
_LATEX = re.compile(r"\\(?:times|cdot|div|left|right|[()\[\]])")
_LATEX_OPERATORS = {"\\times": "*", "\\cdot": "*", "\\div": "/"}
_RANKS = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "sign": 3}


class Expression(msgspec.Struct, frozen=True):
    """What a text is worth: its numbers in order and its value.

    An unreadable one has no numbers; one that divides by zero has them, but no value. `reason` says why.
    """

    text: str = ""
    numbers: tuple[int, ...] = ()
    value: Fraction | None = None
    reason: str = ""

    def uses(self, numbers: Iterable[int]) -> bool:
        """Whether it has each of `numbers` exactly once, in any order."""
        return Counter(self.numbers) == Counter(numbers)


class _UnreadableError(Exception):
    """Says what is wrong with an expression."""


def evaluate(text: str) -> Expression:
    """Read and compute an expression. Never raises."""
    text = text.strip()
    if len(text) > LONGEST_EXPRESSION:
        return Expression(reason=f"it is longer than {LONGEST_EXPRESSION} characters")
    text = _without_result(_plain(text).strip("`$ \t\r\n"))
    reader = _Reader()
    try:
        for symbol in _SYMBOL.findall(text):
            reader.take(symbol)
        value = reader.finish()
    except _UnreadableError as error:
        return Expression(reason=str(error))
    return Expression(text, tuple(reader.numbers), value, reason="it divides by zero" if value is None else "")


def _plain(text: str) -> str:
    return _LATEX.sub(lambda command: _LATEX_OPERATORS.get(command[0], " "), text.translate(_OPERATORS))


def _without_result(text: str) -> str:
    expression, _, result = text.rpartition("=")
    if expression and _RESULT.fullmatch(result):
        return expression.rstrip()
    result, _, expression = text.partition("=")
    return expression.lstrip() if expression and _RESULT.fullmatch(result) else text


class _Reader:
    """Takes symbols from left to right; operators wait on a stack until one that binds less comes."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._values: list[Fraction | None] = []
        self._waiting: list[str] = []
        self._depth = 0
        self._wants_value = True

    def take(self, symbol: str) -> None:
        if symbol[0] in "0123456789" or symbol == "(":
            if not self._wants_value:
                raise _UnreadableError(f"there is no operator before {symbol[:MOST_DIGITS]!r}")
            self._open() if symbol == "(" else self._number(symbol)
        elif symbol not in "+-*/)":
            raise _UnreadableError(f"{symbol!r} is no arithmetic")
        elif self._wants_value:
            if symbol not in "+-":
                raise _UnreadableError(f"there is no number before {symbol!r}")
            if symbol == "-":
                self._take_sign()
        elif symbol == ")":
            self._close()
        else:
            self._compute_down_to(_RANKS[symbol])
            self._waiting.append(symbol)
            self._wants_value = True

    def _take_sign(self) -> None:
        if self._waiting and self._waiting[-1] == "sign":
            self._waiting.pop()  # two of them are none
        else:
            self._waiting.append("sign")

    def finish(self) -> Fraction | None:
        if self._wants_value:
            raise _UnreadableError("it ends where a number should be" if self.numbers else "there is no number in it")
        if self._depth:
            raise _UnreadableError("a parenthesis is not closed")
        self._compute_down_to(1)
        return self._values[0]

    def _number(self, symbol: str) -> None:
        if len(symbol) > MOST_DIGITS:
            raise _UnreadableError(f"a number has more than {MOST_DIGITS} digits")
        if len(self.numbers) == MOST_NUMBERS:
            raise _UnreadableError(f"there are more than {MOST_NUMBERS} numbers")
        self.numbers.append(int(symbol))
        self._values.append(Fraction(int(symbol)))
        self._wants_value = False

    def _open(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise _UnreadableError(f"parentheses nest deeper than {DEEPEST}")
        self._waiting.append("(")

    def _close(self) -> None:
        if not self._depth:
            raise _UnreadableError("a parenthesis is not opened")
        self._compute_down_to(1)
        self._waiting.pop()
        self._depth -= 1

    def _compute_down_to(self, rank: int) -> None:
        while self._waiting and _RANKS[self._waiting[-1]] >= rank:
            operator = self._waiting.pop()
            right = self._values.pop()
            left = Fraction(0) if operator == "sign" else self._values.pop()
            self._values.append(_compute(left, operator, right))


def _compute(left: Fraction | None, operator: str, right: Fraction | None) -> Fraction | None:
    """None is what a division by zero gives, and what follows from it."""
    if left is None or right is None:
        return None
    match operator:
        case "+":
            return left + right
        case "*":
            return left * right
        case "/":
            return left / right if right else None
        case _:
            return left - right
