"""The member with the least load: found, added, removed and changed in constant time, however many there are."""

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class LeastLoaded(Generic[T]):
    """Members by load, a whole number. Of those with equal loads, the one that has had it for longest is first.

    Loads change by a few at a time, so that the least one is found again a few steps from where it was.
    """

    def __init__(self) -> None:
        self._loads: dict[T, int] = {}
        self._by_load: dict[int, dict[T, None]] = {}
        self._least = 0

    def __len__(self) -> int:
        return len(self._loads)

    def __contains__(self, member: object) -> bool:
        return member in self._loads

    def first(self) -> T | None:
        """The least loaded one; None if there is none."""
        if not self._loads:
            return None
        while self._least not in self._by_load:
            self._least += 1
        return next(iter(self._by_load[self._least]))

    def add(self, member: T, load: int = 0) -> None:
        self.discard(member)
        self._loads[member] = load
        self._by_load.setdefault(load, {})[member] = None
        self._least = min(self._least, load) if len(self._loads) > 1 else load

    def change(self, member: T, by: int) -> None:
        """Add to the load of a member; one that was removed stays out."""
        if member in self._loads:
            self.add(member, self._loads[member] + by)

    def discard(self, member: T) -> None:
        load = self._loads.pop(member, None)
        if load is None:
            return
        equal = self._by_load[load]
        del equal[member]
        if not equal:
            del self._by_load[load]
