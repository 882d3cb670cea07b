"""Where an env lives, and how it gets a new place, in its old state, when that one is lost."""

from collections.abc import Mapping
from typing import Any, TypeVar

import anyio

from asyncrollout.errors import ClosedError, EnvCrashed, EnvResourceError, EnvTimeout, RolloutError
from asyncrollout.pool.history import History
from asyncrollout.pool.home import Home, Limits, Lost, Reply
from asyncrollout.pool.hosted import Opening
from asyncrollout.pool.placement import Placement
from asyncrollout.pool.wire import WITHOUT_EPISODE, Op
from asyncrollout.types import Recovery

E = TypeVar("E", bound=RolloutError)

_DEATHS_TO_FAIL = 2
_SMOOTHING = 0.3


class Rules:
    """What all envs of a pool have in common: their limits, whether and how often they are restored."""

    def __init__(self, limits: Limits, recover: Recovery, max_restarts: int) -> None:
        self.limits = limits
        self.recover = recover
        self.max_restarts = max_restarts
        self.restored = 0
        self.quarantine = anyio.Lock()  # one suspect at a time, so that a death has one cause


class Seat:
    """An env's place and its past. Whoever waits for a lost call restores the env: nobody else takes part."""

    def __init__(
        self,
        opening: Opening,
        placement: Placement,
        rules: Rules,
        *,
        pinned: int | None,
        on_loop: bool,
        beside: "Seat | None" = None,
    ) -> None:
        self.id = 0  # by which its home knows it; another one in each place
        self.opening = opening
        self.pinned = pinned
        self.on_loop = on_loop
        self.beside = beside
        self.weighs = not on_loop and opening.spec.runs == "cpu"
        self.movable = self._may_move = pinned is None and opening.spec.replayable and rules.recover != "none"
        self.home: Home | None = None
        self.load = 0.0  # seconds of a worker's time that a step takes, smoothed
        self.last_seconds = 0.0
        self.build_seconds = 0.0
        self.history = History()
        self._placement = placement
        self._rules = rules
        self._restarts = 0
        self._deaths = 0

    @property
    def rank(self) -> int | None:
        return self.home.rank if self.home else None

    def weigh(self) -> None:
        """Let the latest step count for what the env weighs on its home; moving must not take longer than waiting."""
        if self.weighs and self.home is not None:
            change = _SMOOTHING * (self.last_seconds - self.load)
            self.load += change
            self.home.load += change
            self.movable = self._may_move and self.history.length * self.load < self._rules.limits.soft

    def begin_episode(self, seed: int, *, anew: bool) -> None:
        """Without state, the env may move to a worker that has less to do; one that failed is made `anew`."""
        self._restarts = self._deaths = 0
        self.history.end(seed)
        if anew:
            home = self._placement.unseat(self)
            if home is not None:
                home.drop(self.id)
        self._placement.rebalance(self)

    def leave(self) -> Home | None:
        """The env is closed for good."""
        return self._placement.leave(self)

    async def call_elsewhere(self, lost: Lost | None, op: Op, payload: Any) -> Reply:
        """Restore the env in a new place and make the call there; raise if it is not to be restored."""
        while True:
            if lost is not None:
                self._accept(lost, op)
            try:
                if not self._deaths:
                    return await self._call_anew(op, payload)
                async with self._rules.quarantine:
                    reply = await self._call_anew(op, payload)
                    self._deaths = 0
                    return reply
            except Lost as again:
                lost = again

    async def _call_anew(self, op: Op, payload: Any) -> Reply:
        home = await self._placement.place(self)
        settled = False
        try:
            reply = await home.call(self.id, Op.OPEN, self.opening, movable=self.movable)
            self.build_seconds = reply[5]
            past = self.history.setup_alone() if op in WITHOUT_EPISODE else self.history.past()
            if reply[1] is None and past is not None:
                reply = await home.call(self.id, Op.REPLAY, past, movable=self.movable)
            settled = reply[1] is None
        finally:
            if not settled and self._placement.unseat(self) is not None:
                home.drop(self.id)
        if not settled or op is Op.OPEN:
            return reply
        return await home.call(self.id, op, payload, movable=self.movable)

    def _accept(self, lost: Lost, op: Op) -> None:
        """Take note that the env's place is gone; raise if the env is not to be restored."""
        name, rules = self.opening.spec.name, self._rules
        home = self._placement.unseat(self)
        rank = home.rank if home else None
        if lost.kind == "closed":
            raise ClosedError(f"env {name!r}: the pool is closed")
        if lost.kind == "moved":
            self._placement.moved += 1
            if home is not None:
                home.drop(self.id)
            return
        during = op.name.lower()
        if lost.suspects:
            self._deaths += 1
            if lost.kind == "timeout":
                raise self.error(EnvTimeout, f"{during} took longer than {rules.limits.of(op):g} s", rank)
            if lost.kind == "memory" and lost.suspects == 1:
                text = f"its worker used more than {rules.limits.memory} bytes of memory during {during}"
                raise self.error(EnvResourceError, text, rank, lost.log)
        self._restarts += 1
        if self._deaths >= _DEATHS_TO_FAIL and lost.suspects == 1:
            reason = f"{self._deaths} times at the same point"
        elif rules.recover == "none":
            reason = "and recover='none' means that it is not restored"
        elif not self.opening.spec.replayable and op not in WITHOUT_EPISODE and self.history.running:
            reason = "and it is not replayable"
        elif self._restarts > rules.max_restarts:
            reason = f"after {rules.max_restarts} restarts in one episode"
        else:
            rules.restored += 1
            return
        text = f"its worker died ({lost.cause or lost.kind}) during {during}, {reason}"
        raise self.error(EnvCrashed, text, rank, lost.log and f"The end of the worker's log:\n{lost.log}")

    def error(self, kind: type[E], text: str, worker: int | None, notes: str = "") -> E:
        """An error that names env, seed, turn and worker."""
        name, history = self.opening.spec.name, self.history
        place = {"seed": history.seed, "turn": None if history.seed is None else history.turn, "worker": worker}
        return kind.at(told_place(name, place) + text, notes=notes, env=name, **place)


def told_place(env: str | None, place: Mapping[str, int | None]) -> str:
    """How the message of an env's error begins."""
    where = ", ".join(f"{key} {value}" for key, value in place.items() if value is not None)
    return f"env {env!r}{where and f' ({where})'}: "
