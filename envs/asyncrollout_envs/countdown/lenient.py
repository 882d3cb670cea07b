"""RAGEN's way to score an expression: what Python would compute, read without running anything.

The numbers are all runs of digits in the text, whatever stands between them. The value is Python's, also of `//`, `%`,
`**` and `^` (which is no power), and counts as right within 1e-5. A text that Python cannot compute has no value.
"""

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from asyncrollout_envs.countdown.arithmetic import LONGEST_EXPRESSION

NEAR = 1e-5
_LARGEST = 10**30
_SYMBOLS = re.compile(r"[0-9eE_.\s+\-*/%()&|^~]+")
_DIGITS = re.compile(r"\d+")
_LARGEST_POWER = 64

Number = int | float


def _power(base: Number, exponent: Number) -> Number:
    """Of numbers whose power is not too long to compute."""
    if abs(exponent) > _LARGEST_POWER or abs(base) > _LARGEST or (base < 0 and exponent != int(exponent)):
        raise ValueError("out of range")
    result: Number = base**exponent
    return result


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Invert: operator.invert,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def uses_exactly(text: str, numbers: Sequence[int]) -> bool:
    """Whether the runs of digits in a text are the given numbers, in any order."""
    if len(text) > LONGEST_EXPRESSION:
        return False
    return sorted(map(int, _DIGITS.findall(text))) == sorted(numbers)


def equals(text: str, target: int) -> bool:
    """Whether Python would compute the target from a text, or something as near as a rounding error."""
    if len(text) > LONGEST_EXPRESSION or not _SYMBOLS.fullmatch(text):
        return False
    try:
        return bool(abs(_value(ast.parse(text.strip(), mode="eval").body) - target) < NEAR)
    except (SyntaxError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return False


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value: Number = node.value
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_value(node.operand))
    else:
        raise ValueError("not arithmetic")
    if abs(value) > _LARGEST:
        raise ValueError("out of range")
    return value
