"""Expressions: what is read, what it is worth, and what is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout_envs.countdown.arithmetic import (
    DEEPEST,
    LONGEST_EXPRESSION,
    MOST_DIGITS,
    MOST_NUMBERS,
    evaluate,
)


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("7", 7, [7]),
        ("1 + 2 * 3", 7, [1, 2, 3]),
        ("(1 + 2) * 3", 9, [1, 2, 3]),
        ("10 - 4 - 3", 3, [10, 4, 3]),
        ("24 / 4 / 3", 2, [24, 4, 3]),
        ("2 - (3 - (4 - 5))", -2, [2, 3, 4, 5]),
        ("8 / (3 - 8 / 3)", 24, [8, 3, 8, 3]),
        ("-3 + 5", 2, [3, 5]),
        ("-(3 + 5)", -8, [3, 5]),
        ("2 * -3", -6, [2, 3]),
        ("5 - -3", 8, [5, 3]),
        ("5 - - -3", 2, [5, 3]),
        ("-2 * 3 + 10", 4, [2, 3, 10]),
        ("12 / -3 * 2", -8, [12, 3, 2]),
        ("+5 + +3", 8, [5, 3]),
        ("007 + 1", 8, [7, 1]),
        ("1\n+\t2", 3, [1, 2]),
        ("3 \u00d7 4 \u00f7 2 \u2212 1", 5, [3, 4, 2, 1]),
        ("3 \u00b7 4", 12, [3, 4]),
        (r"$3 \times 4 \div 2$", 6, [3, 4, 2]),
        (r"\(3 \cdot \left(4 + 1\right)\)", 15, [3, 4, 1]),
        ("`(1 + 2) * 3`", 9, [1, 2, 3]),
        ("(1 + 2) * 3 = 9", 9, [1, 2, 3]),
        ("(1 + 2) * 3 = 8", 9, [1, 2, 3]),
        ("1 / 3 = 0.333", Fraction(1, 3), [1, 3]),
        ("(1 + 2) * 3 = ?", 9, [1, 2, 3]),
    ],
)
def test_value_and_numbers(text: str, value: Fraction | int, numbers: list[int]) -> None:
    found = evaluate(text)
    assert (found.value, list(found.numbers), found.reason) == (value, numbers, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no number"),
        ("()", "no number before ')'"),
        ("1 +", "ends where a number should be"),
        ("(1 + 2", "not closed"),
        ("1 + 2)", "not opened"),
        ("1 2", "no operator before '2'"),
        ("2(3)", "no operator before '('"),
        ("(2)(3)", "no operator before '('"),
        ("* 2", "no number before '*'"),
        ("2 ** 3", "no number before '*'"),
        ("7 // 2", "no number before '/'"),
        ("2 ^ 3", "'^' is no arithmetic"),
        ("2.5 + 1", "'.' is no arithmetic"),
        ("1_000", "'_' is no arithmetic"),
        ("__import__('os')", "is no arithmetic"),
        ("2 x 3", "'x' is no arithmetic"),
        ("\u00b2 + 1", "is no arithmetic"),
        ("\u0663 + 1", "is no arithmetic"),
        ("1 + 2 = 3 = 3", "'=' is no arithmetic"),
        ("1 = 1 * x", "'x' is no arithmetic"),
        ("9" * (MOST_DIGITS + 1), "digits"),
        ("9" * 5_000, "longer"),
        ("+".join("1" * (MOST_NUMBERS + 1)), "numbers"),
        ("(" * (DEEPEST + 1) + "1" + ")" * (DEEPEST + 1), "deeper"),
        (" ".join("1" * LONGEST_EXPRESSION), "longer"),
    ],
)
def test_unreadable(text: str, reason: str) -> None:
    found = evaluate(text)
    assert (found.value, found.numbers) == (None, ())
    assert reason in found.reason


@pytest.mark.parametrize("text", ["1 / 0 + 2", "2 + 1 / (3 - 3)", "(1 / 0) * 0", "0 / (1 / 0)", "-(1 / 0)"])
def test_division_by_zero_has_numbers_but_no_value(text: str) -> None:
    found = evaluate(text)
    assert found.numbers
    assert (found.value, found.reason) == (None, "it divides by zero")


def test_limits_themselves_are_allowed() -> None:
    assert evaluate("9" * MOST_DIGITS).value == 10**MOST_DIGITS - 1
    assert evaluate("+".join("1" * MOST_NUMBERS)).value == MOST_NUMBERS
    assert evaluate("(" * DEEPEST + "1" + ")" * DEEPEST).value == 1
    assert evaluate("-" * (LONGEST_EXPRESSION - 1) + "1").value == -1


def test_numbers_are_compared_as_a_multiset() -> None:
    assert evaluate("3 + 3 + 5").uses([5, 3, 3])
    assert not evaluate("3 + 5").uses([5, 3, 3])
    assert not evaluate("3 + 5 + 5").uses([5, 3, 3])
    assert not evaluate("3 + 3 +").uses([3, 3])


leaves = st.integers(0, 999).map(lambda number: (str(number), Fraction(number)))


def joined(parts: st.SearchStrategy[tuple[str, Fraction]]) -> st.SearchStrategy[tuple[str, Fraction]]:
    def join(left: tuple[str, Fraction], operator: str, right: tuple[str, Fraction]) -> tuple[str, Fraction]:
        (a, x), (b, y) = left, right
        operator = "-" if operator == "/" and not y else operator
        value = {"+": x + y, "-": x - y, "*": x * y, "/": x / (y or 1)}[operator]
        return f"({a}){operator}({b})", value

    return st.builds(join, parts, st.sampled_from("+-*/"), parts)


@given(st.recursive(leaves, joined, max_leaves=12))
def test_agrees_with_exact_fractions(made: tuple[str, Fraction]) -> None:
    text, value = made
    assert evaluate(text).value == value


@given(st.lists(st.integers(1, 99), min_size=2, max_size=12), st.data())
def test_precedence_is_that_of_python(numbers: list[int], data: st.DataObject) -> None:
    operators = [data.draw(st.sampled_from(["+", "-", "*", " / ", "-(", "* -", " / -"])) for _ in numbers[1:]]
    text = str(numbers[0]) + "".join(f"{op}{number}" for op, number in zip(operators, numbers[1:], strict=True))
    text += ")" * text.count("(")
    value = evaluate(text).value
    assert value is None or float(value) == pytest.approx(eval(text))


@given(st.text(st.sampled_from("0123456789+-*/() =x.^\\\n") | st.characters(), max_size=200))
def test_never_raises(text: str) -> None:
    found = evaluate(text)
    assert bool(found.reason) == (found.value is None)
