"""One environment as its user sees it: reset, step, ask, fork, close; restored by itself when its worker dies."""

import secrets
from collections.abc import Awaitable, Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

import anyio
import msgspec
import numpy as np
import structlog

from asyncrollout import errors
from asyncrollout.errors import ClosedError, EnvError, RolloutError, UsageError
from asyncrollout.pool import wire
from asyncrollout.pool.failure import Failure
from asyncrollout.pool.history import dump_past, load_past
from asyncrollout.pool.home import Lost, Reply
from asyncrollout.pool.hosted import Called, Past, outcome_digest
from asyncrollout.pool.seat import Seat
from asyncrollout.pool.together import Begun
from asyncrollout.pool.wire import OUTCOMES, Op, Undecodable
from asyncrollout.protocols import Recorded
from asyncrollout.types import Outcome

if TYPE_CHECKING:
    from asyncrollout.pool.pool import EnvPool

log = structlog.get_logger(__name__)

_CLOSE_GRACE = 5.0
_AT_WORK = "it is still at work on an earlier call: await that one first"


class Phase(Enum):
    """Where an env is in its life; each value ends the sentence "cannot step: ..."."""

    NEW = "it was not reset: call reset() first"
    RUNNING = "it is running"
    ENDED = "its episode ended: call reset() first"
    UNSURE = "its last call was cancelled half-way: call reset() first"
    FAILED = "its episode failed: call reset() first"
    UNOPENED = "it was never opened: use `async with pool.open(...) as env` or `env = await pool.open(...)`"
    CLOSED = "it is closed: open another one"


_SHUT = (Phase.UNOPENED, Phase.CLOSED)
_RUNNING, _UNSURE, _STEP = Phase.RUNNING, Phase.UNSURE, Op.STEP  # an enum's attributes are slow to find


class EnvHandle:
    """Made by `EnvPool.open`. For one caller at a time."""

    def __init__(self, pool: "EnvPool", seat: Seat, record: Recorded | None = None) -> None:
        self.name = seat.opening.spec.name
        self._pool = pool
        self._record = record
        self.seat = seat
        self._history = seat.history
        self._phase = Phase.UNOPENED
        self._busy = False
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """The last outcome."""
        if self._outcome is None:
            raise self._misuse("show an outcome")
        return self._outcome

    @property
    def has_episode(self) -> bool:
        """Whether an episode runs, or came to its end: then there is a state to snapshot or fork."""
        return self._phase in (Phase.RUNNING, Phase.ENDED)

    @property
    def seed(self) -> int | None:
        """The seed of the episode, also where the pool drew it."""
        return self._history.seed

    @property
    def worker(self) -> int | None:
        """The rank of the worker where the env lives now; -1 is the event loop's thread."""
        return self.seat.rank

    @property
    def worked(self) -> float:
        """Seconds that the env itself was at work in its last step, without the way there and back."""
        return self.seat.last_seconds

    async def __aenter__(self) -> Self:
        if self._phase is not Phase.UNOPENED:
            raise self._misuse("be opened again")
        try:
            await self._invoke(Op.OPEN, None)
            self._phase = Phase.NEW
        finally:
            if self._phase is not Phase.NEW:
                self._phase = Phase.UNSURE
                await self.close()
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.__aenter__().__await__()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def reset(self, *, seed: int | None = None, task: Any = None, member: int = 0) -> Outcome:
        """Start an episode. Without a seed one is drawn, so that the episode can be played again.

        Members of a group start from the same seed; in an env that plays by chance, `member` gives each its own luck.
        """
        return await self.begin_reset(seed=seed, task=task, member=member).outcome()

    def begin_reset(self, *, seed: int | None = None, task: Any = None, member: int = 0) -> Begun:
        """A reset that is on its way at once, for who awaits its outcome later."""
        if self._phase in _SHUT:
            raise self._misuse("reset")
        if seed is None:
            seed = secrets.randbits(31)
        seed, member = self._whole(seed, "seed"), self._whole(member, "member")
        task = self._own(task, "task")
        if not self._busy:
            self.seat.begin_episode(seed, anew=self._phase is Phase.FAILED)
        start = (seed, task, member, self._history.episode)
        return Begun(self, Op.RESET, start, self._begin(Op.RESET, start), self._was_reset)

    def _was_reset(self, start: tuple[int, Any, int, int], reply: Reply) -> Outcome:
        seed, task, member, _ = start
        self._history.begin(seed, task, member, reply[4])
        return self._took(reply)

    async def step(self, action: Any) -> Outcome:
        """Play an action; for a text env, a reply."""
        action = self._playable(action)
        phase, call = self._begin(_STEP, action)  # no `_invoke`, nor `begin_step`: each costs a tenth of a light step
        return self._stepped(action, await self.attend(_STEP, action, phase, call))

    def begin_step(self, action: Any) -> Begun:
        """A step that is on its way at once, for who awaits its outcome later."""
        action = self._playable(action)
        return Begun(self, _STEP, action, self._begin(_STEP, action), self._stepped)

    def _playable(self, action: Any) -> Any:
        if self._phase is not _RUNNING:
            raise self._misuse("step")
        return action if type(action) in wire.PLAIN else self._own(action, "action")

    def _stepped(self, action: Any, reply: Reply) -> Outcome:
        self._history.add_step(action, reply[4])
        self.seat.last_seconds = reply[5]
        return self._took(reply)

    def _whole(self, number: Any, what: str) -> int:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
            raise UsageError(f"env {self.name!r}: a {what} is a whole number from 0, not {number!r}")
        return int(number)

    def _own(self, value: Any, what: str) -> Any:
        """A copy that the caller cannot change while it is under way, or afterwards in the log."""
        try:
            return wire.detach(value)
        except wire.UnsendableError as error:
            raise UsageError(f"env {self.name!r}: its {what}: {error}") from error

    def _took(self, reply: Reply) -> Outcome:
        _, _, value, info, _, _, state = reply
        if type(value) is Undecodable or type(info) is Undecodable:
            self._phase = Phase.FAILED
            raise self._unreadable(value, info)
        if state is not None:
            self._history.rebase(state)
        observation, reward, terminated, truncated = value
        self._phase = Phase.ENDED if terminated or truncated else _RUNNING
        self._outcome = outcome = Outcome(observation, reward, terminated, truncated, {} if info is None else info)
        return outcome

    async def render(self) -> Any:
        """The env's picture of its state."""
        return (await self._ask(Op.RENDER, None, "render"))[2]

    async def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Anything else that the env or its text interface offers: a method's result, or an attribute."""
        called = Called(method, args, kwargs)
        reply = await self._ask(Op.CALL, called, f"call {method}()")
        if self._phase is Phase.RUNNING:
            self._history.add_call(called)
            if reply[6] is not None:
                self._history.rebase(reply[6])
        else:
            self._history.add_setup(called)
        return reply[2]

    async def _ask(self, op: Op, payload: Any, what: str) -> Reply:
        if self._phase in _SHUT or self._phase is Phase.UNSURE:
            raise self._misuse(what)
        phase = self._phase
        reply = await self._invoke(op, payload)
        self._phase = phase
        if type(reply[2]) is Undecodable:
            raise self._unreadable(reply[2])
        return reply

    async def snapshot(self) -> bytes:
        """The state of an episode, to keep and to `restore`: the env's own snapshot, or its seed and actions."""
        past = await self._past("take a snapshot", for_file=True)
        return dump_past(self.name, past, msgspec.structs.astuple(self.outcome))

    async def restore(self, snapshot: bytes) -> Outcome:
        """Go on from a snapshot of an env of the same name, instead of from a reset."""
        if self._phase in _SHUT:
            raise self._misuse("restore")
        past, fields = load_past(self.name, snapshot)
        await self.become(past, Outcome(*fields))
        return self.outcome

    async def fork(self, pool: "EnvPool | None" = None) -> "EnvHandle":
        """A second env in the same state, in this pool or another one, to be closed by its user or with the pool."""
        outcome, past = self._outcome, await self._past("fork", for_file=False)
        assert outcome is not None  # else there is no past
        twin = await (pool or self._pool).reopen(self.seat)
        became = False
        try:
            await twin.become(past, outcome)
            became = True
        finally:
            if not became:
                await twin.close()
        return twin

    async def _past(self, what: str, *, for_file: bool) -> Past:
        if not self.has_episode:
            raise self._misuse(what)
        state = (await self._ask(Op.SNAPSHOT, for_file, what))[2]
        if state is not None:
            return self._history.past_by_snapshot(state)
        if not self.seat.opening.spec.replayable:
            raise UsageError(f"env {self.name!r} cannot {what}: it has no snapshot() and is not replayable")
        past = self._history.past(outcome_digest(msgspec.structs.astuple(self.outcome)))
        assert past is not None  # an episode runs, or just ended
        return past

    async def become(self, past: Past, outcome: Outcome) -> None:
        """Go on from another env's past, whose last outcome is given."""
        await self._invoke(Op.REPLAY, past)
        self._history.adopt(past)
        self._outcome = outcome
        self._phase = Phase.ENDED if outcome.done else Phase.RUNNING

    async def close(self) -> None:
        """Close the env; a second time does nothing. Never waits long: an env that hangs is left to its worker."""
        if self._phase is Phase.CLOSED:
            return
        unsure, self._phase = self._phase is Phase.UNSURE, Phase.CLOSED
        footage = None
        try:
            footage = await self._close_at_home(unsure=unsure)
        finally:
            if self._record is not None:
                self._record.ended(footage)

    async def _close_at_home(self, *, unsure: bool) -> Any:
        """What the camera has, if there is one, and the env is where it can be asked."""
        home = self.seat.leave()
        if home is None or not home.usable:
            return None
        if unsure:
            home.drop(self.seat.id)
            return None
        with anyio.move_on_after(_CLOSE_GRACE, shield=True):
            try:
                reply = await home.call(self.seat.id, Op.CLOSE, None)
            except Lost:
                return None
            if reply[1] is not None:
                log.warning("env_close_failed", env=self.name, error=_failure(reply[1]).text)
            return reply[2]
        return None

    async def _invoke(self, op: Op, payload: Any) -> Reply:
        """Make a call where the env lives."""
        return await self.attend(op, payload, *self._begin(op, payload))

    def _begin(self, op: Op, payload: Any) -> tuple[Phase, Awaitable[Reply]]:
        """Send a call; the phase to go back to if the env sees nothing of it, and what the reply will be."""
        if self._busy:
            raise self._misuse(op.name.lower())
        phase, self._phase = self._phase, _UNSURE  # stays so if the caller is cancelled
        self._busy = True
        seat = self.seat
        if seat.home is None:
            return phase, seat.call_elsewhere(None, op, payload)
        try:
            return phase, seat.home.call(seat.id, op, payload, movable=seat.movable)
        except wire.UnsendableError as error:
            self._busy, self._phase = False, phase
            raise self._unsendable(op, error) from error

    async def attend(self, op: Op, payload: Any, phase: Phase, call: Awaitable[Reply]) -> Reply:
        """The reply to a call that was sent; if the env's place is lost, the call is made in another one."""
        seat = self.seat
        try:
            try:
                reply = await call
            except Lost as lost:
                reply = await seat.call_elsewhere(lost, op, payload)
        except UsageError:  # the env has seen nothing of it
            self._go_back_to(phase)
            raise
        except wire.UnsendableError as error:
            self._go_back_to(phase)
            raise self._unsendable(op, error) from error
        except RolloutError:
            self._go_back_to(Phase.FAILED)
            raise
        finally:
            self._busy = False
        return reply if reply[1] is None and self._phase is _UNSURE else self.settle(op, phase, reply)

    def settle(self, op: Op, phase: Phase, reply: Reply) -> Reply:
        """What came of a call: the reply, or the failure that it tells."""
        self._busy = False
        if self._phase is not _UNSURE:
            raise self._misuse(op.name.lower())
        if reply[1] is not None:
            self._phase = Phase.FAILED if op in OUTCOMES else phase
            raise self._failed(_failure(reply[1]))
        return reply

    def abandon(self) -> None:
        """Nobody waits for the call that was sent: where the env is, only its next reset can tell."""
        self._busy = False

    def _go_back_to(self, phase: Phase) -> None:
        if self._phase is _UNSURE:  # else it was closed meanwhile
            self._phase = phase

    def _failed(self, failure: Failure) -> RolloutError:
        kind: type[RolloutError] = getattr(errors, failure.raises, EnvError)
        ours = failure.kind == failure.raises
        text = failure.text if ours else f"{failure.kind}: {failure.text}"
        error = self.seat.error(kind, text, self.worker, "" if ours else f"In the env:\n{failure.trace}")
        error.__dict__.update(remote_type=failure.kind, remote_traceback=failure.trace)
        return error

    def _unsendable(self, op: Op, error: wire.UnsendableError) -> UsageError:
        return self.seat.error(UsageError, f"{op.name.lower()}: {error}", self.seat.rank)

    def _unreadable(self, *values: Any) -> EnvError:
        reason = next(value.reason for value in values if type(value) is Undecodable)
        return self.seat.error(EnvError, f"what it returned cannot be loaded here: {reason}", self.worker)

    def _misuse(self, what: str) -> UsageError:
        kind = ClosedError if self._phase is Phase.CLOSED else UsageError
        in_the_way = _AT_WORK if self._busy and kind is UsageError else self._phase.value
        return kind(f"env {self.name!r} cannot {what}: {in_the_way}")


def _failure(told: Any) -> Failure:
    return told if isinstance(told, Failure) else Failure(*told)
