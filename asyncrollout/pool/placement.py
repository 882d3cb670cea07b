"""Which env lives where: the least loaded worker gets the next one, and at a reset an env may move."""

import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from asyncrollout.errors import ClosedError, PoolError
from asyncrollout.pool.host_index import MANY_HOSTS, HostIndex
from asyncrollout.pool.hosts import LONG, SOON, Backend, EnvHost
from asyncrollout.pool.inline_host import InlineHost
from asyncrollout.pool.quarantine import Quarantine
from asyncrollout.pool.wire.messages import Op

if TYPE_CHECKING:
    from asyncrollout.pool.binding import EnvBinding

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
    """An env suspected of killing workers, and the rank of the worker that it has to itself."""

    def __init__(self, binding: "EnvBinding", rank: int) -> None:
        self.binding, self.rank = binding, rank
        self.over = anyio.Event()


class Placement:
    """The bindings of all open envs. Without a backend, everything lives on the event loop."""

    def __init__(self, inline_host: InlineHost, backend: Backend | None) -> None:
        self.bindings: dict[EnvBinding, None] = {}  # in the order of opening
        self.unweighed: dict[EnvBinding, None] = {}  # those whose latest step does not count in full yet
        self.moved = 0
        self.open = False
        self._inline_host = inline_host
        self._backend = backend
        self.quarantine = Quarantine()
        self._trial: _Trial | None = None
        self._ids = itertools.count(1)
        self._index = HostIndex()
        self._turns: defaultdict[Any, anyio.Lock] = defaultdict(anyio.Lock)  # one for each `binding.queue`

    async def place(self, binding: "EnvBinding") -> EnvHost:
        """Give an env a host: the least loaded worker, or the one it is pinned to."""
        self.check_open()
        host: EnvHost = self._inline_host
        if self._backend is not None and not binding.on_loop:
            usable = await self._wait_usable(self._backend, binding)
            near = binding.beside.host if binding.beside is not None else None
            is_free = near is not None and near in usable and not near.is_held_up
            host = near if near is not None and is_free else self._least_loaded(usable, binding)
        if binding.weighs and not binding.load:
            binding.load = binding.last_seconds = self._usual_load()
        binding.host, binding.id = host, next(self._ids)  # a new id: the old host may still be closing the env
        self.bindings[binding] = None
        host.envs += 1
        host.load += binding.load
        return host

    async def _wait_usable(self, backend: Backend, binding: "EnvBinding") -> Sequence[EnvHost]:
        """The hosts to choose from. An env that builds slowly waits in its queue for an idle one.

        So calls of built envs come first, and no worker is idle while another has two envs to build. An env waits at
        most a few times as long as the calls in flight should take. Envs that build quickly do not wait here.
        """
        usable = await self._permitted(backend, binding)
        if binding.pinned is not None or binding.was_moved or not binding.builds_slowly:
            return usable
        async with self._turns[binding.queue]:
            since = busy = anyio.current_time()
            longest = 0.0
            is_notified = True  # that a host is idle, after calls that wait elsewhere had the first choice
            while binding.builds_slowly and not (is_notified and any(host.is_idle for host in usable)):
                now, work, soonest = anyio.current_time(), binding.work(Op.OPEN), min(host.wait() for host in usable)
                longest = max(longest, soonest)
                busy = now if soonest > SOON else busy
                if now - busy > _SMALL_PART * work or now - since > _PATIENCE * longest + _SMALL_PART * work:
                    break
                with anyio.move_on_after(_LOOK_EVERY) as look:
                    await backend.wait_idle()
                is_notified = not look.cancelled_caught
                usable = await self._permitted(backend, binding)
            return usable

    async def _permitted(self, backend: Backend, binding: "EnvBinding") -> Sequence[EnvHost]:
        """The hosts where an env may live: not one that is cleared for another env, nor one in quarantine."""
        while True:
            trial = self._trial
            if trial is not None and trial.binding is binding:
                return await backend.wait_usable(trial.rank)
            rank, avoided = self._quarantined(binding)
            try:
                usable = await backend.wait_usable(rank, {*avoided, *([trial.rank] if trial else ())})
            except ClosedError:
                raise
            except PoolError:
                if binding.pinned is not None or rank is None:
                    raise
                self.quarantine.end()
                continue
            if trial is None or any(host.rank != trial.rank for host in usable):
                return usable
            await trial.over.wait()

    def _quarantined(self, binding: "EnvBinding") -> tuple[int | None, set[int]]:
        """The rank where an env must live, if any, and the ranks to avoid while there are others."""
        rank = self.quarantine.rank
        if binding.pinned is not None or rank is None or not self._has_others() or not self._has_ranks_beside(rank):
            return binding.pinned, set()
        return (rank, set()) if self._is_quarantined(binding) else (None, {rank})

    @property
    def has_choice(self) -> bool:
        """Whether a call that waits could be made elsewhere: not if every other host is in quarantine."""
        rank = self.quarantine.rank
        return rank is None or self._backend is None or sum(host.rank != rank for host in self._backend.hosts) > 1

    def _is_quarantined(self, binding: "EnvBinding") -> bool:
        return binding.opening.spec.name in self.quarantine.names()

    def _has_others(self) -> bool:
        """Whether any env on a worker is not in quarantine; otherwise there is none to protect."""
        names = self.quarantine.names()
        return any(not binding.on_loop and binding.opening.spec.name not in names for binding in self.bindings)

    def _has_ranks_beside(self, rank: int) -> bool:
        return self._backend is not None and any(other != rank for other in self._backend.ranks)

    @asynccontextmanager
    async def cleared(self, binding: "EnvBinding", patience: float) -> AsyncIterator[None]:
        """Give an env a worker to itself, as far as the others can be restored elsewhere or later."""
        rank = binding.last_rank if binding.pinned is None else binding.pinned
        if self._backend is None or binding.on_loop or rank is None:
            yield
            return
        self._trial = trial = _Trial(binding, rank)
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
        """Move the other envs off the trial's worker; whether some are still being built there."""
        others = [other for other in self.bindings if other is not trial.binding and other.rank == trial.rank]
        for other in others:
            if other.may_leave:
                other.give_up()
        return any(other.is_being_made for other in others)

    def _is_busy(self, backend: Backend, rank: int) -> bool:
        return any(host.rank == rank and not host.is_idle for host in backend.hosts)

    def unbind(self, binding: "EnvBinding") -> EnvHost | None:
        """Take an env off its host, which may be gone."""
        host, binding.host = binding.host, None
        if host is not None:
            host.envs -= 1
            host.load -= binding.load
            if host.usable:
                self._index.add(host)
        return host

    def leave(self, binding: "EnvBinding") -> EnvHost | None:
        """The env is closed for good."""
        self.bindings.pop(binding, None)
        self.unweighed.pop(binding, None)
        host = self.unbind(binding)
        if host is not None and not host.usable:
            host.drop(binding.id)  # not usable now, but it may come back
        return host

    def rebalance(self, binding: "EnvBinding") -> None:
        """At a reset, when an env has no state, have it built again on a less loaded worker, if that pays."""
        host = binding.host
        if host is None or not host.usable or self._backend is None or binding.on_loop or binding.pinned is not None:
            return
        rank, avoided = self._quarantined(binding)
        if host.rank in avoided or rank not in (None, host.rank):
            self._move_away(binding, host)
            return
        allowed = self._backend.hosts
        if avoided or rank is not None:
            allowed = [one for one in allowed if one.rank not in avoided and rank in (None, one.rank)]
        target = self._least_loaded(allowed or [host], binding)
        gain = host.load - (target.load + binding.load)
        pays = gain > _WORTH_MOVING and gain * _ROUNDS_TO_PAY > binding.build_seconds
        wait = host.wait()
        freer = wait > LONG and target.wait() + binding.build_seconds < _CLEARLY_SOONER * wait
        if freer or (pays and target.load < _CLEARLY_LESS * host.load):
            self._move_away(binding, host)

    def _move_away(self, binding: "EnvBinding", host: EnvHost) -> None:
        self.moved += 1
        self.unbind(binding)
        host.drop(binding.id)

    async def weigh(self) -> None:
        """Update the loads of envs from their latest steps, at intervals: at every step it would cost too much.

        An env that waits for its policy costs nothing once its latest step counts in full, after some two seconds.
        """
        while True:
            await anyio.sleep(_WEIGH_EVERY)
            self.unweighed = {binding: None for binding in self.unweighed if binding.weigh()}

    def check_open(self) -> None:
        if not self.open:
            raise ClosedError(
                "the pool is not open: use `async with EnvPool(...) as pool:` and stay inside, or call "
                "`await pool.start()` first and `await pool.close()` at the end"
            )

    def _least_loaded(self, hosts: Sequence[EnvHost], binding: "EnvBinding") -> EnvHost:
        """The host that is free soon, then that with the least load (to a tenth of a microsecond) or the fewest envs.

        Where an env is quick to build, an even load counts for more than a short wait.
        """
        soon = SOON if binding.builds_slowly or binding.was_moved else LONG
        if len(hosts) > MANY_HOSTS:
            return self._index.least_loaded(hosts, soon=soon)

        def measure(host: EnvHost) -> tuple[float, float, int]:
            wait = host.wait()
            return (wait if wait > soon else 0.0), (round(host.load, 7) if binding.weighs else 0.0), host.envs

        return min(hosts, key=measure)

    def _usual_load(self) -> float:
        hosts = self._backend.hosts if self._backend else ()
        if len(hosts) > MANY_HOSTS:
            return self._index.mean_load or _FIRST_GUESS
        envs = sum(host.envs for host in hosts)
        return sum(host.load for host in hosts) / envs if envs else _FIRST_GUESS
