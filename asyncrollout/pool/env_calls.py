"""The calls of one env, one at a time: what may be called when, what is sent, and what the reply means.

Internal: `EnvHandle` is what users see of it, and batches of calls come here by `handle.calls_of`.
"""

import asyncio
import inspect
import secrets
from asyncio import get_running_loop
from collections.abc import Awaitable
from enum import Enum
from threading import get_ident
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncrollout import errors
from asyncrollout.errors import ClosedError, EnvError, RolloutError, UsageError
from asyncrollout.pool.binding import EnvBinding
from asyncrollout.pool.hosts import HostLost
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.codec import PLAIN, Undecodable
from asyncrollout.pool.wire.digest import outcome_digest
from asyncrollout.pool.wire.messages import OUTCOMES, CallReply, Failure, Op
from asyncrollout.pool.wire.replay_log import RecordedCall
from asyncrollout.types import Outcome

_BUSY = "an earlier call is still in flight: await that one first"


class Phase(Enum):
    """Where an env is in its life; each value ends the sentence "cannot step: ..."."""

    NEW = "it was not reset: call reset() first"
    RUNNING = "it is running"
    ENDED = "its episode ended: call reset() first"
    UNSURE = "its last call was cancelled half-way: call reset() first"
    FAILED = "its episode failed: call reset() first"
    UNOPENED = "it was never opened: use `async with pool.open(...) as env` or `env = await pool.open(...)`"
    CLOSED = "it is closed: open another one"


SHUT = (Phase.UNOPENED, Phase.CLOSED)
_GONE = ("EnvTimeout", "EnvCrashed", "EnvDiverged", "EnvResourceError")  # after which the env no longer exists
_RUNNING, _UNSURE = Phase.RUNNING, Phase.UNSURE  # an enum's attributes are slow to look up
_STEP, _RESET, _RENDER, _SNAPSHOT = Op.STEP, Op.RESET, Op.RENDER, Op.SNAPSHOT


class EnvCalls:
    """Sends an env's calls and reads its replies; `wait_reply` has the env restored where its host is lost."""

    def __init__(
        self, binding: EnvBinding, loop: asyncio.AbstractEventLoop | None, thread: int, *, takes_states: bool
    ) -> None:
        self.name = binding.opening.spec.name
        self.binding = binding
        self.history = binding.history
        self.takes_states = takes_states
        self.phase = Phase.UNOPENED
        self.busy = False
        self._loop = loop
        self._thread = thread
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        if self._outcome is None:
            raise self.misuse("show an outcome")
        return self._outcome

    @property
    def has_episode(self) -> bool:
        return self.phase in (Phase.RUNNING, Phase.ENDED)

    def begin_reset(self, *, seed: int | None = None, task: Any = None, member: int = 0) -> "PendingCall":
        """Send a reset; its outcome is awaited later."""
        if self.phase in SHUT:
            raise self.misuse("reset")
        self.check_loop()
        if seed is None:
            seed = secrets.randbits(31)
        seed, member = self._whole(seed, "seed"), self._whole(member, "member")
        task = self.own(task, "task")
        if not self.busy:
            self.end_episode(seed, reset=True)
        return PendingCall(self, _RESET, (seed, task, member, self.history.episode))

    def begin_step(self, action: Any) -> "PendingCall":
        """Send a step; its outcome is awaited later."""
        return PendingCall(self, _STEP, self.check_action(action))

    def check_action(self, action: Any) -> Any:
        """The action as it is sent; raise if the env cannot be stepped now."""
        if self.phase is not _RUNNING:
            raise self.misuse("step")
        return action if type(action) in PLAIN else self.own(action, "action")

    def finish(self, op: Op, payload: Any, reply: CallReply) -> Outcome:
        """Log a step or a reset that went well; its outcome."""
        if op is _STEP:
            self.history.add_step(payload, reply.digest)
            self.binding.was_stepped(reply.seconds)
        else:
            seed, task, member, _ = payload
            self.history.begin(seed, task, member, reply.digest)
            self.binding.was_reset(reply.seconds)
        return self.take_outcome(reply)

    def take_outcome(self, reply: CallReply) -> Outcome:
        value, info = reply.value, reply.info
        if type(value) is Undecodable or type(info) is Undecodable:
            self.phase = Phase.FAILED
            raise self.unreadable(value, info)
        if reply.state is not None:
            self.history.rebase(reply.state, (*value, info or {}))
        observation, reward, terminated, truncated = value
        self.phase = Phase.ENDED if terminated or truncated else _RUNNING
        self._outcome = outcome = Outcome(observation, reward, terminated, truncated, {} if info is None else info)
        return outcome

    def end_episode(self, next_seed: int | None, *, reset: bool) -> None:
        """Leave nothing of the episode, even if the next one cannot be started."""
        final = self.last_digest() if self.history.unkept and self._outcome is not None else None
        self.binding.end_episode(next_seed, final)
        if reset:
            self.binding.find_place(rebuild=self.phase is Phase.FAILED)
        self.phase, self._outcome = Phase.FAILED, None

    def last_digest(self) -> int:
        """Of the last outcome as the env gave it. Where none was taken, nobody can have changed it since."""
        digest = self.history.last_digest
        return outcome_digest(msgspec.structs.astuple(self.outcome)) if digest is None else digest

    def own(self, value: Any, what: str) -> Any:
        """A copy that the caller cannot change while it is in flight, or later in the log."""
        try:
            return codec.detach(value)
        except codec.UnsendableError as error:
            raise UsageError(f"env {self.name!r}: its {what}: {error}") from error

    def _whole(self, number: Any, what: str) -> int:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
            raise UsageError(f"env {self.name!r}: {what} must be a whole number from 0, not {number!r}")
        return int(number)

    async def invoke(self, op: Op, payload: Any) -> CallReply:
        """Make a call where the env lives."""
        return await self.wait_reply(op, payload, *self.send(op, payload))

    async def ask(self, op: Op, payload: Any, what: str) -> CallReply:
        """Make a call that leaves the env's phase as it is."""
        if self.phase in SHUT or self.phase is Phase.UNSURE:
            raise self.misuse(what)
        phase = self.phase
        reply = await self.invoke(op, payload)
        self.phase = phase
        return reply

    async def call_method(self, called: RecordedCall) -> tuple[Any, bool]:
        """What any other method gives, and whether it is a plain attribute, which was only read."""
        method, keep, history = called.method, called.keep, self.history
        if not isinstance(method, str):
            raise UsageError(f"env {self.name!r}: a method is called by its name, not by {method!r:.100}")
        if keep is not None and not isinstance(keep, bool):
            raise UsageError(f"env {self.name!r}: keep={keep!r:.100} is neither True nor False")
        is_known = False
        try:
            reply = await self.ask(Op.CALL, called, f"call {method}()")
            is_known = True
        except RolloutError as error:
            is_known = True
            self._note_failed_call(called, error)
            raise
        finally:
            if not is_known and keep is not False:
                history.forget(method, "was cancelled half-way")
        if type(reply.value) is Undecodable:
            history.add_call(called)
            raise self.unreadable(reply.value)
        result, is_read = reply.value
        history.add_call(replace(called, keep=False) if is_read else called)
        return result, is_read

    def _note_failed_call(self, called: RecordedCall, error: RolloutError) -> None:
        """A call that raised in the env may have changed it all the same; one that never reached it has not."""
        kind = getattr(error, "remote_type", None)
        if kind is not None and not _is_gone(type(error).__name__, kind) and not isinstance(error, UsageError):
            was_made = kind == codec.UnsendableError.__name__  # only what it returned is the trouble
            self.history.add_call(replace(called, raised=not was_made))

    def send(self, op: Op, payload: Any) -> tuple[Phase, Awaitable[CallReply]]:
        """Send a call; the phase to return to if the env sees nothing of it, and what the reply will be."""
        if self.busy:
            raise self.misuse(op.name.lower())
        if op is not _STEP or get_ident() != self._thread:  # to ask for the loop costs a tenth of a light step
            self.check_loop()
        phase = self.phase
        if op is not _RENDER and op is not _SNAPSHOT:  # these only read
            self.phase = _UNSURE  # and stays so if the caller is cancelled
        self.busy = True
        binding = self.binding
        if binding.host is None:
            return phase, binding.call_elsewhere(None, op, payload)
        try:
            return phase, binding.host.call(binding.id, op, payload, caller=binding)
        except codec.UnsendableError as error:
            self.busy, self.phase = False, phase
            raise self._unsendable(op, error) from error

    def check_loop(self) -> None:
        """Before anything is touched: pool and workers are not safe to use from another thread."""
        if get_running_loop() is not self._loop:
            raise UsageError(f"env {self.name!r} was opened in another event loop: use it where its pool was entered")

    async def wait_reply(self, op: Op, payload: Any, phase: Phase, sent: Awaitable[CallReply]) -> CallReply:
        """The reply to a call that was sent; if the env's host is lost, the call is made on another one."""
        binding = self.binding
        try:
            try:
                reply = await sent
            except HostLost as lost:
                reply = await binding.call_elsewhere(lost, op, payload)
        except UsageError:  # the env has seen nothing of it
            self._return_to(phase)
            raise
        except codec.UnsendableError as error:
            self._return_to(phase)
            raise self._unsendable(op, error) from error
        except RolloutError:
            self._return_to(Phase.FAILED)
            raise
        finally:
            self.busy = False
        return reply if reply.failure is None and self.phase is _UNSURE else self.check_reply(op, phase, reply)

    def check_reply(self, op: Op, phase: Phase, reply: CallReply) -> CallReply:
        """The reply, unless it reports a failure: that is raised."""
        self.busy = False
        if self.phase is Phase.CLOSED:
            raise self.misuse(op.name.lower())
        failure = reply.failure
        if failure is not None:
            gone = _is_gone(failure.raises, failure.kind)
            if op in OUTCOMES and not gone and self.binding.host is not None:
                self.history.note_failure()
            self.phase = Phase.FAILED if op in OUTCOMES or gone else phase
            raise self._failed(failure)
        return reply

    def _return_to(self, phase: Phase) -> None:
        if self.phase is not Phase.CLOSED:  # meanwhile
            self.phase = phase

    def _failed(self, failure: Failure) -> RolloutError:
        kind: type[RolloutError] = getattr(errors, failure.raises, EnvError)
        ours = failure.kind == failure.raises
        text = failure.text if ours else f"{failure.kind}: {failure.text}"
        error = self.binding.error(kind, text, self.binding.rank, "" if ours else f"In the env:\n{failure.trace}")
        error.__dict__.update(remote_type=failure.kind, remote_traceback=failure.trace)
        return error

    def _unsendable(self, op: Op, error: codec.UnsendableError) -> UsageError:
        return self.binding.error(UsageError, f"{op.name.lower()}: {error}", self.binding.rank)

    def unreadable(self, *values: Any) -> EnvError:
        reason = next(value.reason for value in values if type(value) is Undecodable)
        return self.binding.error(EnvError, f"what it returned cannot be loaded here: {reason}", self.binding.rank)

    def misuse(self, what: str) -> UsageError:
        kind = ClosedError if self.phase is Phase.CLOSED else UsageError
        obstacle = _BUSY if self.busy and kind is UsageError else self.phase.value
        return kind(f"env {self.name!r} cannot {what}: {obstacle}")


class PendingCall:
    """A reset or a step in flight. Either one of the `outcome`s is asked for, once, or it is `abandoned`."""

    __slots__ = ("_calls", "_op", "_payload", "_phase", "reply")

    def __init__(self, calls: EnvCalls, op: Op, payload: Any) -> None:
        self._calls, self._op, self._payload = calls, op, payload
        self._phase, self.reply = calls.send(op, payload)

    async def outcome(self) -> Outcome:
        """Its outcome, once it is there; the env is restored if need be."""
        reply = await self._calls.wait_reply(self._op, self._payload, self._phase, self.reply)
        return self._calls.finish(self._op, self._payload, reply)

    def outcome_of(self, reply: CallReply) -> Outcome:
        """Its outcome, if this is the reply."""
        return self._calls.finish(self._op, self._payload, self._calls.check_reply(self._op, self._phase, reply))

    def abandon(self) -> None:
        """Nobody waits for it any more: where the env is, only its next reset can say."""
        if isinstance(self.reply, asyncio.Future):
            if not self.reply.cancel() and not self.reply.cancelled():
                self.reply.exception()  # retrieved, or asyncio would log it
        elif inspect.iscoroutine(self.reply):
            self.reply.close()
        self._calls.busy = False


def _is_gone(raises: str, kind: str) -> bool:
    """Whether the env no longer exists after this failure; an env may raise an error that only has the same name."""
    return kind in _GONE and raises == kind
