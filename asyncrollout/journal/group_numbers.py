"""Numbers of groups: a run has many, and keeps them for as long as it lasts."""

from collections.abc import Iterable

from asyncrollout.trajectories import DRAWN


class GroupNumbers:
    """A set of whole numbers from 0 that mostly come in order: a mark below which all are in it, and the few others."""

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
    """The number of a group that was drawn; None of any other, as of an evaluation."""
    number = group.removeprefix(DRAWN)
    return int(number) if number != group and number.isdecimal() else None
