"""What `anyio.to_process` leaves open, and a worker closes. Each test fails without its guard."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_process
import psutil
import pytest

from asyncrollout import EnvPool, EnvSpec, EnvTimeout, PoolError
from asyncrollout.pool.hosts import PoolLimits
from asyncrollout.pool.process.supervisor import Supervisor
from asyncrollout.pool.process.watchdog import WatchContext
from asyncrollout.pool.process.worker_host import WorkerHost
from asyncrollout.pool.wire.codec import frame
from tests.scripts.processes import (
    LIMIT,
    MARK,
    ROOT,
    alive,
    kill_marked,
    marked,
    private_directories,
    spoil_starts,
    until,
    wait_until,
)
from tests.waiting import freeze

uvloop_only = pytest.mark.asyncio(loop_factories=["uvloop"])

COUNTER = "tests.envs.tiny:Counter"
FAULTY = "tests.envs.fault:Faulty"
IO = EnvSpec(name="io", factory=FAULTY, runs="io")


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """Marks the processes of this test, so that orphans are found too; none may be left."""
    value = f"{os.getpid()} {request.node.name}"
    monkeypatch.setenv(MARK, value)
    yield value
    left = marked(value)
    kill_marked(value)
    assert not left


@contextmanager
def running(script: str, *args: str, pythonpath: str = str(ROOT)) -> Iterator["subprocess.Popen[str]"]:
    """A script in a session of its own, as a user would start it in a terminal."""
    command = [sys.executable, str(ROOT / "tests" / "scripts" / script), *args]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": pythonpath},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: "subprocess.Popen[str]") -> str:
    """The next line; a program that has none within the limit is killed."""
    assert process.stdout is not None
    killer = threading.Timer(LIMIT, process.kill)  # not select(): a line that was read ahead is no longer in the pipe
    killer.start()
    try:
        line = process.stdout.readline()
    finally:
        killer.cancel()
        killer.join()
    assert line, process.communicate()
    return line


def run(script: str, pythonpath: str = str(ROOT)) -> "subprocess.CompletedProcess[str]":
    with running(script, pythonpath=pythonpath) as process:
        out, err = process.communicate(timeout=2 * LIMIT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


# SIGINT


@pytest.mark.parametrize("runs", ["cpu", "io"])
async def test_an_interrupt_of_a_worker_changes_nothing(runs: Any, tmp_path: Path) -> None:
    """Idle, within a step, and both for all of its process group, as Ctrl-C in a terminal does."""
    async with EnvPool(workers=1) as pool, pool.open(EnvSpec(name="env", factory=FAULTY, runs=runs)) as env:
        pid = pool.stats().workers[0].pid
        assert pid is not None
        seen = [(await env.reset(seed=3)).observation]
        for send in (os.kill, os.killpg):
            for _ in range(3):
                send(pid, signal.SIGINT)
            seen.append((await env.step(1)).observation)
            begun, gate = tmp_path / f"begun {send}", tmp_path / f"gate {send}"
            async with anyio.create_task_group() as tasks:

                async def step(begun: Path = begun, gate: Path = gate) -> None:
                    seen.append((await env.step(["tell", str(begun), "wait", str(gate)])).observation)

                tasks.start_soon(step)
                await until(begun.exists)
                for _ in range(3):
                    send(pid, signal.SIGINT)
                gate.touch()
        assert pool.stats().workers[0].pid == pid
        assert pool.stats().restarts == 0
    async with EnvPool(backend="inline") as pool, pool.open(COUNTER) as env:
        clean = [(await env.reset(seed=3)).observation, *[(await env.step(1)).observation for _ in range(4)]]
    assert seen == clean


def test_ctrl_c_ends_a_script_with_its_workers(tmp_path: Path, mark: str) -> None:
    """On both loops at the same time, because each waits for a worker that never ends."""
    with ExitStack() as scripts:
        started = [scripts.enter_context(running("spinning.py", loop, str(tmp_path))) for loop in ("asyncio", "uvloop")]
        begun = [json.loads(read_line(process)) for process in started]
        for process in started:
            os.killpg(process.pid, signal.SIGINT)
        for process in started:
            _, err = process.communicate(timeout=LIMIT)
            assert process.returncode != 0, process.args
            assert "KeyboardInterrupt" in err, process.args
    assert wait_until(lambda: not marked(mark))
    assert not [path for one in begun for path in one["directories"] if Path(path).exists()]


# Standard streams


async def test_the_standard_streams_of_an_env_are_not_the_protocol(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Outputs go to the log, inputs see the end."""
    async with EnvPool(workers=1, log_dir=tmp_path) as pool:
        for spec in (EnvSpec(name="cpu", factory=FAULTY), IO):
            async with pool.open(spec) as env:
                await env.reset(seed=1)
                with anyio.fail_after(LIMIT):
                    for fault in (["talk", 3], ["child talks"], ["talk", 3]):
                        assert (await env.step(fault)).info["gained"] > 0
        assert pool.stats().restarts == 0
    text = (tmp_path / "worker-0.log").read_text()
    for said in ("said 2", "raw out", "raw err", "said in anger", "child out", "child err"):
        assert text.count(said) >= 2
    assert capfd.readouterr().out.count("said") == 0


# Ends of a worker


async def test_workers_are_gone_after_the_pool(mark: str) -> None:
    """anyio would keep them for other work: here each call gets a process that no env has seen."""
    async with EnvPool(workers=2) as pool, pool.open(FAULTY) as env:
        await env.reset(seed=1)
        workers = {worker.pid for worker in pool.stats().workers}
    assert not marked(mark)
    assert await anyio.to_process.run_sync(os.getpid) not in workers
    for child in psutil.Process().children():  # anyio's own, which it would keep until the loop ends
        child.kill()
    await until(lambda: not psutil.Process().children())  # the loop reaps it


@uvloop_only
@pytest.mark.usefixtures("short_grace")
async def test_a_deadline_fires_though_a_worker_spins(tmp_path: Path, mark: str) -> None:
    with anyio.fail_after(LIMIT), anyio.CancelScope() as scope:
        async with EnvPool(workers=1) as pool, anyio.create_task_group() as tasks:
            env = await pool.open(FAULTY)
            await env.reset(seed=1)
            tasks.start_soon(env.step, ["tell", str(tmp_path / "begun"), "spin"])
            await until((tmp_path / "begun").exists)
            scope.cancel()
    assert scope.cancelled_caught
    assert not marked(mark)


@uvloop_only
@pytest.mark.parametrize("death", ["killed", "timeout", "own"])
async def test_children_of_an_env_die_with_its_worker(death: str, tmp_path: Path, mark: str) -> None:
    child = tmp_path / "child"
    async with EnvPool(workers=1, step_timeout=1) as pool, pool.open(FAULTY) as env:
        await env.reset(seed=1)
        await env.step(["once", str(tmp_path / "once"), "sleep child", str(child)])
        first = int(child.read_text())
        pid = pool.stats().workers[0].pid
        assert pid is not None
        assert alive(first)
        match death:
            case "killed":
                os.kill(pid, signal.SIGKILL)
            case "timeout":
                with pytest.raises(EnvTimeout):
                    await env.step(["spin"])
            case "own":
                await env.step(["once", str(tmp_path / "exit"), "exit", 3])
        await until(lambda: not alive(first))
        await until(lambda: pool.stats().restarts == 1)


async def test_children_of_an_env_die_with_the_pool(tmp_path: Path, mark: str) -> None:
    async with EnvPool(workers=1) as pool, pool.open(FAULTY) as env:
        await env.reset(seed=1)
        await env.step(["sleep child", str(tmp_path / "child")])
    await until(lambda: not alive(int((tmp_path / "child").read_text())))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_parent(loop: str, number: signal.Signals, tmp_path: Path, mark: str) -> None:
    with running("spinning.py", loop, str(tmp_path)) as process:
        begun = json.loads(read_line(process))
        assert wait_until(lambda: {*begun["workers"], begun["child"], process.pid} <= marked(mark))
        assert all(Path(path).exists() for path in begun["directories"])
        assert begun["directories"]
        process.send_signal(number)
        process.wait(LIMIT)
        assert wait_until(lambda: not marked(mark)), marked(mark)
        assert wait_until(lambda: not any(Path(path).exists() for path in begun["directories"]))


# Starts


@pytest.mark.parametrize("stage", ["interpreter", "worker"])
def test_a_parent_killed_while_its_workers_start_leaves_nothing(stage: str, tmp_path: Path, mark: str) -> None:
    """Its workers are held where their interpreter starts, or where the guards are set and the rest is to come."""
    gate = tmp_path / "gate"
    with running("starting.py", pythonpath=spoil_starts(tmp_path, _held(stage, tmp_path))) as process:
        assert wait_until(lambda: len(list(tmp_path.glob("at-*"))) == 2, LIMIT)
        directories = private_directories(process.pid)
        assert directories
        process.kill()
        process.wait(LIMIT)
        if stage == "interpreter":  # it has no guard yet: it ends when it comes to read its orders
            gate.touch()
        assert wait_until(lambda: not marked(mark)), marked(mark)
        assert wait_until(lambda: not any(path.exists() for path in directories)), directories


async def check_gone(mark: str) -> None:
    try:
        await until(lambda: not marked(mark), limit=5)
    finally:
        kill_marked(mark)  # uvloop cannot be closed while a process of its own lives on
        await until(lambda: not psutil.Process().children())


def _held(stage: str, tmp_path: Path) -> str:
    """Code for `sitecustomize`: an anyio worker says that it is here, and waits for the gate."""
    hold = f"""
import os, pathlib, sys, time
def hold():
    pathlib.Path({str(tmp_path)!r}, f"at-{{os.getpid()}}").touch()
    while not pathlib.Path({str(tmp_path / "gate")!r}).exists():
        time.sleep(0.002)
def is_worker():
    return "anyio.to_process" in pathlib.Path("/proc/self/cmdline").read_text()
"""
    if stage == "interpreter":
        return f"{hold}\nif is_worker(): hold()"
    return f"""{hold}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "asyncrollout.pool.worker.main":
            hold()
if is_worker(): sys.meta_path.insert(0, Finder())
"""


@uvloop_only
@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("stage", ["interpreter", "worker"])
async def test_cancelling_while_workers_are_held_up_in_their_start_leaves_nothing(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", spoil_starts(tmp_path, _held(stage, tmp_path)))
    with anyio.fail_after(LIMIT), anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                await until(lambda: len(list(tmp_path.glob("at-*"))) == 2)
                scope.cancel()

            tasks.start_soon(cancel)
            async with EnvPool(workers=2):
                await anyio.sleep_forever()
    assert scope.cancelled_caught
    await check_gone(mark)


@contextmanager
def process_of_its_own() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("has_successor", [False, True])
async def test_the_late_hello_of_a_worker_that_was_given_up_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_successor: bool
) -> None:
    connected = anyio.Event()
    connection_made = WorkerHost.connection_made

    def note(host: WorkerHost, transport: Any) -> None:
        connection_made(host, transport)
        connected.set()

    monkeypatch.setattr(WorkerHost, "connection_made", note)
    supervisor = Supervisor(
        0,
        tmp_path,
        limits=PoolLimits(1.0, 1.0),
        environ={},
        log_dir=None,
        send_snapshots=False,
        watch=WatchContext(),
        on_change=lambda: None,
        on_idle=lambda: None,
    )
    given_up = supervisor._prepare(tmp_path / "1")
    supervisor._server = await supervisor._listen(given_up)
    with process_of_its_own() as worker:
        async with await anyio.connect_unix(given_up.directory / "socket") as socket:
            await connected.wait()
            supervisor._server.close()
            supervisor._server = None
            assert not supervisor._on_exit("")
            if has_successor:
                supervisor._server = await supervisor._listen(supervisor._prepare(tmp_path / "2"))
            await socket.send(frame([given_up.token, worker.pid]))
            with anyio.fail_after(LIMIT), pytest.raises(anyio.EndOfStream):
                await socket.receive()
        assert supervisor.failure is None
        assert supervisor.host is None
        assert worker.poll() is None
        if has_successor:
            async with await anyio.connect_unix(tmp_path / "2" / "socket"):
                assert supervisor._server is not None
            supervisor._server.close()


@uvloop_only
@pytest.mark.usefixtures("short_grace")
async def test_a_pool_that_gives_up_its_start_leaves_another_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", spoil_starts(tmp_path, _held("interpreter", tmp_path)))
    played: list[str] = []
    given_up: list[Supervisor] = []
    stop_now = Supervisor.stop_now

    def give_up(worker: Supervisor) -> None:
        stop_now(worker)
        given_up.append(worker)

    monkeypatch.setattr(Supervisor, "stop_now", give_up)

    async def release() -> None:
        await until(lambda: given_up)
        (tmp_path / "gate").touch()

    async def live() -> None:
        async with EnvPool(workers=1) as pool, pool.open(COUNTER) as env:
            played.append((await env.reset(seed=1)).observation)

    with anyio.fail_after(2 * LIMIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(live)
            tasks.start_soon(release)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as beside:

                    async def cancel() -> None:
                        await until(lambda: len(list(tmp_path.glob("at-*"))) == 2)
                        scope.cancel()

                    beside.start_soon(cancel)
                    async with EnvPool(workers=1):
                        await anyio.sleep_forever()
    assert len(played) == 1


async def test_a_worker_that_fails_behind_its_guards_leaves_no_sentinel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    code = """
import sys
import time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "asyncrollout.pool.worker.main":
            raise ImportError("no worker today")
sys.meta_path.insert(0, Finder())
"""
    monkeypatch.setenv("PYTHONPATH", spoil_starts(tmp_path, code))
    with anyio.fail_after(LIMIT), pytest.raises(PoolError) as caught:
        async with EnvPool(workers=1):
            pass
    assert "no worker today" in "".join([str(caught.value), *caught.value.__notes__])
    await check_gone(mark)


# The user's script


def test_an_unguarded_script_works(mark: str) -> None:
    ended = run("unguarded.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert not marked(mark)


def test_a_script_whose_children_talk_when_it_is_imported_works(monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    """No worker imports it."""
    monkeypatch.setenv("NOISY", "1")
    ended = run("guarded.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("noise of a child at import") == 1


def test_a_guarded_script_works_with_an_env_of_its_own(mark: str) -> None:
    ended = run("guarded.py")
    assert ended.returncode == 0, ended.stderr
    assert "answer 42" in ended.stdout
    assert ended.stdout.count("imported") == 1
    assert ended.stderr == ""
    assert not marked(mark)


def test_a_pickle_of_an_env_cannot_end_the_trainer(mark: str) -> None:
    ended = run("bad_pickle.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "EnvError, 0 restarts"


# A package that changes how anyio finds the running loop


@pytest.mark.parametrize("hidden", [False, True], ids=["beside sniffio", "without sniffio"])
def test_the_cause_of_a_death_is_known(hidden: bool, tmp_path: Path, mark: str) -> None:
    code = "import sys; sys.modules['sniffio'] = None" if hidden else ""
    ended = run("crashing.py", pythonpath=spoil_starts(tmp_path, code))
    assert ended.returncode == 0, ended.stderr
    beside, _, begun = ended.stdout.splitlines()[-1].partition(": ")
    assert beside == ("without sniffio" if hidden else "beside sniffio")
    assert "exit code 3" in begun


# Mapped files


async def test_arrays_travel_over_the_socket_where_there_is_no_room_for_files() -> None:
    spec = EnvSpec(name="cramped", factory="tests.envs.fault:CrampedPictures")
    async with EnvPool(workers=1) as pool, pool.open(spec) as env:
        await env.reset(seed=1)
        for _ in range(3):
            outcome = await env.step(1)
            assert outcome.observation.shape == (1 << 18,)
            assert set(outcome.observation) == {outcome.observation[0]}
        assert pool.stats().restarts == 0


# Loops in other threads


def test_a_pool_on_a_loop_in_another_thread_works_and_clears_up(mark: str) -> None:
    async def play() -> tuple[int, str]:
        async with EnvPool(workers=2) as pool, pool.open(COUNTER) as env:
            pid = pool.stats().workers[0].pid
            await env.reset(seed=1)
            await env.step(1)
            os.kill(pid or 0, signal.SIGKILL)
            await until(lambda: pool.stats().restarts == 1)
            return pool.stats().restarts, (await env.step(1)).observation

    for options in ({}, {"use_uvloop": True}):
        with anyio.from_thread.start_blocking_portal(backend_options=options) as portal:
            assert portal.call(play) == (1, "total 10............")
        assert wait_until(lambda: not marked(mark))


async def test_a_new_worker_is_not_taken_for_stuck_before_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog may look for the first time while calls are on their way, and none has begun."""
    monkeypatch.setattr("asyncrollout.pool.process.backend._WATCH_EVERY", 10**6)
    async with EnvPool(workers=1) as pool:
        backend: Any = pool._backend
        (rank,) = backend._ranks

        async def play() -> None:
            async with pool.open(COUNTER) as env:
                await env.reset(seed=0)

        async with anyio.create_task_group() as tasks:
            freeze(rank.host.pid)
            tasks.start_soon(play)
            await until(lambda: bool(rank.host.pending))
            rank.watch(time.monotonic())
            os.kill(rank.host.pid, signal.SIGCONT)
        assert pool.stats().restarts == 0


@uvloop_only
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such policy")
async def test_workers_take_the_cpu_from_nobody_who_wakes_them(mark: str) -> None:
    async with EnvPool(workers=2) as pool:
        pids = [worker.pid for worker in pool.stats().workers]
        assert [os.sched_getscheduler(pid or 0) for pid in pids] == [os.SCHED_BATCH] * 2
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
