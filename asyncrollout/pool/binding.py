"""Where an env lives, and how it gets a new place, in its old state, when that one is lost."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from asyncrollout.errors import ClosedError, EnvCrashed, EnvResourceError, EnvTimeout, RolloutError
from asyncrollout.pool.blame import Blame
from asyncrollout.pool.env_history import EnvHistory
from asyncrollout.pool.hosts import SOON, EnvHost, HostLost
from asyncrollout.pool.placement import Placement
from asyncrollout.pool.recovery import GUESS, SMOOTHING, RecoveryRules, smooth
from asyncrollout.pool.wire.messages import WITHOUT_EPISODE, CallReply, Op, OpenRequest
from asyncrollout.pool.wire.replay_log import ReplayLog

E = TypeVar("E", bound=RolloutError)

_QUICK = 0.005  # seconds; a quicker step holds up nobody
_NEGLIGIBLE = 0.01  # of the load, by which it may be off


class EnvBinding:
    """An env's host and its history. Whoever waits for a lost call restores the env: nobody else takes part."""

    def __init__(
        self,
        opening: OpenRequest,
        placement: Placement,
        rules: RecoveryRules,
        *,
        pinned: int | None,
        on_loop: bool,
        beside: "EnvBinding | None" = None,
    ) -> None:
        self.id = 0  # by which its host knows it; another one in each place
        self.opening = opening
        self.pinned = pinned
        self.on_loop = on_loop
        self.beside = beside
        self.weighs = not on_loop and opening.spec.runs == "cpu"
        self.host: EnvHost | None = None
        self.last_rank: int | None = None  # of the worker that died last
        self.load = 0.0  # seconds of a worker's time that a step takes, smoothed
        self.last_seconds = 0.0
        self.build_seconds = 0.0
        self.reset_seconds = 0.0
        self.history = EnvHistory(replayable=opening.spec.replayable)
        self._placement = placement
        self._rules = rules
        self._usual = rules.usual(opening.spec.name)
        self.step_work = self._usual.step
        self._is_movable = pinned is None and opening.spec.replayable and rules.recover != "none"
        self.was_moved = False  # in the call under way
        self.was_recalled = False  # likewise
        self._aim: Op | None = None  # the call for which the env is being made
        self._at: Op | None = None  # what is being done for the call under way: build, replay, the call itself
        self._blame = Blame(rules.max_restarts, rules.acquittals)

    @property
    def rank(self) -> int | None:
        return self.host.rank if self.host else None

    def was_stepped(self, seconds: float) -> None:
        self.last_seconds = seconds
        if self.weighs:
            self._placement.unweighed[self] = None

    def weigh(self) -> bool:
        """Let the latest step count for what the env weighs on its host; whether it does not count in full yet."""
        if self.host is None:  # it has no place now
            return True
        behind = self.last_seconds - self.load
        is_behind = abs(behind) > _NEGLIGIBLE * self.load
        change = SMOOTHING * behind if is_behind else behind
        self.load += change
        self.host.load += change
        self.step_work = self._usual.step = self.load if self.load > _QUICK else 0.0
        return is_behind

    @property
    def may_move(self) -> bool:
        """Whether a call that waits may be made elsewhere: once, if the env can be brought to the same state there.

        An env that was changed by calls can be, too, but stays where it is; so does one that failed.
        """
        history = self.history
        has_choice = self._placement.has_choice
        return self._is_movable and has_choice and not self.was_moved and not history.was_called and not history.failed

    @property
    def may_be_recalled(self) -> bool:
        """Whether an env that waits to be built on a worker may wait, instead, for whichever is free first."""
        return self.may_move and not self.was_recalled

    @property
    def is_being_made(self) -> bool:
        return self._aim is not None

    @property
    def may_leave(self) -> bool:
        """Whether it can be rebuilt elsewhere, also if a call is under way."""
        history = self.history
        return (
            self._aim is None
            and self._rules.recover != "none"
            and not (history.forgotten or history.failed)
            and (self.opening.spec.replayable or not history.running)
        )

    @property
    def is_new(self) -> bool:
        """Whether no env of its name was built so far."""
        return self._usual.is_new

    @property
    def queue(self) -> tuple[str, Op | None]:
        """Envs of one queue take turns: they have one name, and are built for the same kind of call."""
        return self.opening.spec.name, self._aim

    def work(self, op: Op) -> float:
        """Seconds of a worker's time that a call is expected to take; a thread of its own takes none."""
        if not self.weighs:
            return 0.0
        if op is Op.OPEN:
            return (self.build_seconds or self._usual.build) + self._work_after(op)
        if op is Op.RESET:
            return self.reset_seconds or self._usual.reset
        return self._replay_seconds() + self._work_after(op) if op is Op.REPLAY else self.load

    def detour(self, op: Op) -> float:
        """Seconds of work that it adds to make a call elsewhere."""
        if op is Op.OPEN:
            return 0.0
        return self.build_seconds + (0.0 if op in WITHOUT_EPISODE else self._replay_seconds())

    def _work_after(self, op: Op) -> float:
        """Of the calls that follow at once: an env is made to be reset, or to be brought to where it was."""
        aim = Op.RESET if self._aim is Op.OPEN else self._aim
        if aim is None or aim is op or (aim is Op.RESET and op is Op.OPEN and self._usual.reset == GUESS):
            return 0.0  # that of a reset is added once it is known: a guess would make all envs slow to open
        replay = self._replay_seconds() if op is Op.OPEN and aim not in WITHOUT_EPISODE else 0.0
        return replay + self.work(aim)

    def _replay_seconds(self) -> float:
        return self.work(Op.RESET) + self.history.length * self.load

    @property
    def resets_slowly(self) -> bool:
        """Whether its resets are better shared out among the workers."""
        usual = 0.0 if self._usual.reset == GUESS else self._usual.reset
        return (self.reset_seconds or usual) > SOON

    @property
    def builds_slowly(self) -> bool:
        """Whether it is better built by a worker that has nothing else to do."""
        return self.weighs and (self.was_recalled or self._usual.is_built_slowly)

    def was_built(self, seconds: float) -> None:
        self.build_seconds = seconds
        self.beside = None  # from here on it may be anywhere
        self._usual.add_build(seconds)

    def was_reset(self, seconds: float) -> None:
        self.reset_seconds = seconds
        self._usual.reset = smooth(self._usual.reset, seconds)

    def end_episode(self, next_seed: int | None, final: int | None = None) -> None:
        """The next one is about to be tried; `final` is the digest of the last outcome, where none was taken."""
        self._placement.check_open()
        self._blame = Blame(self._rules.max_restarts, self._rules.acquittals)
        self.history.end(next_seed, final)

    def find_place(self, *, rebuild: bool) -> None:
        """Without state, the env may move to a worker with less to do; one that failed is rebuilt if possible."""
        history = self.history
        if rebuild and not history.forgotten:
            self.give_up()
        if not history.was_called:
            self._placement.rebalance(self)

    def give_up(self) -> None:
        """Leave the env where it is, and have the next call make a new one."""
        host = self._placement.unbind(self)
        if host is not None:
            host.drop(self.id)

    def leave(self) -> EnvHost | None:
        """The env is closed for good."""
        return self._placement.leave(self)

    async def end_video(self, camera: tuple[str, Any]) -> Any:
        """End recording: what the camera has, or None if it cannot be asked. `camera` replaces it in later places.

        It waits behind a call that is under way, and touches no episode.
        """
        self.opening = msgspec.structs.replace(self.opening, camera=camera)
        if self.host is None or not self.host.usable:
            return None
        try:
            return (await self.host.call(self.id, Op.END_VIDEO, None)).value
        except HostLost:
            return None

    async def call_elsewhere(self, lost: HostLost | None, op: Op, payload: Any) -> CallReply:
        """Restore the env in a new place and make the call there; raise if it is not to be restored."""
        self._aim = self._at = op
        try:
            while True:
                if lost is not None:
                    self._accept(lost, op)
                try:
                    return await self._call_again(op, payload)
                except HostLost as again:
                    lost = again
        finally:
            self.was_moved = self.was_recalled = False
            self._aim = None

    async def _call_again(self, op: Op, payload: Any) -> CallReply:
        """One of several suspects is tried again with half of them, then with a quarter, and finally on its own."""
        companions = self._blame.companions
        if not companions:
            reply = await self._call_rebuilt(op, payload)
        else:
            async with self._rules.retries.share(companions):
                if self._blame.is_tried_alone:
                    async with self._placement.cleared(self, self._rules.limits.longest):
                        reply = await self._call_rebuilt(op, payload)
                else:
                    reply = await self._call_rebuilt(op, payload)
        self._blame.clear()
        return reply

    def _log_before(self, op: Op, payload: Any) -> ReplayLog | None:
        """What a new env needs before the call; raise if it can never be what the old one was."""
        history = self.history
        if op is Op.REPLAY and not payload.in_place:  # it brings its own
            return None
        if history.forgotten:
            raise self.error(EnvCrashed, f"it is gone and cannot be made again, as {history.forgotten}", self.rank)
        if op not in WITHOUT_EPISODE and (history.failed or (history.running and not self.opening.spec.replayable)):
            why = "what failed is not repeated in a new env" if history.failed else "it is not replayable"
            raise self.error(EnvCrashed, f"it is gone, and {why}: call reset() first", self.rank)
        if op is Op.REPLAY:
            return ReplayLog(history.lived or [])
        return history.life_alone() if op in WITHOUT_EPISODE else history.replay_log()

    async def _call_rebuilt(self, op: Op, payload: Any) -> CallReply:
        replay_log = self._log_before(op, payload)
        host = await self._placement.place(self)
        settled = False
        try:
            self._at = Op.OPEN
            reply = await self._build_at(host)
            if reply.failure is None and replay_log is not None:
                self._at = Op.REPLAY
                reply = await host.call(self.id, Op.REPLAY, replay_log, caller=self)
            settled = reply.failure is None
        finally:
            if not settled and self._placement.unbind(self) is not None:
                host.drop(self.id)
        if not settled or op is Op.OPEN:
            return reply
        self._at = op
        return await host.call(self.id, op, payload, caller=self)

    async def _build_at(self, host: EnvHost) -> CallReply:
        try:
            reply = await host.call(self.id, Op.OPEN, self.opening, caller=self)
        except HostLost:  # nothing is there
            self._placement.unbind(self)
            raise
        if reply.failure is None:  # how long a failure took says nothing
            self.was_built(reply.seconds)
        return reply

    def _accept(self, lost: HostLost, op: Op) -> None:
        """Take note that the env's place is gone; raise if the env is not to be restored."""
        name, rules = self.opening.spec.name, self._rules
        host = self._placement.unbind(self)
        rank = host.rank if host else None
        if lost.kind == "closed":
            what = "it was closed" if self._placement.open else "the pool is closed"
            raise ClosedError(f"env {name!r}: {what}")
        if lost.kind == "recalled":
            self.was_recalled = True
            return
        if lost.kind == "moved":
            self.was_moved = True
            self._placement.moved += 1
            if host is not None:
                host.drop(self.id)
            return
        self.last_rank = self.last_rank if rank is None else rank
        if lost.is_sole_suspect and not lost.from_outside and host is not None:
            self._placement.quarantine.add_death(name, host.rank)
        at = self._at or op
        during = at.name.lower()
        if lost.is_suspect and lost.kind == "timeout":
            raise self.error(EnvTimeout, f"{during} took longer than {rules.limits.of(at):g} s", rank)
        if lost.is_sole_suspect and lost.kind == "memory":
            text = f"its worker used more than {rules.limits.memory} bytes of memory during {during}"
            raise self.error(EnvResourceError, text, rank, lost.log)
        reason = self._blame.add(lost, at)
        if reason:
            pass
        elif rules.recover == "none" and (lost.is_suspect or op not in WITHOUT_EPISODE):
            reason = "and recover='none' means that it is not restored"
        elif not self.opening.spec.replayable and op not in WITHOUT_EPISODE and self.history.running:
            reason = "and it is not replayable"
        else:
            rules.restored += 1
            return
        text = f"its worker died ({lost.cause or lost.kind}) during {during}, {reason}"
        raise self.error(EnvCrashed, text, rank, lost.log and f"The end of the worker's log:\n{lost.log}")

    def error(self, kind: type[E], text: str, worker: int | None, notes: str = "") -> E:
        """An error that names env, seed, turn and worker."""
        name, history = self.opening.spec.name, self.history
        place = {"seed": history.seed, "turn": None if history.seed is None else history.turn, "worker": worker}
        return kind.at(error_prefix(name, place) + text, notes=notes, env=name, **place)


def error_prefix(env: str | None, place: Mapping[str, int | None]) -> str:
    """How the message of an env's error starts."""
    where = ", ".join(f"{key} {value}" for key, value in place.items() if value is not None)
    return f"env {env!r}{where and f' ({where})'}: "
