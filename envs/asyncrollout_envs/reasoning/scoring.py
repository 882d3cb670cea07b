"""The package's own scores, without what some of its scorers do to hostile answers.

Four scorers call `eval` on the answer and five parse it with sympy, which does the same: whatever a model writes would
be run. Here such a scorer reads literals and plain arithmetic only, and formulas are compared by their values at a few
points, as to simplify one can take minutes. Other scorers write out numbers such as 1e99999999, or play as many moves
as the answer says; such answers are worth 0 unasked, as are those that are too long. Three give 1 to answers that are
wrong; they are mended.
"""

import ast
import math
import re
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any

LONGEST_ANSWER = 10_000
"""Characters; the longest right answers (palindrome_partitioning, tower_of_hanoi) have about half of it."""

Score = Callable[[str, Mapping[str, Any]], float]

_ENDLESS = {
    "coin_flip": re.compile(r"e[^a-z]{4}", re.IGNORECASE),
    "propositional_logic": re.compile(r".{300}", re.DOTALL),
    "rubiks_cube": re.compile(r"\d\d"),
    "rush_hour": re.compile(r"\d\d"),
}
"""What keeps the scorer of a dataset busy for seconds, or for ever."""

_MENDED: dict[str, dict[str, Any]] = {
    "coin_flip": {"min": max},  # "0" has all of its digits in common with 0.125
    "complex_arithmetic": {"min": lambda _most, score: score},  # min(1.0, nan) is 1.0
    "game_of_life_halting": {"bool": lambda text: str(text).strip().lower()},  # bool("False") is True
}
"""What the names in the scorer of a dataset should mean."""

_HARDLY_FINITE = re.compile(
    r"(?<![a-z])(?:nan|inf|infinity)[ij]?(?![a-z])|(?<![\d_.])[\d.](?:[\d_.]*+e\+?\d[\d_]{2,}|[\d_.]{300,})",
    re.IGNORECASE,
)
_HEAVIEST = 300
_FUNCTIONS = re.compile(r"Abs|a?(?:sin|cos|tan)h?|sec|csc|cot|exp|log|ln|sqrt")
_FUNCTION_WEIGHT = 4  # nested ones grow beyond all bounds when they are simplified
_SYMPYS_OWN = ("pi", *"EINOQS")
_POINTS = (0.2137, 0.4391, 0.6173, 0.8219)  # where logarithms, roots and arc functions are real
_NOTHING = 1e-12
_PLAIN = re.compile(r"[A-Za-z0-9.+*/() \t\n-]*")
_LARGE_EXPONENT = re.compile(r"[eE][+-]?[0-9]{3}")


def safe_score(name: str, dataset: Any) -> Score:
    """The score, from 0 to 1, of an answer to an entry; never raises, and 0 where the dataset's own scorer does."""
    own: FunctionType = type(dataset).score_answer
    # the same code with other names around it, as the package itself must stay as it is for its other users
    names = _tamed(own.__globals__) | _MENDED.get(name, {})
    scorer = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    endless = _ENDLESS.get(name)

    def score(answer: str, entry: Mapping[str, Any]) -> float:
        if len(answer) > LONGEST_ANSWER or (endless and endless.search(answer)):
            return 0.0
        if not _is_finite(answer) and _is_finite(str(entry.get("answer"))):
            return 0.0
        try:
            value = float(scorer(dataset, answer, entry))
        except Exception:  # noqa: BLE001 (an answer that no scorer expected is wrong)
            return 0.0
        return 0.0 if math.isnan(value) else min(max(value, 0.0), 1.0)

    return score


def _is_finite(text: str) -> bool:
    """Whether no number in a text is NaN or infinite, as 1e999 is."""
    return all(map(_is_finite_number, _HARDLY_FINITE.findall(text)))


def _is_finite_number(word: str) -> bool:
    try:
        return math.isfinite(float(word.rstrip("ijIJ")))
    except ValueError:  # 1.2.3
        return True


def _tamed(names: Mapping[str, Any]) -> dict[str, Any]:
    """A scorer's global names, with `eval` and sympy's parser in a safe form."""
    sympy = sys.modules.get("sympy")
    tamed = {**names, "eval": ast.literal_eval}
    if sympy is None:
        return tamed

    def parse_expr(text: str, *args: Any, **kwargs: Any) -> Any:
        check_arithmetic(text)
        return sympy.parse_expr(text.strip(), *args, **kwargs)

    def simplify(formula: Any) -> Any:
        return sympy.Integer(0) if _vanishes(formula) else formula

    for name, value in names.items():
        if value is sympy.parse_expr:
            tamed[name] = parse_expr
        elif value is sympy:
            tamed[name] = SimpleNamespace(**{**vars(sympy), "parse_expr": parse_expr, "simplify": simplify})
    return tamed


def _vanishes(formula: Any) -> bool:
    """Whether a formula is 0 at some points, which for those at hand means everywhere."""
    symbols = sorted(formula.free_symbols, key=str)
    values = (
        formula.evalf(30, subs={symbol: point + shift / 7 for shift, symbol in enumerate(symbols)}, maxn=60)
        for point in _POINTS
    )
    return all(abs(complex(value)) < _NOTHING for value in values)


def check_arithmetic(text: str) -> None:
    """Raise ValueError unless a text is plain arithmetic whose value is soon written down."""
    if not _PLAIN.fullmatch(text) or _LARGE_EXPONENT.search(text):
        raise ValueError("not plain arithmetic, or too large a number")
    try:
        weight = _weight(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError("not an expression") from error
    if weight > _HEAVIEST:
        raise ValueError("too large an expression")


def _weight(node: ast.AST) -> float:
    """How many digits and symbols an expression's value has, at most."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return len(str(value))
        case ast.Name(id=name) if re.fullmatch("[A-Za-z]|pi", name):
            return 1
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _weight(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return _weight(left) + _weight(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _weight(right) + _weight(left) * _exponent(right)
        case ast.Call(func=ast.Name(id=name), args=[of], keywords=[]) if _FUNCTIONS.fullmatch(name) and _has_symbol(of):
            return _FUNCTION_WEIGHT * _weight(of)
    raise ValueError("not plain arithmetic")


def _has_symbol(node: ast.AST) -> bool:
    """Whether it stays a formula; a number would be worked out, as exp(exp(99))."""
    return any(isinstance(part, ast.Name) and part.id not in _SYMPYS_OWN for part in ast.walk(node))


def _exponent(node: ast.AST) -> float:
    """How large an exponent can be: no power itself, and at most the product of its numbers."""
    parts = list(ast.walk(node))
    if any(isinstance(part, ast.Pow) for part in parts):
        raise ValueError("a power of a power")
    numbers = (part.value for part in parts if isinstance(part, ast.Constant))
    return math.prod(max(abs(number), 2) for number in numbers if isinstance(number, int | float))
