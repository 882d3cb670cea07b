"""Countdown's puzzles: made so that they can be solved, and solved where they come from elsewhere.

An expression in the making is a number, or (left, operator, right).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from math import gcd, isqrt
from typing import Any

import msgspec
import numpy as np

Tree = int | tuple[Any, str, Any]
Ratio = tuple[int, int]
"""A fraction in lowest terms, not negative: several times as fast as `Fraction`."""

MOST_SEARCHED = 6
"""With more numbers a search would take minutes."""

_TABLED = 3


class Puzzle(msgspec.Struct, frozen=True):
    """Reach `target` with all of `nums`; `solution` if it is known from the making."""

    target: int
    nums: tuple[int, ...]
    solution: str = ""

    @property
    def identity(self) -> tuple[int, ...]:
        """The same for puzzles that differ in the order of their numbers only."""
        return (self.target, *sorted(self.nums))


def draw_puzzle(rng: np.random.Generator, count: int, max_number: int, max_target: int) -> Puzzle | None:
    """A puzzle made backwards: a target, taken apart into `count` numbers; None if that leads nowhere.

    Each part is a positive integer, no step multiplies or divides by 1, and the target is none of the numbers.
    """
    target = int(rng.integers(1, max_target + 1))
    parts: dict[int, list[Any]] = {0: [target]}  # node to [value], or to [value, left node, operator, right node]
    leaves = [0]
    for _ in range(count - 1):
        too_large = [node for node in leaves if parts[node][0] > max_number]
        node = too_large[0] if too_large else leaves[rng.integers(len(leaves))]
        ways = _ways_apart(rng, parts[node][0], max_number)
        if not ways:
            return None
        left, operator, right = ways[rng.integers(len(ways))]
        nodes = len(parts), len(parts) + 1
        parts[nodes[0]], parts[nodes[1]] = [left], [right]
        parts[node] += [nodes[0], operator, nodes[1]]
        leaves.remove(node)
        leaves += nodes
    nums = [parts[leaf][0] for leaf in leaves]
    if max(nums) > max_number or target in nums:
        return None

    def tree(node: int) -> Tree:
        value, *made_of = parts[node]
        return (tree(made_of[0]), made_of[1], tree(made_of[2])) if made_of else value

    return Puzzle(target, tuple(nums[place] for place in rng.permutation(count)), _written(tree(0)))


def _ways_apart(rng: np.random.Generator, value: int, max_number: int) -> list[tuple[int, str, int]]:
    """One way for each operator that allows any."""
    ways = []
    if value > 1:
        right = int(rng.integers(1, min(value, max_number + 1)))
        ways.append((value - right, "+", right))
    if value < max_number:
        right = int(rng.integers(1, max_number - value + 1))
        ways.append((value + right, "-", right))
    divisors = [divisor for divisor in range(2, isqrt(value) + 1) if value % divisor == 0]
    if divisors:
        divisor = divisors[rng.integers(len(divisors))]
        ways.append((divisor, "*", value // divisor))
    if value * 2 <= max_number:
        right = int(rng.integers(2, max_number // value + 1))
        ways.append((value * right, "/", right))
    return ways


def solve_puzzle(target: int, nums: tuple[int, ...]) -> str | None:
    """An expression of all the numbers that gives the target; None if there is none, or there are too many numbers."""
    if len(nums) > MOST_SEARCHED:
        return None
    found = _find(tuple(sorted(nums)), (abs(target), 1), set())
    if found is None:
        return None
    return _written(found) if target >= 0 else f"-({_written(found)})"


def _find(nums: tuple[int, ...], target: Ratio, failed: set[Any]) -> Tree | None:
    """Take a few of the numbers, in every way, and see whether the others can make what is then missing.

    Values are never negative: where a - b would be, b - a is, and the sign can be moved out of any expression.
    """
    if len(nums) <= _TABLED:
        return _reachable(nums).get(target)
    if (nums, target) in failed:
        return None
    for few, others in _divided(nums):
        for value, tree in _reachable(few).items():
            for missing, operator, comes_first in _missing(value, target):
                found = _find(others, missing, failed)
                if found is not None:
                    return (tree, operator, found) if comes_first else (found, operator, tree)
    failed.add((nums, target))
    return None


@lru_cache(maxsize=256)
def _divided(nums: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every way to take at most half of the numbers."""
    found = {}
    for size in range(1, len(nums) // 2 + 1):
        for places in combinations(range(len(nums)), size):
            few = tuple(nums[place] for place in places)
            found[few] = tuple(number for place, number in enumerate(nums) if place not in places)
    return list(found.items())


@lru_cache(maxsize=64)
def _reachable(nums: tuple[int, ...]) -> dict[Ratio, Tree]:
    """Every value of all the numbers, with an expression for it."""
    if len(nums) == 1:
        return {(nums[0], 1): nums[0]}
    values: dict[Ratio, Tree] = {}
    for few, others in _divided(nums):
        for first, left in _reachable(few).items():
            for second, right in _reachable(others).items():
                for value, operator, in_order in _combined(first, second):
                    values.setdefault(value, (left, operator, right) if in_order else (right, operator, left))
    return values


def _combined(first: Ratio, second: Ratio) -> Iterator[tuple[Ratio, str, bool]]:
    """What two values give, and whether the first comes first."""
    (a, b), (c, d) = first, second
    difference = a * d - c * b
    yield _lowest(a * d + c * b, b * d), "+", True
    yield _lowest(abs(difference), b * d), "-", difference >= 0
    yield _lowest(a * c, b * d), "*", True
    if c:
        yield _lowest(a * d, b * c), "/", True
    if a:
        yield _lowest(c * b, d * a), "/", False


def _missing(value: Ratio, target: Ratio) -> Iterator[tuple[Ratio, str, bool]]:
    """What makes `target` together with `value`, and whether `value` comes first."""
    (a, b), (c, d) = value, target
    rest = c * b - a * d
    yield _lowest(abs(rest), b * d), "+" if rest >= 0 else "-", True
    yield _lowest(c * b + a * d, b * d), "-", False
    if a:
        yield _lowest(c * b, d * a), "*", True
        yield _lowest(c * a, d * b), "/", False
        if c:
            yield _lowest(a * d, b * c), "/", True


def _lowest(top: int, bottom: int) -> Ratio:
    common = gcd(top, bottom)
    return top // common, bottom // common


def _written(tree: Tree) -> str:
    if isinstance(tree, int):
        return str(tree)
    left, operator, right = (part if isinstance(part, str) else _written(part) for part in tree)
    return f"{_grouped(left)} {operator} {_grouped(right)}"


def _grouped(text: str) -> str:
    return f"({text})" if " " in text else text
