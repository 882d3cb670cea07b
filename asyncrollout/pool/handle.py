"""One environment as its user sees it: reset, step, ask, fork, close; restored by itself when its worker dies."""

import secrets
from asyncio import get_running_loop
from collections.abc import Awaitable, Generator
from enum import Enum
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self

import anyio
import msgspec
import numpy as np
from msgspec.structs import replace

from asyncrollout import errors
from asyncrollout.errors import ClosedError, EnvError, RolloutError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.batch_calls import PendingCall
from asyncrollout.pool.binding import EnvBinding
from asyncrollout.pool.hosts import CLOSE_GRACE, HostLost, Reply
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.codec import OUTCOMES, Op, Undecodable
from asyncrollout.pool.wire.digest import outcome_digest
from asyncrollout.pool.wire.failure import Failure
from asyncrollout.pool.wire.replay_log import RecordedCall, ReplayLog, dump_past, life_key, load_past
from asyncrollout.pool.worker.replay import NotInPlaceError
from asyncrollout.protocols import EnvRecording
from asyncrollout.types import Outcome

if TYPE_CHECKING:
    from asyncrollout.pool.pool import EnvPool

log = get_logger(__name__)

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
_SOUND = (Phase.NEW, Phase.RUNNING, Phase.ENDED)
_GONE = ("EnvTimeout", "EnvCrashed", "EnvDiverged", "EnvResourceError")  # after which there is no env any more
_RUNNING, _UNSURE = Phase.RUNNING, Phase.UNSURE  # an enum's attributes are slow to find
_STEP, _RENDER, _SNAPSHOT = Op.STEP, Op.RENDER, Op.SNAPSHOT


class EnvHandle:
    """Made by `EnvPool.open`. For one caller at a time."""

    def __init__(self, pool: "EnvPool", binding: EnvBinding, record: EnvRecording | None = None) -> None:
        self.name = binding.opening.spec.name
        self._pool = pool
        self._record = record
        self._thread = pool.thread
        self.binding = binding
        self._history = binding.history
        self._phase = Phase.UNOPENED
        self._busy = False
        self._outcome: Outcome | None = None
        if record is not None:
            record.opened(binding.end_film)

    @property
    def outcome(self) -> Outcome:
        """The last outcome of the episode; there is none once a reset or a restore has begun, until it succeeds."""
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
        return self.binding.rank

    @property
    def worked(self) -> float:
        """Seconds that the env itself was at work in its last step, without the way there and back."""
        return self.binding.last_seconds

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

    def begin_reset(self, *, seed: int | None = None, task: Any = None, member: int = 0) -> PendingCall:
        """A reset that is on its way at once, for who awaits its outcome later."""
        if self._phase in _SHUT:
            raise self._misuse("reset")
        self._check_loop()
        if seed is None:
            seed = secrets.randbits(31)
        seed, member = self._whole(seed, "seed"), self._whole(member, "member")
        task = self._own(task, "task")
        if not self._busy:
            self._end_episode(seed, reset=True)
        start = (seed, task, member, self._history.episode)
        return PendingCall(self, Op.RESET, start, self._begin(Op.RESET, start), self._was_reset)

    def _end_episode(self, next_seed: int | None, *, reset: bool) -> None:
        """Nothing is left of it, even if the next one cannot be begun."""
        final = self._last_digest() if self._history.unkept and self._outcome is not None else None
        self.binding.end_episode(next_seed, final)
        if reset:
            self.binding.find_place(anew=self._phase is Phase.FAILED)
        self._phase, self._outcome = Phase.FAILED, None

    def _was_reset(self, start: tuple[int, Any, int, int], reply: Reply) -> Outcome:
        seed, task, member, _ = start
        self._history.begin(seed, task, member, reply[4])
        self.binding.was_reset(reply[5])
        return self._took(reply)

    async def step(self, action: Any) -> Outcome:
        """Play an action; for a text env, a reply."""
        action = self._playable(action)
        phase, call = self._begin(_STEP, action)  # no `_invoke`, nor `begin_step`: each costs a tenth of a light step
        return self._stepped(action, await self.attend(_STEP, action, phase, call))

    def begin_step(self, action: Any) -> PendingCall:
        """A step that is on its way at once, for who awaits its outcome later."""
        action = self._playable(action)
        return PendingCall(self, _STEP, action, self._begin(_STEP, action), self._stepped)

    def _playable(self, action: Any) -> Any:
        if self._phase is not _RUNNING:
            raise self._misuse("step")
        return action if type(action) in codec.PLAIN else self._own(action, "action")

    def _stepped(self, action: Any, reply: Reply) -> Outcome:
        self._history.add_step(action, reply[4])
        self.binding.last_seconds = reply[5]
        return self._took(reply)

    def _whole(self, number: Any, what: str) -> int:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
            raise UsageError(f"env {self.name!r}: a {what} is a whole number from 0, not {number!r}")
        return int(number)

    def _own(self, value: Any, what: str) -> Any:
        """A copy that the caller cannot change while it is under way, or afterwards in the log."""
        try:
            return codec.detach(value)
        except codec.UnsendableError as error:
            raise UsageError(f"env {self.name!r}: its {what}: {error}") from error

    def _took(self, reply: Reply) -> Outcome:
        _, _, value, info, _, _, state = reply
        if type(value) is Undecodable or type(info) is Undecodable:
            self._phase = Phase.FAILED
            raise self._unreadable(value, info)
        if state is not None:
            self._history.rebase(state, (*value, info or {}))
        observation, reward, terminated, truncated = value
        self._phase = Phase.ENDED if terminated or truncated else _RUNNING
        self._outcome = outcome = Outcome(observation, reward, terminated, truncated, {} if info is None else info)
        return outcome

    async def render(self) -> Any:
        """The env's picture of its state."""
        picture = (await self._ask(Op.RENDER, None, "render"))[2]
        self._check_readable(picture)
        return picture

    async def call(self, method: str, /, *args: Any, keep: bool | None = None, **kwargs: Any) -> Any:
        """Anything else that the env or its text interface offers: a method's result, or an attribute.

        `keep` says whether the call outlives its episode: True has it repeated whenever the env is made anew, False
        (a read, say) promises that nothing of it is left after the episode. Unsaid, the episode is remembered with it.
        """
        args, kwargs = self._own((args, kwargs), f"call {method}()")
        return (await self.make_call(RecordedCall(method, args, kwargs, keep)))[0]

    async def make_call(self, called: RecordedCall) -> tuple[Any, bool]:
        """What a call gives, and whether that is a plain attribute, which was only read."""
        method, keep = called.method, called.keep
        if not isinstance(method, str):
            raise UsageError(f"env {self.name!r}: a method is called by its name, not by {method!r:.100}")
        if keep is not None and not isinstance(keep, bool):
            raise UsageError(f"env {self.name!r}: keep={keep!r:.100} is neither True nor False")
        known = False
        try:
            reply = await self._ask(Op.CALL, called, f"call {method}()")
            known = True
        except RolloutError as error:
            known = True
            self._note_failed_call(called, error)
            raise
        finally:
            if not known and keep is not False:
                self._history.forget(method, "was cancelled half-way")
        self._check_readable(reply[2], called)
        result, is_read = reply[2]
        self._history.add_call(replace(called, keep=False) if is_read else called)
        return result, is_read

    def _note_failed_call(self, called: RecordedCall, error: RolloutError) -> None:
        """A call that raised in the env may have changed it all the same; one that never reached it has not."""
        kind = getattr(error, "remote_type", None)
        if kind is not None and not _is_gone(type(error).__name__, kind) and not isinstance(error, UsageError):
            was_made = kind == codec.UnsendableError.__name__  # only what it returned is the trouble
            self._history.add_call(replace(called, raised=not was_made))

    async def _ask(self, op: Op, payload: Any, what: str) -> Reply:
        if self._phase in _SHUT or self._phase is Phase.UNSURE:
            raise self._misuse(what)
        phase = self._phase
        reply = await self._invoke(op, payload)
        self._phase = phase
        return reply

    def _check_readable(self, value: Any, called: RecordedCall | None = None) -> None:
        if type(value) is Undecodable:
            if called is not None:
                self._history.add_call(called)
            raise self._unreadable(value)

    async def snapshot(self) -> bytes:
        """The state of an episode, to keep and to `restore`: the env's own snapshot, or its seed and actions."""
        return dump_past(self.name, await self._past("take a snapshot", for_file=True))

    async def restore(self, snapshot: bytes) -> Outcome:
        """Continue from a snapshot of an env of the same name, instead of from a reset."""
        if self._phase in _SHUT:
            raise self._misuse("restore")
        await self.become(load_past(self.name, snapshot))
        return self.outcome

    async def fork(self, pool: "EnvPool | None" = None) -> "EnvHandle":
        """A second env in the same state, in this pool or another one, to be closed by its user or with the pool."""
        target = self._pool if pool is None else pool
        if not hasattr(target, "reopen"):
            raise UsageError(f"env {self.name!r} cannot fork: {target!r:.100} is not a pool")
        past = await self._past("fork", for_file=False, with_state=target.takes_states)
        twin = await target.reopen(self._pool.describe(self.binding))
        became = False
        try:
            await twin.become(past)
            became = True
        finally:
            if not became:
                await twin.close()
        return twin

    async def _past(self, what: str, *, for_file: bool, with_state: bool = True) -> ReplayLog:
        """The way to where the env is now: by its own snapshot if that holds everything, else by its actions."""
        if not self.has_episode:
            raise self._misuse(what)
        history = self._history
        if history.forgotten:
            raise UsageError(f"env {self.name!r} cannot {what}: {history.forgotten}")
        final = self._last_digest()
        lacks = f"{history.unkept}() was called without keep=" if history.unkept else "its state cannot travel there"
        if with_state and not history.unkept:
            answer = (await self._ask(Op.SNAPSHOT, for_file, what))[2]
            self._check_readable(answer)
            state, fields, lacks = answer
            if state is not None:
                return history.past_by_snapshot(state, self._as_given(fields, final), final)
        if not self.binding.opening.spec.replayable:
            raise UsageError(f"env {self.name!r} cannot {what}: it is not replayable, and {lacks}")
        past = None if with_state and not for_file else history.by_actions(final)
        if past is None and with_state:
            past = history.past(final)
        if past is None:
            raise UsageError(f"env {self.name!r} cannot {what} there: it was itself restored from its own snapshot()")
        return past

    def _last_digest(self) -> int:
        """Of the last outcome as the env gave it. Where none was taken, nobody can have changed it since."""
        digest = self._history.last_digest
        return outcome_digest(msgspec.structs.astuple(self.outcome)) if digest is None else digest

    def _as_given(self, fields: Any, digest: int) -> tuple[Any, ...]:
        """The last outcome as the env gave it: where it lives, a call may have changed it since, and here its user."""
        for candidate in (fields, msgspec.structs.astuple(self.outcome)):
            if candidate is not None and outcome_digest(candidate) == digest:
                return tuple(candidate)
        text = "the observation was changed by a call of the env and by its user: there is no copy of it as it was"
        raise self.binding.error(EnvError, text, self.worker)

    async def become(self, past: ReplayLog) -> Outcome | None:
        """Continue from another env's past, as a new episode of this env; its last outcome, if there is an episode."""
        if self._busy:  # before its env is touched
            raise self._misuse("restore")
        self._check_loop()
        if past.holds_states and not self._pool.takes_states:
            text = "cannot restore a snapshot that holds an env's own state: it was not made by a remote pool"
            raise UsageError(f"env {self.name!r} {text}")
        lived = self._history.lived if self._phase in _SOUND else None
        if past.in_place:
            past = replace(past, life=self._history.life if lived is None else lived, in_place=False)
        is_new = self._phase is Phase.NEW and not lived  # as new as another one
        self._end_episode(None if past.present is None else past.present.seed, reset=False)
        past = _as_episode(past, self._history.episode)
        reply: Reply | None = None
        try:
            if lived is not None and life_key(lived) == life_key(past.life):
                reply = await self._become_in_place(_to_send(past))
            if reply is None:
                if not is_new:
                    self.binding.give_up()
                reply = await self._invoke(Op.REPLAY, _to_send(past))
        finally:
            if reply is None:  # half-way there, it is neither what it was nor what it was to be
                self.binding.give_up()
        self._history.adopt(past)
        if past.present is None:
            self._phase = Phase.NEW
            return None
        self._history.last_digest = reply[4]
        return self._took(reply)

    async def _become_in_place(self, past: ReplayLog) -> Reply | None:
        """None if it takes a new env."""
        try:
            return await self._invoke(Op.REPLAY, replace(past, life=[], in_place=True))
        except RolloutError as error:
            if getattr(error, "remote_type", None) != NotInPlaceError.__name__:
                raise
        return None

    async def close(self) -> None:
        """Close the env; a second time does nothing. Never waits long: an env that hangs is left to its worker."""
        if self._phase is Phase.CLOSED:
            return
        if self.binding.host is not None and self.binding.host.usable:
            self._check_loop()
        unsure, self._phase = self._phase is Phase.UNSURE, Phase.CLOSED
        footage = None
        try:
            footage = await self._close_at_host(unsure=unsure)
        finally:
            if self._record is not None:
                self._record.ended(footage)

    async def _close_at_host(self, *, unsure: bool) -> Any:
        """What the camera has, if there is one, and the env is where it can be asked."""
        host = self.binding.leave()
        if host is None or not host.usable:
            return None
        if unsure:
            host.drop(self.binding.id)
            return None
        with anyio.move_on_after(CLOSE_GRACE, shield=True):
            try:
                reply = await host.call(self.binding.id, Op.CLOSE, None)
            except HostLost:
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
        if op is not _STEP or get_ident() != self._thread:  # to ask for the loop costs a tenth of a light step
            self._check_loop()
        phase = self._phase
        if op is not _RENDER and op is not _SNAPSHOT:  # these only read
            self._phase = _UNSURE  # stays so if the caller is cancelled
        self._busy = True
        binding = self.binding
        if binding.host is None:
            return phase, binding.call_elsewhere(None, op, payload)
        try:
            return phase, binding.host.call(binding.id, op, payload, caller=binding)
        except codec.UnsendableError as error:
            self._busy, self._phase = False, phase
            raise self._unsendable(op, error) from error

    def _check_loop(self) -> None:
        """Before anything is touched: pool and workers are not safe to use from another thread."""
        if get_running_loop() is not self._pool.loop:
            raise UsageError(f"env {self.name!r} was opened in another event loop: use it where its pool was entered")

    async def attend(self, op: Op, payload: Any, phase: Phase, call: Awaitable[Reply]) -> Reply:
        """The reply to a call that was sent; if the env's place is lost, the call is made in another one."""
        binding = self.binding
        try:
            try:
                reply = await call
            except HostLost as lost:
                reply = await binding.call_elsewhere(lost, op, payload)
        except UsageError:  # the env has seen nothing of it
            self._go_back_to(phase)
            raise
        except codec.UnsendableError as error:
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
        if self._phase is Phase.CLOSED:
            raise self._misuse(op.name.lower())
        if reply[1] is not None:
            failure = _failure(reply[1])
            is_gone = _is_gone(failure.raises, failure.kind)
            if op in OUTCOMES and not is_gone and self.binding.host is not None:
                self._history.note_failure()
            self._phase = Phase.FAILED if op in OUTCOMES or is_gone else phase
            raise self._failed(failure)
        return reply

    def abandon(self) -> None:
        """Nobody waits for the call that was sent: where the env is, only its next reset can tell."""
        self._busy = False

    def _go_back_to(self, phase: Phase) -> None:
        if self._phase is not Phase.CLOSED:  # meanwhile
            self._phase = phase

    def _failed(self, failure: Failure) -> RolloutError:
        kind: type[RolloutError] = getattr(errors, failure.raises, EnvError)
        ours = failure.kind == failure.raises
        text = failure.text if ours else f"{failure.kind}: {failure.text}"
        error = self.binding.error(kind, text, self.worker, "" if ours else f"In the env:\n{failure.trace}")
        error.__dict__.update(remote_type=failure.kind, remote_traceback=failure.trace)
        return error

    def _unsendable(self, op: Op, error: codec.UnsendableError) -> UsageError:
        return self.binding.error(UsageError, f"{op.name.lower()}: {error}", self.binding.rank)

    def _unreadable(self, *values: Any) -> EnvError:
        reason = next(value.reason for value in values if type(value) is Undecodable)
        return self.binding.error(EnvError, f"what it returned cannot be loaded here: {reason}", self.worker)

    def _misuse(self, what: str) -> UsageError:
        kind = ClosedError if self._phase is Phase.CLOSED else UsageError
        in_the_way = _AT_WORK if self._busy and kind is UsageError else self._phase.value
        return kind(f"env {self.name!r} cannot {what}: {in_the_way}")


def _as_episode(past: ReplayLog, episode: int) -> ReplayLog:
    present = past.present
    return past if present is None else replace(past, present=replace(present, episode=episode))


def _to_send(past: ReplayLog) -> ReplayLog:
    """Without what only a history needs."""
    now = None if past.present is None else replace(past.present, before=None)
    return replace(past, present=now)


def _is_gone(raises: str, kind: str) -> bool:
    """Whether there is no env after this failure; an env may raise what is only called alike."""
    return kind in _GONE and raises == kind


def _failure(told: Any) -> Failure:
    return told if isinstance(told, Failure) else Failure(*told)
