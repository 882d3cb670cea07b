"""The actor of a worker: it starts the worker process on its node, watches it, and reports to the pool.

The worker is a process of its own below the actor, as it is below a pool on one machine. So an env that holds the
interpreter's lock, writes to stdout or crashes does so in the worker, and the actor still reports, and can say which
calls were at work. It reads the page that a pool on another machine cannot map.
"""

import os
import pickle
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from asyncrollout import __version__
from asyncrollout.pool.process.directory import private_directory_of_thread
from asyncrollout.pool.process.observed_time import usage
from asyncrollout.pool.process.supervisor import log_tail
from asyncrollout.pool.wire import codec, network
from asyncrollout.pool.wire.status_page import StatusPage
from asyncrollout.pool.worker.entry import WorkerConfig
from asyncrollout.pool.worker.guards import kill_group, resident_bytes
from asyncrollout.ray import orders
from asyncrollout.ray.cluster import import_ray
from asyncrollout.ray.orders import WorkerEnd, WorkerOrder

_TICK = 0.1  # seconds; calls that take longer are reported
_BEAT = 1.0  # seconds between two reports while nothing happens
_RECEIVE = 1 << 18
_END_LIMIT = 10.0  # seconds for a process that was killed
_BOOT = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); config = pickle.load(sys.stdin.buffer); "
    "from asyncrollout.pool.worker.entry import serve; serve(config)"
)


class WorkerActor:
    """Made by Ray. `run` takes as long as its worker lives; `send` and `receive` are for pools without a socket."""

    def __init__(self) -> None:
        self._relay = _Relay()

    def run(self, order: WorkerOrder) -> WorkerEnd:
        if order.version != __version__:
            raise RuntimeError(f"this node has asyncrollout {__version__}, and the program {order.version}")
        with ExitStack() as stack:
            directory, is_shared = stack.enter_context(_life_directory(order))
            if order.network is not None:
                control = network.connect(order.network, network.CONTROL)
            else:
                control = self._relay.open(directory / "socket")
                stack.callback(self._relay.close)
            stack.enter_context(control)
            return _Watch(order, directory, control, maps_arrays=is_shared).run()

    def send(self, steps: bytes, control: bytes) -> None:
        self._relay.send(steps, control)

    def receive(self) -> tuple[bytes | None, bytes]:
        return self._relay.receive()


class _Relay:
    """The worker's socket and that of the watch, read and written for a pool that can only make calls."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._listening: socket.socket | None = None
        self._steps: socket.socket | None = None
        self._control: socket.socket | None = None

    def open(self, path: Path) -> socket.socket:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._control, watch = socket.socketpair()
        self._opened.set()
        return watch

    def close(self) -> None:
        self._opened.clear()
        for one in (self._listening, self._steps, self._control):
            if one is not None:
                one.close()
        self._listening = self._steps = self._control = None

    def send(self, steps: bytes, control: bytes) -> None:
        with suppress(OSError):  # the life is over, which its end reports
            if control and self._control is not None:
                self._control.sendall(control)
            if steps and self._steps is not None:
                self._steps.sendall(steps)

    def receive(self) -> tuple[bytes | None, bytes]:
        """What came since the last call, or comes within a second; None when the worker has closed its socket."""
        if not self._opened.wait(_BEAT):
            return b"", b""
        open_now = [one for one in (self._listening, self._steps, self._control) if one is not None]
        steps: bytes | None = b""
        control = b""
        with suppress(OSError, ValueError):  # likewise
            readable, _, _ = select.select(open_now, [], [], _BEAT)
            if self._listening in readable and self._listening is not None:
                self._steps, _ = self._listening.accept()
                self._listening.close()
                self._listening = None
            if self._steps in readable and self._steps is not None:
                steps = self._steps.recv(_RECEIVE) or None
                if steps is None:
                    self._steps.close()
                    self._steps = None
            if self._control in readable and self._control is not None:
                control = self._control.recv(_RECEIVE)
        return steps, control


class _Watch:
    """One life of a worker, from its start to its end."""

    def __init__(self, order: WorkerOrder, directory: Path, control: socket.socket, *, maps_arrays: bool) -> None:
        self._page = StatusPage.create(directory / "page")
        self._control = control
        self._frames = codec.FrameReader()
        self._log = _log_file(order, directory)
        self._config = WorkerConfig(
            main=order.main,
            rank=order.rank,
            directory=directory,
            log=self._log,
            token=order.token,
            parent=os.getpid(),
            environ=order.environ,
            send_snapshots=order.send_snapshots,
            memory_limit=order.memory_limit,
            network=order.network,
            maps_arrays=maps_arrays,
            working_directory=order.working_directory,
        )
        self._told: list[tuple[int, float]] = []
        self._last = 0.0  # when the last report was sent
        self._stopped = 0.0  # seconds for which the worker was seen to be stopped
        self._was_frozen = False
        self._frozen_limit = order.frozen_limit

    def run(self) -> WorkerEnd:
        log_start = self._log.stat().st_size if self._log.exists() else 0
        self._send(orders.ActorHello(_node(), time.monotonic()))
        process = _start(self._config, self._log)
        try:
            with _ends(process) as ended:
                while process.poll() is None:
                    self._attend(process, ended)
        finally:
            _kill(process)
        return WorkerEnd(
            code=process.returncode,
            running=[call for call, _ in self._page.running()],
            was_given_up=self._page.was_given_up,
            log=log_tail(self._log, log_start),
            frozen=self._frozen_limit if self._was_frozen else 0.0,
        )

    def _attend(self, process: "subprocess.Popen[bytes]", ended: list[int]) -> None:
        watched: list[Any] = [self._control, *ended]
        readable, _, _ = select.select(watched, [], [], _TICK)
        if self._control in readable:
            self._obey(process)
        self._report(process)

    def _obey(self, process: "subprocess.Popen[bytes]") -> None:
        try:
            data = self._control.recv(_RECEIVE)
        except OSError:
            data = b""
        if not data:  # the pool is gone, or has given this life up
            _kill(process)
            return
        for frame in self._frames.feed(data):
            match orders.read_told(frame):
                case orders.Withdraw(calls):
                    self._withdraw(calls)
                case orders.WithdrawAll():
                    self._page.withdraw_all()
                case orders.ForgetWithdrawn():
                    self._page.forget_withdrawn()
                case orders.KillWorker(given_up):
                    if given_up:
                        self._page.give_up()
                    _kill(process)

    def _withdraw(self, calls: list[int]) -> None:
        """Write down what is to be skipped, and only then look what was begun: see `StatusPage`."""
        self._page.withdraw(calls)
        begun, at_work = self._page.last_begun(), {call for call, _ in self._page.running()}
        self._send(orders.NotBegun([call for call in calls if call > begun and call not in at_work]))

    def _report(self, process: "subprocess.Popen[bytes]") -> None:
        """When something new takes long, and at intervals."""
        now = time.monotonic()
        running = [(call, start) for call, start in self._page.running() if now - start > _TICK]
        elapsed = now - self._last
        if running == self._told and elapsed < (_BEAT / 2 if running else _BEAT):
            return
        seen = usage(process.pid)
        if elapsed >= _BEAT / 2:
            self._note_state(process, is_stopped=seen.is_stopped, elapsed=elapsed)
        main = self._page.main_call()
        self._told, self._last = running, now
        self._send(
            orders.WorkerReport(
                running=running,
                main=main if main in running else (0, 0.0),
                begun=self._page.last_begun(),
                memory=resident_bytes(process.pid),
                state=seen.state,
                cpu=seen.cpu,
            )
        )

    def _note_state(self, process: "subprocess.Popen[bytes]", *, is_stopped: bool, elapsed: float) -> None:
        """Kill a worker that stands still alone; if all of the node does, we see few of these moments."""
        self._stopped = self._stopped + min(elapsed, _BEAT) if is_stopped else 0.0
        if self._stopped >= self._frozen_limit:
            self._was_frozen = True
            _kill(process)

    def _send(self, message: orders.Said) -> None:
        with suppress(OSError):  # the next look at the connection finds that it is closed
            self._control.sendall(orders.to_frame(message))


@contextmanager
def _life_directory(order: WorkerOrder) -> Iterator[tuple[Path, bool]]:
    """Where this life has its files, and whether the pool can open them."""
    directory = _shared_directory(order)
    if directory is not None:
        try:
            yield directory, True
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return
    with private_directory_of_thread() as own:
        yield own, False


def _shared_directory(order: WorkerOrder) -> Path | None:
    root, probe = order.shared
    try:
        if (Path(root) / orders.PROBE).read_bytes() != probe:
            return None
        directory = Path(root) / order.folder
        directory.mkdir(mode=0o700)
    except OSError:
        return None
    return directory


def _log_file(order: WorkerOrder, directory: Path) -> Path:
    if order.log_dir is None:
        return directory / "worker.log"
    kept = Path(order.log_dir)
    kept.mkdir(parents=True, exist_ok=True)
    return kept / f"worker-{order.rank}.log"


def _node() -> str:
    """As people and Ray know it: the address, and the start of its id."""
    ray = import_ray()
    return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"


def _start(config: WorkerConfig, log: Path) -> "subprocess.Popen[bytes]":
    """Its stdin stays open: when that closes, the worker's sentinel kills what is left of it."""
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 (our own text)
            [sys.executable, "-c", _BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
        )
    assert process.stdin is not None
    with suppress(OSError):  # it has ended, which is noticed next
        path = [entry for entry in sys.path if isinstance(entry, str)]
        process.stdin.write(pickle.dumps(path) + pickle.dumps(config))
        process.stdin.flush()
    return process


@contextmanager
def _ends(process: "subprocess.Popen[bytes]") -> Iterator[list[int]]:
    """A descriptor that becomes readable when the process ends, where the system has such a thing."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        yield []
        return
    try:
        yield [descriptor]
    finally:
        os.close(descriptor)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """It, and all that its envs started."""
    if process.poll() is None:
        process.kill()
    kill_group(process.pid)
    process.wait(_END_LIMIT)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
