"""Groups between their start and their verdict: those that play, and those that are finished."""

from collections import Counter, deque
from collections.abc import Callable

from asyncrollout.rollouts.sampling.task_source import GroupRequest
from asyncrollout.trajectories import Group


class PlayingGroups:
    """Groups that play, with the version of the weights that each began with."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}  # by the numbers of groups
        self._counts: Counter[int] = Counter()  # how many of them began with each version

    def __len__(self) -> int:
        return len(self._versions)

    def add(self, request: GroupRequest, version: int) -> None:
        self._versions[request.index] = version
        self._counts[version] += 1

    def remove(self, request: GroupRequest) -> None:
        version = self._versions.pop(request.index)
        self._counts[version] -= 1
        if not self._counts[version]:
            del self._counts[version]

    def has_since(self, version: int) -> bool:
        """Whether one plays that began with this version, or an older one."""
        return any(began <= version for began in self._counts)


class FinishedGroups:
    """A queue in finish order, or in start order: then an early group waits for all that started before it.

    What is in a batch must not depend on which group happens to be the quickest: verdicts follow this order.
    """

    def __init__(self, *, by_start: bool) -> None:
        self._by_start = by_start
        self._started: deque[int] = deque()  # by start: those whose turn has not come
        self._early: dict[int, Group] = {}
        self._ready: deque[Group] = deque()

    def __len__(self) -> int:
        return len(self._early) + len(self._ready)

    @property
    def has_next(self) -> bool:
        return bool(self._ready)

    def next(self) -> Group:
        return self._ready.popleft()

    def expect(self, request: GroupRequest) -> None:
        """Note that a group starts."""
        if self._by_start:
            self._started.append(request.index)

    def skip(self, request: GroupRequest) -> None:
        """Note that a group that started is dropped: no other waits for it."""
        if self._by_start:
            self._started.remove(request.index)
            self._move_early()

    def put(self, request: GroupRequest, group: Group) -> None:
        """Add a finished group."""
        if self._by_start:
            self._early[request.index] = group
            self._move_early()
        else:
            self._ready.append(group)

    def remove(self, is_stale: Callable[[Group], bool]) -> list[Group]:
        """Remove all stale groups, and return them."""
        early = {index: group for index, group in self._early.items() if is_stale(group)}
        removed = [*filter(is_stale, self._ready), *early.values()]
        gone = {group.id for group in removed}
        self._ready = deque(group for group in self._ready if group.id not in gone)
        if early:
            self._early = {index: group for index, group in self._early.items() if index not in early}
            self._started = deque(index for index in self._started if index not in early)
            self._move_early()
        return removed

    def _move_early(self) -> None:
        while self._started and self._started[0] in self._early:
            self._ready.append(self._early.pop(self._started.popleft()))
