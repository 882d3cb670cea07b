"""Which env lives where: the least loaded worker gets the next one, and at a reset an env may move."""

import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from asyncrollout.errors import ClosedError, PoolError
from asyncrollout.pool.hosts import LONG, SOON, Backend, Home
from asyncrollout.pool.inline_host import LoopHome
from asyncrollout.pool.quarantine import Quarantine
from asyncrollout.pool.wire.codec import Op

if TYPE_CHECKING:
    from asyncrollout.pool.binding import Seat

_WORTH_MOVING = 0.0001  # seconds saved in each round of steps
_ROUNDS_TO_PAY = 20
_CLEARLY_LESS = 0.7
_WEIGH_EVERY = 0.1  # seconds
_FIRST_GUESS = 1e-5  # seconds of a step
_CLEARLY_SOONER = 0.5
_PATIENCE = 3.0  # how many times as long as expected calls may take
_SMALL_PART = 0.1
_LOOK_EVERY = 0.05  # seconds


class _Trial:
    """A suspect of a worker's death, and the rank of the worker that it has to itself."""

    def __init__(self, seat: "Seat", rank: int) -> None:
        self.seat, self.rank = seat, rank
        self.over = anyio.Event()


class Placement:
    """The seats of all open envs. Without a backend, everything lives on the event loop."""

    def __init__(self, loop_home: LoopHome, backend: Backend | None) -> None:
        self.seats: dict[Seat, None] = {}  # in the order of opening
        self.moved = 0
        self.open = False
        self._loop_home = loop_home
        self._backend = backend
        self.quarantine = Quarantine()
        self._trial: _Trial | None = None
        self._ids = itertools.count(1)
        self._turns: defaultdict[Any, anyio.Lock] = defaultdict(anyio.Lock)  # one for each `seat.queue`

    async def place(self, seat: "Seat") -> Home:
        """Give an env a place to live: the least loaded worker, or the one it is pinned to."""
        self.check_open()
        home: Home = self._loop_home
        if self._backend is not None and not seat.on_loop:
            usable = await self._wait_usable(self._backend, seat)
            near = seat.beside.home if seat.beside is not None else None
            is_free = near is not None and near in usable and not near.is_held_up
            home = near if near is not None and is_free else _least_loaded(usable, seat)
        if seat.weighs and not seat.load:
            seat.load = seat.last_seconds = self._usual_load()
        seat.home, seat.id = home, next(self._ids)  # a new id, since the old place may still be at work on its end
        self.seats[seat] = None
        home.envs += 1
        home.load += seat.load
        return home

    async def _wait_usable(self, backend: Backend, seat: "Seat") -> Sequence[Home]:
        """The homes to choose from. An env that builds slowly waits in its queue for an idle one.

        So calls of built envs come first, and no worker is idle while another has two envs to build. An env waits at
        most a few times as long as the calls under way should take. Envs that build quickly do not wait here.
        """
        usable = await self._permitted(backend, seat)
        if seat.pinned is not None or seat.was_moved or not seat.builds_slowly:
            return usable
        async with self._turns[seat.queue]:
            since = busy = anyio.current_time()
            longest = 0.0
            is_notified = True  # that a home is idle, after calls that wait elsewhere had the first choice
            while seat.builds_slowly and not (is_notified and any(home.is_idle for home in usable)):
                now, work, soonest = anyio.current_time(), seat.work(Op.OPEN), min(home.wait() for home in usable)
                longest = max(longest, soonest)
                busy = now if soonest > SOON else busy
                if now - busy > _SMALL_PART * work or now - since > _PATIENCE * longest + _SMALL_PART * work:
                    break
                with anyio.move_on_after(_LOOK_EVERY) as look:
                    await backend.wait_idle()
                is_notified = not look.cancelled_caught
                usable = await self._permitted(backend, seat)
            return usable

    async def _permitted(self, backend: Backend, seat: "Seat") -> Sequence[Home]:
        """The homes where an env may live: apart from one that is cleared for another env, and from any quarantine."""
        while True:
            trial = self._trial
            if trial is not None and trial.seat is seat:
                return await backend.wait_usable(trial.rank)
            rank, avoided = self._quarantined(seat)
            try:
                usable = await backend.wait_usable(rank, {*avoided, *([trial.rank] if trial else ())})
            except ClosedError:
                raise
            except PoolError:
                if seat.pinned is not None or rank is None:
                    raise
                self.quarantine.end()
                continue
            if trial is None or any(home.rank != trial.rank for home in usable):
                return usable
            await trial.over.wait()

    def _quarantined(self, seat: "Seat") -> tuple[int | None, set[int]]:
        """The rank where an env is to live, if any, and those where it is not to, while there are others."""
        rank = self.quarantine.rank
        if seat.pinned is not None or rank is None or not self._has_others() or not self._has_ranks_beside(rank):
            return seat.pinned, set()
        return (rank, set()) if self._is_quarantined(seat) else (None, {rank})

    @property
    def has_choice(self) -> bool:
        """Whether a call that waits could be made elsewhere: not if all other homes are taken by a quarantine."""
        rank = self.quarantine.rank
        return rank is None or self._backend is None or sum(home.rank != rank for home in self._backend.homes) > 1

    def _is_quarantined(self, seat: "Seat") -> bool:
        return seat.opening.spec.name in self.quarantine.names()

    def _has_others(self) -> bool:
        """Whether there are envs on workers that are not in quarantine; else there is nobody to protect."""
        names = self.quarantine.names()
        return any(not seat.on_loop and seat.opening.spec.name not in names for seat in self.seats)

    def _has_ranks_beside(self, rank: int) -> bool:
        return self._backend is not None and any(other != rank for other in self._backend.ranks)

    @asynccontextmanager
    async def cleared(self, seat: "Seat", patience: float) -> AsyncIterator[None]:
        """Give an env a worker without other envs, as far as these can be restored elsewhere or later."""
        rank = seat.last_rank if seat.pinned is None else seat.pinned
        if self._backend is None or seat.on_loop or rank is None:
            yield
            return
        self._trial = trial = _Trial(seat, rank)
        try:
            with anyio.move_on_after(patience):
                while self._send_others_away(trial) or self._is_busy(self._backend, rank):
                    await anyio.sleep(_LOOK_EVERY)
                    self.check_open()
            yield
        finally:
            self._trial = None
            trial.over.set()

    def _send_others_away(self, trial: "_Trial") -> bool:
        """Whether some of them are there until they were made."""
        others = [other for other in self.seats if other is not trial.seat and other.rank == trial.rank]
        for other in others:
            if other.may_leave:
                other.give_up()
        return any(other.is_being_made for other in others)

    def _is_busy(self, backend: Backend, rank: int) -> bool:
        return any(home.rank == rank and not home.is_idle for home in backend.homes)

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
        home = self.unseat(seat)
        if home is not None and not home.usable:
            home.drop(seat.id)  # nobody asks it now, and it may come back
        return home

    def rebalance(self, seat: "Seat") -> None:
        """At a reset an env has no state: if that pays, let it be made anew on a worker with less to do."""
        home = seat.home
        if home is None or not home.usable or self._backend is None or seat.on_loop or seat.pinned is not None:
            return
        rank, avoided = self._quarantined(seat)
        if home.rank in avoided or rank not in (None, home.rank):
            self._move_away(seat, home)
            return
        allowed = [one for one in self._backend.homes if one.rank not in avoided and rank in (None, one.rank)]
        target = _least_loaded(allowed or [home], seat)
        gain = home.load - (target.load + seat.load)
        pays = gain > _WORTH_MOVING and gain * _ROUNDS_TO_PAY > seat.build_seconds
        wait = home.wait()
        freer = wait > LONG and target.wait() + seat.build_seconds < _CLEARLY_SOONER * wait
        if freer or (pays and target.load < _CLEARLY_LESS * home.load):
            self._move_away(seat, home)

    def _move_away(self, seat: "Seat", home: Home) -> None:
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
            raise ClosedError(
                "the pool is not open: use `async with EnvPool(...) as pool:` and stay inside, or call "
                "`await pool.start()` first and `await pool.close()` at the end"
            )

    def _usual_load(self) -> float:
        homes = self._backend.homes if self._backend else ()
        envs = sum(home.envs for home in homes)
        return sum(home.load for home in homes) / envs if envs else _FIRST_GUESS


def _least_loaded(homes: Sequence[Home], seat: "Seat") -> Home:
    """By the work that their envs make, to a tenth of a microsecond, or by number; but first those that are free soon.

    Where an env is quick to build, an even load counts for more than a short wait.
    """
    soon = SOON if seat.builds_slowly or seat.was_moved else LONG

    def measure(home: Home) -> tuple[float, float, int]:
        wait = home.wait()
        return (wait if wait > soon else 0.0), (round(home.load, 7) if seat.weighs else 0.0), home.envs

    return min(homes, key=measure)
