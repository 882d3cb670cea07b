"""Which env lives where: the least loaded worker gets the next one, and at a reset an env may move."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from asyncrollout.errors import ClosedError
from asyncrollout.pool.home import Backend, Home
from asyncrollout.pool.inline import LoopHome

if TYPE_CHECKING:
    from asyncrollout.pool.seat import Seat

_WORTH_MOVING = 0.0001  # seconds saved in each round of steps
_ROUNDS_TO_PAY = 20
_CLEARLY_LESS = 0.7
_WEIGH_EVERY = 0.1  # seconds
_FIRST_GUESS = 1e-5  # seconds of a step


class Placement:
    """The seats of all open envs. Without a backend, everything lives on the event loop."""

    def __init__(self, loop_home: LoopHome, backend: Backend | None) -> None:
        self.seats: dict[Seat, None] = {}  # in the order of opening
        self.moved = 0
        self.open = False
        self._loop_home = loop_home
        self._backend = backend
        self._ids = itertools.count(1)

    async def place(self, seat: "Seat") -> Home:
        """Give an env a place to live: the least loaded worker, or the one it is pinned to."""
        self.check_open()
        home: Home = self._loop_home
        if self._backend is not None and not seat.on_loop:
            usable = await self._backend.wait_usable(seat.pinned)
            near = seat.beside.home if seat.beside is not None else None
            is_free = near is not None and near in usable and not near.stuck
            home = near if near is not None and is_free else _least_loaded(usable, by_load=seat.weighs)
            seat.beside = None  # from here on it may be anywhere
        if seat.weighs and not seat.load:
            seat.load = seat.last_seconds = self._usual_load()
        seat.home, seat.id = home, next(self._ids)  # a new id, since the old place may still be at work on its end
        self.seats[seat] = None
        home.envs += 1
        home.load += seat.load
        return home

    def unseat(self, seat: "Seat") -> Home | None:
        """Take an env out of its place, which may be gone."""
        home, seat.home = seat.home, None
        if home is not None:
            home.envs -= 1
            home.load -= seat.load
        return home

    def leave(self, seat: "Seat") -> Home | None:
        """The env is closed for good."""
        self.seats.pop(seat, None)
        return self.unseat(seat)

    def rebalance(self, seat: "Seat") -> None:
        """At a reset an env has no state: if that pays, let it be made anew on a worker with less to do."""
        home = seat.home
        if home is None or not home.usable or self._backend is None or seat.on_loop or seat.pinned is not None:
            return
        target = _least_loaded(self._backend.homes or [home], by_load=seat.weighs)
        gain = home.load - (target.load + seat.load)
        pays = gain > _WORTH_MOVING and gain * _ROUNDS_TO_PAY > seat.build_seconds
        freer = home.stuck and not target.stuck
        if freer or (pays and target.load < _CLEARLY_LESS * home.load):
            self.moved += 1
            self.unseat(seat)
            home.drop(seat.id)

    async def weigh(self) -> None:
        """Learn, from their latest steps, how much of a load the envs are; often enough, and not at every step."""
        while True:
            await anyio.sleep(_WEIGH_EVERY)
            for seat in self.seats:
                seat.weigh()

    def check_open(self) -> None:
        if not self.open:
            raise ClosedError("the pool is not open: use `async with EnvPool(...) as pool:` and stay inside")

    def _usual_load(self) -> float:
        homes = self._backend.homes if self._backend else ()
        envs = sum(home.envs for home in homes)
        return sum(home.load for home in homes) / envs if envs else _FIRST_GUESS


def _least_loaded(homes: Sequence[Home], *, by_load: bool) -> Home:
    """By the work that envs make, to a tenth of a microsecond; by their number if it makes no work, or as much."""
    free = [home for home in homes if not home.stuck]
    return min(free or homes, key=lambda home: (round(home.load, 7) if by_load else 0.0, home.envs))
