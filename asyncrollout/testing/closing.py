"""The first point: whether an env can be closed. It is checked where an env that hangs does no harm."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import AsyncExitStack

import anyio

from asyncrollout.errors import EnvError, UsageError
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.pool.worker.env_runner import is_async, run_now
from asyncrollout.testing.cases import Case
from asyncrollout.testing.compare import shown
from asyncrollout.testing.direct import DirectPoints, settled
from asyncrollout.testing.points import Skipped, point

_PATIENCE = 10.0  # seconds; a pool waits less for an env that is closed
_TIMES = 2


@point(
    "close() ends, raises nothing, and can be called twice",
    "let close() wait for nothing without a limit, and its second call do nothing",
)
async def closes(case: Case) -> list[str]:
    if _has_worker(case):
        return await _closes_in_worker(case)
    with anyio.move_on_after(_PATIENCE) as scope:
        return await (_closes_here(case) if is_async(case.spec) else _in_thread(case))
    assert scope.cancelled_caught
    return _hung(case)


def _has_worker(case: Case) -> bool:
    on_loop = "worker" not in case.kwargs and (case.spec.runs == "light" or is_async(case.spec))
    return "process" in case.pools and not on_loop


def _hung(case: Case) -> list[str]:
    case.hangs = True
    return [f"it did not end within {_PATIENCE:g} seconds"]


async def _closes_in_worker(case: Case) -> list[str]:
    async with AsyncExitStack() as stack:
        try:
            env = await stack.enter_async_context(case.open("process"))
            await env.reset(seed=0, task=case.task)
        except EnvError as error:
            raise _unready(error) from error
        return await _closes_twice(case, env)


async def _closes_twice(case: Case, env: EnvHandle) -> list[str]:
    with anyio.move_on_after(_PATIENCE):
        try:
            for _ in range(_TIMES):
                await env.call("close")
        except UsageError:
            raise Skipped("it has no close()") from None
        except EnvError as error:
            return [str(error)]
        return []
    return _hung(case)


async def _closes_here(case: Case) -> list[str]:
    try:
        direct = DirectPoints(case)
        await direct.reset(0)
    except Exception as error:
        raise _unready(error) from error
    if not callable(getattr(direct.env, "close", None)):
        raise Skipped("it has no close()")
    try:
        for _ in range(_TIMES):
            await settled(direct.env.close())
    except (Exception, SystemExit) as error:  # noqa: BLE001 (of any kind: it is the finding)
        return [f"{type(error).__name__}: {shown(str(error))}"]
    return []


async def _in_thread(case: Case) -> list[str]:
    """A synchronous env that hangs holds up its own thread, and no exit."""
    outcome: Future[list[str]] = Future()

    def run() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            outcome.set_result(run_now(_closes_here(case)))
        except Exception as error:  # noqa: BLE001 (raised again by whoever waits)
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _unready(error: Exception) -> Skipped:
    return Skipped(f"it cannot be made and reset: {shown(str(error))}")
