"""Synchronous calls over one background loop: from any thread, through interrupts, forks and forgotten closes."""

import asyncio
import gc
import os
import signal
import threading
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from asyncrollout import ClosedError, EnvPool, UsageError
from asyncrollout.dropin import portal
from asyncrollout.dropin.portal import Opened
from tests.scripts.processes import LIMIT, marked, wait_until
from tests.test_guards import mark, read_line, running  # noqa: F401 (a fixture)


async def double(number: int) -> int:
    await anyio.lowlevel.checkpoint()
    return 2 * number


async def fail() -> None:
    raise LookupError("as it was raised")


async def thread_id() -> int:
    return threading.get_ident()


@asynccontextmanager
async def noted(notes: list[str]) -> AsyncIterator[list[str]]:
    async with anyio.create_task_group():  # entered and left by one task, or it complains
        notes.append("in")
        try:
            yield notes
        finally:
            notes.append("out")


def test_a_call_returns_and_raises_as_the_coroutine_does() -> None:
    assert portal.run(double, 21) == 42
    assert portal.run(double, number=4) == 8
    with pytest.raises(LookupError, match="as it was raised"):
        portal.run(fail)


def test_all_threads_share_one_loop() -> None:
    with ThreadPoolExecutor(8) as threads:
        idents = set(threads.map(lambda _: portal.run(thread_id), range(50)))
    assert len(idents) == 1
    assert idents.isdisjoint({threading.get_ident()})


async def test_a_call_works_where_a_loop_is_running() -> None:
    """As in a notebook."""
    assert asyncio.get_running_loop()
    assert portal.run(double, 21) == 42


def test_a_call_on_the_loops_own_thread_is_refused() -> None:
    async def nested() -> int:
        return portal.run(double, 1)

    with pytest.raises(UsageError, match="would wait for itself"):
        portal.run(nested)


def test_an_interrupt_cancels_the_call_alone() -> None:
    ended = threading.Event()

    async def hang() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                ended.set()

    for _ in range(20):  # it comes at different moments of the wait
        ended.clear()
        with pytest.raises(KeyboardInterrupt):
            portal.run(hang)
        assert ended.is_set()
        assert portal.run(double, 2) == 4


def test_an_interrupt_that_another_thread_received_is_seen() -> None:
    """Nothing wakes the waiting thread up then."""

    async def hang() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await anyio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        portal.run(hang)
    assert portal.run(double, 2) == 4


def test_what_is_opened_is_left_once() -> None:
    notes: list[str] = []
    opened = Opened(noted(notes))
    assert opened.value is notes
    assert opened.run(double, 3) == 6
    assert notes == ["in"]
    opened.close()
    opened.close()
    assert notes == ["in", "out"]
    with Opened(noted(notes)):
        assert notes[2:] == ["in"]
    assert notes[2:] == ["in", "out"]


def test_a_failure_to_open_is_raised() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        await fail()
        yield

    with pytest.raises(LookupError):
        Opened(broken())


def test_a_failure_to_close_is_raised() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        yield
        await fail()

    opened = Opened(broken())
    with pytest.raises(LookupError):
        opened.close()


def test_an_interrupted_opening_is_closed_again() -> None:
    notes: list[str] = []

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        async with noted(notes):
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()
            yield

    with pytest.raises(KeyboardInterrupt):
        Opened(slow())
    assert notes == ["in", "out"]


def test_garbage_is_left() -> None:
    notes: list[str] = []
    watched = weakref.ref(Opened(noted(notes)))
    gc.collect()
    assert watched() is None
    assert wait_until(lambda: notes == ["in", "out"])


def test_closing_the_loop_leaves_all_and_another_one_starts() -> None:
    pool = Opened(EnvPool(workers=1))
    notes: list[str] = []
    opened = Opened(noted(notes))
    portal.close()
    assert notes == ["in", "out"]
    opened.close()
    with pytest.raises(ClosedError):
        pool.run(double, 1)
    assert portal.run(double, 2) == 4


def test_a_call_under_way_when_the_loop_closes_is_told() -> None:
    begun = threading.Event()

    async def hang() -> None:
        begun.set()
        await anyio.sleep_forever()

    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(portal.run, hang)
        assert begun.wait(LIMIT)
        portal.close()
        with pytest.raises(ClosedError):
            call.result(LIMIT)


def test_a_forked_child_is_told_and_starts_anew(mark: str) -> None:  # noqa: F811
    with running("sync_forked.py") as process:
        out, err = process.communicate(timeout=2 * LIMIT)
    assert out.splitlines()[0] == "parent total 10"
    assert "refused: this was opened before the process was forked" in out
    assert 'warned: ["this process was forked' in out
    assert "child total 12" in out
    assert "ended 7" in out
    assert out.splitlines()[-1] == "parent total 16"
    assert not err
    assert process.returncode == 0


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1), ("thread", 0)])
def test_what_was_never_closed_is_gone_at_exit(mark: str, how: str, code: int) -> None:  # noqa: F811
    with running("sync_forgotten.py", how) as process:
        out, err = process.communicate(timeout=2 * LIMIT)
    assert "answer total 12" in out
    assert process.returncode == code
    told = {"return": "", "raise": "a user's mistake", "thread": "was closed meanwhile"}[how]
    assert told in err
    assert told or not err
    assert "did_not_end" not in err


def test_ctrl_c_in_a_terminal_cancels_the_call_and_the_program_can_go_on(mark: str) -> None:  # noqa: F811
    with running("sync_forgotten.py", "interrupt") as process:
        while read_line(process) != "waiting\n":
            pass
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=2 * LIMIT)
    assert "again total 12 total 12" in out
    assert (process.returncode, err) == (0, "")


def test_a_killed_program_leaves_no_worker(mark: str) -> None:  # noqa: F811
    with running("sync_forgotten.py", "interrupt") as process:
        while read_line(process) != "waiting\n":
            pass
        assert len(marked(mark)) >= 3  # it and two workers
        process.kill()
        process.wait()
    assert wait_until(lambda: not marked(mark), LIMIT)
