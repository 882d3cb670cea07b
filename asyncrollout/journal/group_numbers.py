"""Sets of group numbers: a run has many, and keeps them as long as it lasts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from asyncrollout.trajectories import DRAWN, group_of


class GroupNumbers:
    """A set of whole numbers that come mostly in order: a mark below which all are in it, and the few above."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._mark = 0
        self._others: set[int] = set()
        for number in sorted(numbers):
            self.add(number)

    def add(self, number: int) -> None:
        if number > self._mark:
            self._others.add(number)
        elif number == self._mark:
            self._mark += 1
            while self._mark in self._others:
                self._others.discard(self._mark)
                self._mark += 1

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and (0 <= number < self._mark or number in self._others)


def number_of(group: str) -> int | None:
    """The number of a drawn group; None for others, such as those of evaluations."""
    number = group.removeprefix(DRAWN)
    return int(number) if number != group and number.isdecimal() else None


def unfinished(groups: Iterable[str], finished: Iterable[str], given: Mapping[str, Any]) -> Iterator[str]:
    """The groups to play again from the start when the agent or policy has changed: no group may mix the two.

    `finished` are the uids of rollouts that are over. Evaluations start again as a whole.
    """
    over = Counter(map(group_of, finished))
    for group in groups:
        if number_of(group) is None or over[group] < given.get("group_size", 1):
            yield group
