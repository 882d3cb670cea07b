"""Places for rollouts in flight: each rollout waits for its own, in order, and gives it back at its end."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Literal, Self

import anyio

Use = Literal["training", "evaluation"]


class RolloutPlace:
    """What one rollout needs to play: it is waited for, then granted, then released.

    Nothing here awaits, so that whoever plays the rollout may be told by a message.
    """

    __slots__ = ("_on_grant", "_places", "is_granted", "is_released", "turn", "use")

    def __init__(self, places: "Places", use: Use, turn: tuple[int, int], on_grant: Callable[[], None]) -> None:
        self._places = places
        self._on_grant = on_grant
        self.use: Use = use
        self.turn = turn
        self.is_granted = self.is_released = False

    def __lt__(self, other: "RolloutPlace") -> bool:
        return self.turn < other.turn

    def grant(self) -> None:
        self.is_granted = True
        self._on_grant()

    def notify(self, on_grant: Callable[[], None]) -> None:
        """Call this once it is granted, or now if it is, instead of what was given before."""
        self._on_grant = on_grant
        if self.is_granted:
            on_grant()

    def release(self) -> None:
        """Give it back, or wait for it no longer; again without effect."""
        if not self.is_released:
            self.is_released = True
            self._places.take_back(self)


class Places:
    """At most `total` rollouts play at a time. No place is empty while a rollout waits for one.

    A group starts with its first member's place, and its members take places one by one: if a group waited until all of
    its members fit, or kept the places of those that have ended, most places would be empty most of the time. Groups
    are served in the order in which they asked, so at most one group of a stream is only partly in its places. Training
    and evaluations have half each while both wait, and all places while the others do not.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._used: dict[Use, int] = {"training": 0, "evaluation": 0}
        self._waiting: dict[Use, list[RolloutPlace]] = {"training": [], "evaluation": []}  # heaps
        self._withdrawn: dict[Use, int] = {"training": 0, "evaluation": 0}  # of those that wait
        self._groups = itertools.count()
        self._odd = 0  # half of an odd number is rounded down and up by turns

    @property
    def free(self) -> int:
        return self.total - self.used

    @property
    def used(self) -> int:
        return self._used["training"] + self._used["evaluation"]

    def waiting(self, use: Use) -> int:
        return len(self._waiting[use]) - self._withdrawn[use]

    async def next_group(self, use: Use) -> "GroupPlaces":
        """Wait until a group may start: it has a place for its first member."""
        places = GroupPlaces(self, use, next(self._groups))
        await places.reserve()
        return places

    def request(self, use: Use, turn: tuple[int, int], on_grant: Callable[[], None]) -> RolloutPlace:
        """Wait for a place; `on_grant` is called once it is granted, perhaps before this returns."""
        place = RolloutPlace(self, use, turn, on_grant)
        heapq.heappush(self._waiting[use], place)
        self._grant()
        return place

    def take_back(self, place: RolloutPlace) -> None:
        """What `RolloutPlace.release` does."""
        if place.is_granted:
            self._used[place.use] -= 1
            self._grant()
            return
        self._withdrawn[place.use] += 1
        waiting = self._waiting[place.use]
        if 2 * self._withdrawn[place.use] > len(waiting):
            waiting[:] = [other for other in waiting if not other.is_released]
            heapq.heapify(waiting)
            self._withdrawn[place.use] = 0

    def _grant(self) -> None:
        while self.free and (place := self._next()) is not None:
            heapq.heappop(self._waiting[place.use])
            self._used[place.use] += 1
            place.grant()

    def _next(self) -> RolloutPlace | None:
        training, evaluation = self._first("training"), self._first("evaluation")
        if training is None or evaluation is None:
            return training or evaluation
        half = (self.total + self._odd) // 2
        self._odd = 1 - self._odd
        return evaluation if self._used["evaluation"] < half else training

    def _first(self, use: Use) -> RolloutPlace | None:
        waiting = self._waiting[use]
        while waiting and waiting[0].is_released:
            heapq.heappop(waiting)
            self._withdrawn[use] -= 1
        return waiting[0] if waiting else None


class GroupPlaces:
    """The places of one group's members, in the order in which they ask; a retry keeps the group's turn.

    `request` serves who plays a member elsewhere, the rest makes it `Slots` for a group that is played here. Leaving it
    as a context releases places that no member has asked for, as when an earlier process has finished all.
    """

    def __init__(self, places: Places, use: Use, number: int) -> None:
        self._places = places
        self._use: Use = use
        self._number = number
        self._requests = 0
        self._reserved: deque[RolloutPlace] = deque()  # for the next members, who have not asked yet
        self._taken: dict[object, RolloutPlace] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unreserve()

    def request(self, on_grant: Callable[[], None]) -> RolloutPlace:
        """The next member's place; `on_grant` is called once it is granted, perhaps before this returns."""
        if self._reserved:
            place = self._reserved.popleft()
            place.notify(on_grant)
            return place
        return self._request(on_grant)

    def expect(self, members: int) -> None:
        """Wait for places of so many members, who ask later, when messages have come: younger groups stay behind."""
        while len(self._reserved) < members:
            self._reserved.append(self._request(_ignore))

    def _request(self, on_grant: Callable[[], None]) -> RolloutPlace:
        self._requests += 1
        return self._places.request(self._use, (self._number, self._requests), on_grant)

    async def reserve(self) -> None:
        """Wait for the first member's place."""
        self._reserved.append(await self._granted())

    def unreserve(self) -> None:
        """Release the places that no member has asked for."""
        while self._reserved:
            self._reserved.popleft().release()

    async def acquire_on_behalf_of(self, borrower: object, /) -> None:
        self._taken[borrower] = await self._granted()

    def acquire_on_behalf_of_nowait(self, borrower: object, /) -> None:
        """As that of a `CapacityLimiter`: raise `anyio.WouldBlock` if no place is free."""
        place = self.request(_ignore)
        if not place.is_granted:
            place.release()
            raise anyio.WouldBlock
        self._taken[borrower] = place

    def release_on_behalf_of(self, borrower: object, /) -> None:
        self._taken.pop(borrower).release()

    async def _granted(self) -> RolloutPlace:
        granted = anyio.Event()
        place = self.request(granted.set)
        if place.is_granted:
            return place
        try:
            await granted.wait()
        except BaseException:
            place.release()
            raise
        return place


def _ignore() -> None:
    """Whoever does not wait looks at once whether the place is granted."""
