"""How an env's state gets into a file or another env: by the env's own snapshot, or by replaying its log."""

from typing import Any

import msgspec
from msgspec.structs import replace

from asyncrollout.errors import EnvError, RolloutError, UsageError
from asyncrollout.pool.env_calls import EnvCalls, Phase
from asyncrollout.pool.wire.codec import Undecodable
from asyncrollout.pool.wire.digest import outcome_digest
from asyncrollout.pool.wire.messages import CallReply, Op
from asyncrollout.pool.wire.replay_log import ReplayLog, life_key
from asyncrollout.pool.worker.replay import NotInPlaceError
from asyncrollout.types import Outcome

_SOUND = (Phase.NEW, Phase.RUNNING, Phase.ENDED)


async def export_log(calls: EnvCalls, what: str, *, for_file: bool, with_state: bool = True) -> ReplayLog:
    """What brings another env to where this one is: its own snapshot if that holds everything, else its actions."""
    if not calls.has_episode:
        raise calls.misuse(what)
    name, history = calls.name, calls.history
    if history.forgotten:
        raise UsageError(f"env {name!r} cannot {what}: {history.forgotten}")
    final = calls.last_digest()
    lacks = f"{history.unkept}() was called without keep=" if history.unkept else "its state cannot travel there"
    if with_state and not history.unkept:
        answer = (await calls.ask(Op.SNAPSHOT, for_file, what)).value
        if type(answer) is Undecodable:
            raise calls.unreadable(answer)
        state, fields, lacks = answer
        if state is not None:
            return history.snapshot_log(state, _as_given(calls, fields, final), final)
    if not calls.binding.opening.spec.replayable:
        raise UsageError(f"env {name!r} cannot {what}: it is not replayable, and {lacks}")
    replay_log = None if with_state and not for_file else history.actions_log(final)
    if replay_log is None and with_state:
        replay_log = history.replay_log(final)
    if replay_log is None:
        raise UsageError(f"env {name!r} cannot {what} there: it was itself restored from its own snapshot()")
    return replay_log


def _as_given(calls: EnvCalls, fields: Any, digest: int) -> tuple[Any, ...]:
    """The last outcome as the env gave it: a call may have changed the env's copy since, and its user the one here."""
    for candidate in (fields, msgspec.structs.astuple(calls.outcome)):
        if candidate is not None and outcome_digest(candidate) == digest:
            return tuple(candidate)
    text = "the observation was changed by a call of the env and by its user: no copy of the original is left"
    raise calls.binding.error(EnvError, text, calls.binding.rank)


async def adopt_log(calls: EnvCalls, replay_log: ReplayLog) -> Outcome | None:
    """Continue from another env's log, as a new episode of this env; its last outcome, if there is an episode."""
    if calls.busy:  # before its env is touched
        raise calls.misuse("restore")
    calls.check_loop()
    if replay_log.holds_states and not calls.takes_states:
        text = "cannot restore a snapshot that holds an env's own state: it was not made by a remote pool"
        raise UsageError(f"env {calls.name!r} {text}")
    history, binding = calls.history, calls.binding
    lived = history.lived if calls.phase in _SOUND else None
    if replay_log.in_place:
        replay_log = replace(replay_log, life=history.life if lived is None else lived, in_place=False)
    is_new = calls.phase is Phase.NEW and not lived  # as new as another one
    calls.end_episode(None if replay_log.present is None else replay_log.present.seed, reset=False)
    replay_log = _as_episode(replay_log, history.episode)
    reply: CallReply | None = None
    try:
        if lived is not None and life_key(lived) == life_key(replay_log.life):
            reply = await _replay_in_place(calls, _to_send(replay_log))
        if reply is None:
            if not is_new:
                binding.give_up()
            reply = await calls.invoke(Op.REPLAY, _to_send(replay_log))
    finally:
        if reply is None:  # half-way, it is neither what it was nor what it was to be
            binding.give_up()
    history.adopt(replay_log)
    if replay_log.present is None:
        calls.phase = Phase.NEW
        return None
    history.last_digest = reply.digest
    return calls.take_outcome(reply)


async def _replay_in_place(calls: EnvCalls, replay_log: ReplayLog) -> CallReply | None:
    """None if it takes a new env."""
    try:
        return await calls.invoke(Op.REPLAY, replace(replay_log, life=[], in_place=True))
    except RolloutError as error:
        if getattr(error, "remote_type", None) != NotInPlaceError.__name__:
            raise
    return None


def _as_episode(replay_log: ReplayLog, episode: int) -> ReplayLog:
    present = replay_log.present
    return replay_log if present is None else replace(replay_log, present=replace(present, episode=episode))


def _to_send(replay_log: ReplayLog) -> ReplayLog:
    """Without what only a history needs."""
    present = replay_log.present
    return replay_log if present is None else replace(replay_log, present=replace(present, before=None))
