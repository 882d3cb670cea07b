"""However one leaves a context manager of ours, the very exception arrives, and the task is as it was before."""

# ruff: noqa: PT012 (what is tested is how a block is left)

import asyncio
import gc
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import pytest

import asyncrollout
from asyncrollout import (
    BatchedPolicy,
    ClosedError,
    EnvPool,
    EnvService,
    OpenAIPolicy,
    RemoteEnvPool,
    Request,
    Rollouts,
    ScriptedPolicy,
    local_llm,
)
from asyncrollout.cli.terminal.live import live
from asyncrollout.cli.terminal.signals import stoppable
from asyncrollout.concurrency import Background, GradualTasks, run_to_end, task_group
from asyncrollout.dropin.metarl.acting import AGENT_ARCHS, batched_agent
from asyncrollout.dropin.metarl.parallel import opened_members
from asyncrollout.dropin.ragen.states import AsyncEnvStateManager
from asyncrollout.journal.run import open_journal
from asyncrollout.journal.writer import Writer
from asyncrollout.service.server import EnvServer
from asyncrollout.telemetry.exporter import MetricsExporter
from asyncrollout.video.recorder import VideoRecorder
from asyncrollout.viewer.run_index import RunIndex
from asyncrollout.viewer.server import serving
from tests.envs.ragen import config, registered  # noqa: F401 (a fixture)
from tests.playing import COUNTER, PATIENCE
from tests.test_policies_local import with_model
from tests.waiting import all_tasks_blocked

Manager = AbstractAsyncContextManager[Any]


class OursError(Exception):
    """An error of the user's own."""


# What is left


async def rollouts() -> Rollouts:
    return Rollouts("bandit", policy=ScriptedPolicy(["a"]), group_size=2)


class Actor:
    def act(self, *_: object) -> NoReturn:
        raise NotImplementedError


class Managers:
    """Each method gives a manager that nobody has entered; what that needs is open on `around`."""

    def __init__(self, around: AsyncExitStack, directory: Path) -> None:
        self._around = around
        self._directory = directory
        self._made = 0

    def _new_directory(self) -> Path:
        self._made += 1
        directory = self._directory / str(self._made)
        directory.mkdir()
        return directory

    async def inline_pool(self) -> Manager:
        return EnvPool(backend="inline")

    async def process_pool(self) -> Manager:
        return EnvPool(workers=1)

    async def inline_env(self) -> Manager:
        pool = await self._around.enter_async_context(EnvPool(backend="inline"))
        return pool.open(COUNTER)

    async def env_of_worker(self) -> Manager:
        return (await self._shared_pool()).open(COUNTER)

    async def _shared_pool(self) -> EnvPool:
        if not hasattr(self, "_pool"):
            self._pool = await self._around.enter_async_context(EnvPool(workers=1))
        return self._pool

    async def remote_pool(self) -> Manager:
        pool = await self._around.enter_async_context(EnvPool(backend="inline"))
        server = await self._around.enter_async_context(EnvServer(pool, "127.0.0.1", 0))
        return RemoteEnvPool(server.url)

    async def server(self) -> Manager:
        pool = await self._around.enter_async_context(EnvPool(backend="inline"))
        return EnvServer(pool, "127.0.0.1", 0)

    async def service(self) -> Manager:
        pool = await self._around.enter_async_context(EnvPool(backend="inline"))
        return EnvService(pool=pool)

    async def service_with_workers(self) -> Manager:
        return EnvService(max_workers=1)

    async def batched_policy(self) -> Manager:
        return BatchedPolicy(lambda requests: ["a"] * len(requests))

    async def openai_policy(self) -> Manager:
        return OpenAIPolicy("http://127.0.0.1:9/v1", "m", api_key="none")

    async def local_llm(self) -> Manager:
        return local_llm()

    async def rollouts(self) -> Manager:
        return await rollouts()

    async def rollouts_with_run(self) -> Manager:
        policy = BatchedPolicy(lambda requests: ["a"] * len(requests))
        return Rollouts("bandit", policy=policy, group_size=2, run_dir=self._new_directory() / "run")

    async def weight_update(self) -> Manager:
        opened = await self._around.enter_async_context(await rollouts())
        return opened.weight_update(version=1)

    async def recorder(self) -> Manager:
        return VideoRecorder(self._new_directory())

    async def writer(self) -> Manager:
        return Writer(self._new_directory())

    async def journal(self) -> Manager:
        return open_journal(self._new_directory(), {}, resume=False)

    async def reporting(self) -> Manager:
        return MetricsExporter([], lambda: pytest.fail("nobody asks"))

    async def ragen_states(self) -> Manager:
        return AsyncEnvStateManager(config("walk", groups=1, size=1, use_multiprocessing=False))

    async def metarl_agent(self) -> Manager:
        return batched_agent(Actor(), AGENT_ARCHS.Markov, discrete=True)

    async def metarl_members(self) -> Manager:
        return opened_members(EnvPool(backend="inline"), [COUNTER], [None], [1])

    async def viewer(self) -> Manager:
        return serving(RunIndex([self._directory]), None)

    async def display(self) -> Manager:
        from rich.console import Console

        file = self._around.enter_context((self._new_directory() / "shown").open("w"))
        return live(lambda: pytest.fail("nobody asks"), title="", console=Console(file=file))

    async def signals(self) -> Manager:
        return stoppable()

    async def background(self) -> Manager:
        return Background()

    async def gradual_tasks(self) -> Manager:
        return GradualTasks()


# Ways of leaving


async def fail(error: BaseException) -> NoReturn:
    raise error


async def leave_well(manager: Manager) -> None:
    async with manager:
        pass


async def leave_with(error: BaseException, manager: Manager) -> None:
    with pytest.raises(type(error)) as raised:
        async with manager:
            raise error
    assert raised.value is error


async def leave_by_error(manager: Manager) -> None:
    await leave_with(OursError(), manager)


async def leave_by_interrupt(manager: Manager) -> None:
    await leave_with(KeyboardInterrupt(), manager)


async def leave_by_exit(manager: Manager) -> None:
    await leave_with(SystemExit(3), manager)


async def leave_by_generators_end(manager: Manager) -> None:
    await leave_with(GeneratorExit(), manager)


async def leave_by_a_group_of_errors(manager: Manager) -> None:
    await leave_with(ExceptionGroup("several", [OursError(), ExceptionGroup("more", [ValueError()])]), manager)


async def leave_by_a_cancellation_of_ones_own(manager: Manager) -> None:
    await leave_with(asyncio.CancelledError(), manager)


async def leave_when_a_child_fails_at_the_end(manager: Manager) -> None:
    """README's own pattern. Before Python 3.13, this leaves `cancelling()` at 1."""
    error = OursError()
    with pytest.raises(ExceptionGroup) as raised:
        async with manager, asyncio.TaskGroup() as tasks:
            tasks.create_task(fail(error))
    assert raised.value.exceptions == (error,)
    own(uncancel=True)


async def leave_when_a_child_fails_meanwhile(manager: Manager) -> None:
    error = OursError()
    with pytest.raises(ExceptionGroup) as raised:
        async with manager, asyncio.TaskGroup() as tasks:
            tasks.create_task(fail(error))
            await anyio.sleep_forever()
    assert raised.value.exceptions == (error,)


async def leave_when_a_child_of_anyio_fails(manager: Manager) -> None:
    error = OursError()
    with pytest.raises(ExceptionGroup) as raised:
        async with manager, anyio.create_task_group() as tasks:
            tasks.start_soon(fail, error)
            await anyio.sleep_forever()
    assert raised.value.exceptions == (error,)


async def leave_when_a_group_around_fails(manager: Manager) -> None:
    error = OursError()
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as tasks, manager:
            tasks.create_task(fail(error))
            await anyio.sleep_forever()
    assert raised.value.exceptions == (error,)


async def leave_when_a_group_of_anyio_around_fails(manager: Manager) -> None:
    error = OursError()
    with pytest.raises(ExceptionGroup) as raised:
        async with anyio.create_task_group() as tasks, manager:
            tasks.start_soon(fail, error)
            await anyio.sleep_forever()
    assert raised.value.exceptions == (error,)


async def leave_by_timeout(manager: Manager) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit, manager:
            limit.reschedule(0)
            await anyio.sleep_forever()


async def leave_by_timeout_inside(manager: Manager) -> None:
    with pytest.raises(TimeoutError):
        async with manager, asyncio.timeout(0):
            await anyio.sleep_forever()


async def leave_by_deadline_of_anyio(manager: Manager) -> None:
    with pytest.raises(TimeoutError), anyio.fail_after(None) as scope:
        async with manager:
            scope.deadline = 0
            await anyio.sleep_forever()


async def leave_by_scope_of_anyio(manager: Manager) -> None:
    with anyio.CancelScope() as scope:
        async with manager:
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def leave_by_deadline_inside(manager: Manager) -> None:
    async with manager:
        with anyio.move_on_after(0):
            await anyio.sleep_forever()


async def leave_by_cancellation(manager: Manager) -> None:
    with pytest.raises(asyncio.CancelledError):
        async with manager:
            asyncio.get_running_loop().call_soon(own().cancel, "from outside")
            await anyio.sleep_forever()
    own(uncancel=True)


async def leave_while_cancelled(manager: Manager) -> None:
    """Twice, as by somebody impatient; the cancellation arrives at the latest with the next thing that waits."""
    with pytest.raises(asyncio.CancelledError):
        async with manager:
            asyncio.get_running_loop().call_soon(own().cancel)
        await anyio.sleep_forever()
    own(uncancel=True)


async def leave_under_two_cancellations(manager: Manager) -> None:
    with pytest.raises(asyncio.CancelledError):
        async with manager:
            asyncio.get_running_loop().call_soon(own().cancel)
            try:
                await anyio.sleep_forever()
            finally:
                asyncio.get_running_loop().call_soon(own().cancel)
    while own().cancelling() < 2:
        with pytest.raises(asyncio.CancelledError):
            await anyio.sleep_forever()
    own(uncancel=True)
    own(uncancel=True)


WAYS = [way for name, way in globals().items() if name.startswith("leave_") and name != "leave_with"]
SLOW = ["process_pool", "service_with_workers", "local_llm"]
QUICK = [name for name in vars(Managers) if not name.startswith("_") and name not in SLOW]


def own(*, uncancel: bool = False) -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    if uncancel:
        task.uncancel()
    return task


async def check_way(way: Callable[[Manager], Awaitable[None]], manager: Manager) -> None:
    """The task that has left can go on as if nothing had been."""
    try:
        await way(manager)
        assert own().cancelling() == 0
        await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(0) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
    except BaseException as error:  # a cancellation, too, which a task group would take for an end like another
        raise AssertionError(f"{way.__name__}: {error!r}") from error


async def check_ways(name: str, directory: Path, ways: list[Any]) -> None:
    async with AsyncExitStack() as around:
        managers = Managers(around, directory)
        for way in ways:
            manager = await getattr(managers, name)()
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:  # in a task of its own, which is cancelled
                    tasks.start_soon(check_way, way, manager)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", QUICK)
async def test_the_very_exception_arrives(name: str, tmp_path: Path) -> None:
    await check_ways(name, tmp_path, WAYS)


@pytest.mark.parametrize("name", SLOW[:2])
async def test_the_very_exception_arrives_with_workers(name: str, tmp_path: Path) -> None:
    await check_ways(name, tmp_path, [leave_when_a_child_fails_at_the_end, leave_under_two_cancellations])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SLOW[:2], pytest.param("local_llm", marks=with_model)])
async def test_the_very_exception_arrives_with_processes_each_way(name: str, tmp_path: Path) -> None:
    await check_ways(name, tmp_path, WAYS)


# A background task of ours that fails


def background_of(manager: Any) -> Background:
    found = manager._health._tasks if isinstance(manager, OpenAIPolicy) else None
    if isinstance(manager, AsyncEnvStateManager):
        found = manager._fleet._pools
    if isinstance(manager, Rollouts):
        found = manager._engine._background
    found = manager if isinstance(manager, Background) else found
    names = ("_background", "_serving", "_work")
    return found or next(getattr(manager, name) for name in names if hasattr(manager, name))


WITH_BACKGROUND = [
    "inline_pool",
    "remote_pool",
    "server",
    "batched_policy",
    "openai_policy",
    "rollouts",
    "recorder",
    "writer",
    "reporting",
    "ragen_states",
    "background",
]


async def wait_for_failure(manager: Manager, error: BaseException) -> None:
    async with manager:
        background_of(manager).start_soon(fail, error)
        await anyio.sleep_forever()


async def leave_at_once(manager: Manager, error: BaseException) -> None:
    async with manager:
        background_of(manager).start_soon(fail, error)


async def wait_with_children(manager: Manager, error: BaseException) -> None:
    async with manager, asyncio.TaskGroup() as tasks:
        tasks.create_task(anyio.sleep_forever())
        background_of(manager).start_soon(fail, error)


async def wait_within_scopes(manager: Manager, error: BaseException) -> None:
    with anyio.fail_after(PATIENCE):
        async with manager, anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            background_of(manager).start_soon(fail, error)
            with anyio.CancelScope(shield=True):
                await anyio.sleep_forever()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", WITH_BACKGROUND)
@pytest.mark.parametrize("wait", [wait_for_failure, wait_with_children, wait_within_scopes])
async def test_the_failure_of_a_background_task_arrives_as_itself(name: str, wait: Any, tmp_path: Path) -> None:
    async with AsyncExitStack() as around:
        manager = await getattr(Managers(around, tmp_path), name)()
        error = OursError()
        with anyio.fail_after(PATIENCE), pytest.raises(OursError) as raised:
            await wait(manager, error)
        assert raised.value is error
        await check_way(leave_by_error, EnvPool(backend="inline"))


async def test_a_failure_in_the_last_moment_arrives_too() -> None:
    error = OursError()
    with pytest.raises(OursError) as raised:
        await leave_at_once(Background(), error)
    assert raised.value is error


async def test_an_error_of_the_body_is_not_replaced_by_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    mine = OursError("mine")
    background = Background()
    with pytest.raises(OursError) as raised:
        async with background:
            background.start_soon(fail, OursError("another"))
            await anyio.lowlevel.checkpoint()
            raise mine
    assert raised.value is mine
    assert own().cancelling() == 0
    assert caplog.messages == ["background_task_failed error='OursError: another'"]


async def test_two_objects_that_fail_cancel_the_body_once_each() -> None:
    outer, inner = Background(), Background()
    errors = [OursError("outer"), OursError("inner")]
    with pytest.raises(OursError) as raised:
        async with outer, inner:
            outer.start_soon(fail, errors[0])
            inner.start_soon(fail, errors[1])
            await anyio.sleep_forever()
    assert raised.value in errors
    assert own().cancelling() == 0
    await anyio.lowlevel.checkpoint()


async def test_a_cancellation_from_outside_gives_way_to_a_failure() -> None:
    error = OursError()
    background = Background()
    with pytest.raises(OursError) as raised:
        async with background:
            background.start_soon(fail, error)
            own().cancel()
            await anyio.sleep_forever()
    assert raised.value is error
    assert own().uncancel() == 0
    await anyio.lowlevel.checkpoint()


# The parts


async def test_what_could_be_opened_again_still_can(tmp_path: Path) -> None:
    recorder, background = VideoRecorder(tmp_path), Background()
    policy = BatchedPolicy(lambda requests: ["a"] * len(requests))
    for _ in range(2):
        async with policy, recorder:
            assert (await policy.generate(Request(messages=[]))).text == "a"
        with pytest.raises(OursError):
            await wait_for_failure(background, OursError())


async def test_a_task_group_gives_an_error_that_is_a_group_as_it_is() -> None:
    error = ExceptionGroup("several", [OursError()])
    with pytest.raises(ExceptionGroup) as raised:
        async with task_group() as tasks:
            tasks.start_soon(fail, error)
    assert raised.value is error


async def test_clean_up_ends_whatever_happens_to_who_waits() -> None:
    ended: list[bool] = []

    async def clean_up() -> None:
        for _ in range(3):
            own_waiter.cancel()
            await anyio.lowlevel.checkpoint()
        ended.append(True)

    own_waiter = own()
    with pytest.raises(asyncio.CancelledError):
        await run_to_end(clean_up)
    assert ended == [True]
    while own_waiter.uncancel():
        pass


async def test_a_pool_in_an_abandoned_generator_is_closed_by_another_task() -> None:
    async def opened() -> AsyncIterator[EnvPool]:
        async with EnvPool(backend="inline") as pool, pool.open(COUNTER):
            yield pool

    generator = opened()
    pool = await anext(generator)
    assert pool.stats().envs == 1
    del generator
    gc.collect()
    await all_tasks_blocked()
    assert pool.stats().envs == 0
    with pytest.raises(ClosedError):
        pool.open(COUNTER)


@asynccontextmanager
async def nested(*managers: Manager) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for manager in managers:
            await stack.enter_async_context(manager)
        yield


async def test_many_at_once_may_be_left_in_any_way() -> None:
    for way in WAYS:
        managers: list[Any] = [
            EnvPool(backend="inline"),
            await rollouts(),
            BatchedPolicy(lambda _: []),
            EnvPool(backend="inline"),
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(check_way, way, nested(*managers))


COVERED = {
    "AsyncEnvStateManager", "Background", "BatchedPolicy", "EnvHandle", "EnvPool", "EnvBatch", "EnvServer",
    "EnvService", "GradualTasks", "OpenAIPolicy", "MetricsExporter", "Rollouts", "Sessions", "VideoRecorder", "Writer",
}  # fmt: skip
WITHOUT_TASKS = {"Connection", "DirectPoints"}
WITHIN_ROLLOUTS = {"LocalShardLauncher", "RayShardLauncher", "ShardLauncher"}  # parts of it: see test_shards


def test_every_class_that_is_left_is_in_the_table() -> None:
    package = Path(asyncrollout.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for part in re.split(r"^(?=class )", path.read_text(), flags=re.MULTILINE):
            if "    async def __aexit__(" in part:
                found.add(part.removeprefix("class ").partition(":")[0].partition("(")[0])
    assert found == COVERED | WITHOUT_TASKS | WITHIN_ROLLOUTS


INTERRUPTED = """
import asyncio, sys, uvloop
import asyncrollout as ar

async def main():
    async with ar.EnvPool(backend="inline") as pool, pool.open("frozen_lake"), asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(3600))
        print("ready", flush=True)

with asyncio.Runner(loop_factory=uvloop.new_event_loop if "uvloop" in sys.argv else None) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_ctrl_c_is_a_keyboard_interrupt(loop: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert process.returncode == -signal.SIGINT
