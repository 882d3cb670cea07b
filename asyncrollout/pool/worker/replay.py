"""How a new env is brought to the state of another: its life, then its episode, each outcome compared."""

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from asyncrollout.errors import EnvDiverged, EnvError
from asyncrollout.pool.wire.digest import outcome_digest
from asyncrollout.pool.wire.raised import is_own, repr_of
from asyncrollout.pool.wire.replay_log import RecordedCall, ReplayedEpisode, ReplayLog
from asyncrollout.pool.worker.text import Fields
from asyncrollout.pool.worker.video import record_frame

if TYPE_CHECKING:
    from asyncrollout.pool.worker.env_runner import EnvRunner


class NotInPlaceError(EnvError):
    """This state needs a new env; never reaches users."""


async def replay(hosted: "EnvRunner", replay_log: ReplayLog, tick: Callable[[], None]) -> Fields | None:
    """The present episode's last outcome, if there is an episode; `tick` is called before each part of the work."""
    present = replay_log.present
    if (
        replay_log.in_place
        and present is not None
        and present.state is not None
        and not hosted.is_described_by_snapshot
    ):
        raise NotInPlaceError("its text interface has changed since it was made")
    await _live(hosted, replay_log, tick)
    return None if present is None else await _play(hosted, present, tick, trusted=replay_log.trusted)


async def _live(hosted: "EnvRunner", replay_log: ReplayLog, tick: Callable[[], None]) -> None:
    """Repeat what came before the present episode; nothing of it is recorded again."""
    camera, hosted.camera = hosted.camera, None
    try:
        for one in replay_log.life:
            if isinstance(one, RecordedCall):
                tick()
                await _repeat(hosted, one, "in a new env")
            else:
                await _play(hosted, one, tick, trusted=replay_log.trusted, where=" of an earlier episode")
    finally:
        hosted.camera = camera


async def _play(
    hosted: "EnvRunner", played: ReplayedEpisode, tick: Callable[[], None], *, trusted: bool, where: str = ""
) -> Fields | None:
    digests = iter(played.digests)
    tick()
    if played.state is not None:
        await hosted.restore(played.state, trusted=trusted)
        hosted.last = cast("Fields | None", played.last)
        if hosted.camera is not None:
            hosted.camera.begin(played.episode, played.turns)
            await record_frame(hosted.env, hosted.camera, is_async=hosted.is_async)
            hosted.camera.end_turn()
    else:
        try:
            fields = await hosted.reset(played.seed, played.task, played.member, played.episode)
        except BaseException as error:
            _check_own(hosted, error)
            text = f"replayed, it raised at its reset{where}, where it had not: {repr_of(error)}"
            raise EnvDiverged(text) from error
        _compare(fields, next(digests), f"its reset{where}")
    for turn, (entry, expected) in enumerate(zip(played.done, digests, strict=True), start=1):
        tick()
        if hosted.camera is not None and hosted.camera.is_behind:
            hosted.camera.catch_up()
        if isinstance(entry, RecordedCall):
            await _repeat(hosted, entry, f"at action {turn}{where}")
            continue
        try:
            fields = await hosted.step(entry)
        except BaseException as error:
            _check_own(hosted, error)
            text = f"replayed, it raised at action {turn}{where}, where it had not: {repr_of(error)}"
            raise EnvDiverged(text) from error
        _compare(fields, expected, f"action {turn}{where}")
    return hosted.last


async def _repeat(hosted: "EnvRunner", called: RecordedCall, where: str) -> None:
    try:
        await hosted.call(called)
    except BaseException as error:
        _check_own(hosted, error)
        if not called.raised:
            hint = ": a call with keep=True must work in a new env that was not reset" if called.keep else ""
            text = f"{called.method}(), repeated {where}, raised, where it had not: {repr_of(error)}{hint}"
            raise EnvDiverged(text) from error
        return
    if called.raised:
        raise EnvDiverged(f"{called.method}(), repeated {where}, did not raise, where it had")


def _check_own(hosted: "EnvRunner", error: BaseException) -> None:
    """Let pass what the env did not raise, such as a cancellation."""
    if not is_own(error, is_async=hosted.is_async):
        raise error


def _compare(fields: Fields, expected: int | None, after: str) -> None:
    if expected is not None and outcome_digest(fields) != expected:
        raise EnvDiverged(
            f"replayed from the same seed and actions, it gave another outcome after {after}: "
            "it depends on something else, such as global random state, time or hash order"
        )
