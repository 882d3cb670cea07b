"""One worker rank: its process is started, watched, and replaced when it dies."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import Process

from asyncrollout.errors import PoolError
from asyncrollout.logs import get_logger
from asyncrollout.pool.hosts import CLOSE_GRACE, DurationWindow, PoolLimits
from asyncrollout.pool.process import interpreter
from asyncrollout.pool.process.watchdog import KillReason, WatchContext, Watchdog, crash, may_be_killed
from asyncrollout.pool.process.worker_host import WorkerHost
from asyncrollout.pool.wire.main_module import MainModule, is_imported_by_child
from asyncrollout.pool.wire.shared_arrays import ArrayReader
from asyncrollout.pool.wire.status_page import CLOSING, StatusPage
from asyncrollout.pool.worker.entry import WorkerConfig, serve
from asyncrollout.pool.worker.guards import kill_group

log = get_logger(__name__)

_START_LIMIT = interpreter.READY_LIMIT
_START_TRIES = 3
_START_TRIES_IF_KILLED = 100  # of processes that somebody killed before they served
_LOG_TAIL = 4_000  # bytes; holds the report of a segmentation fault
_SWEEP_EVERY = 0.005  # seconds
_SWEEP_LOOKS = 200
_ENDED_EARLY = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, ProcessLookupError)


class Supervisor:
    """Keeps one rank alive until it is stopped. `host` is its process while that serves."""

    node = None  # this one

    def __init__(
        self,
        rank: int,
        root: Path,
        *,
        limits: PoolLimits,
        environ: Mapping[str, str],
        log_dir: Path | None,
        send_snapshots: bool,
        watch: WatchContext,
        on_change: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.rank = rank
        self.restarts = 0
        self.clock = DurationWindow()
        self.host: WorkerHost | None = None
        self.failure: PoolError | None = None
        self.ended = False
        self._root = root
        self._limits = limits
        self._environ = dict(environ)
        self._log_dir = log_dir
        self._send_snapshots = send_snapshots
        self._watch = watch
        self._on_change = on_change
        self._on_idle = on_idle
        self._lives = 0
        self._page: StatusPage | None = None
        self._log_start = 0  # bytes that earlier processes wrote to the same log
        self._started: list[Process] = []  # at most one
        self._was_killed = False  # at its start, by somebody else
        self._process: Process | None = None
        self._kill_reason: KillReason | None = None
        self._watchdog = Watchdog(limits, watch, self.clock)
        self.stopping = False
        self._progress = 0.0  # when a process that was asked to end was last seen to do so
        self._seen_closing: list[tuple[int, float]] = []
        self._server: asyncio.AbstractServer | None = None  # until the process has connected
        self._start_scope = anyio.CancelScope()  # from the start of a process until it serves
        self._life = anyio.CancelScope(shield=True)  # ends by stop() alone, so that envs are closed in order

    async def run(self) -> None:
        """Give up after some starts in a row that failed; the very first must succeed."""
        failed_starts = 0
        try:
            with self._life:
                while not self.stopping:
                    error = await self._live()
                    if self.failure is not None:
                        break
                    failed_starts = failed_starts + 1 if error else 0
                    tries = _START_TRIES_IF_KILLED if self._was_killed else _START_TRIES
                    if error and (self._lives == 1 or failed_starts >= tries):
                        self.failure = error
                        break
                    self.restarts += not self.stopping
        finally:
            self.ended = True
            self._on_change()

    def stop(self) -> None:
        self.stopping = True
        self._progress = time.monotonic()
        if self.host is not None:
            self.host.stop()

    def is_overdue(self, grace: float) -> bool:
        """Whether a process that was asked to end has been at one thing, or at nothing, for too long."""
        now, page = time.monotonic(), self._page
        busy = page.running() if page is not None and self.host is not None else []
        if busy != self._seen_closing:
            self._seen_closing, self._progress = busy, now
        limit = CLOSE_GRACE if any(call == CLOSING for call, _ in busy) else grace
        return self._watch.time.since(self._progress, now) > limit

    def stop_now(self) -> None:
        """Kill the process. One that is about to be started has no pid yet, and is killed when this is called again."""
        if self.host is not None or self._started:
            self._life.cancel()

    async def _live(self) -> PoolError | None:
        """One process from its start to its end; an error if it never got as far as to serve."""
        self._lives += 1
        try:
            config = self._prepare(self._root / f"{self.rank}.{self._lives}")
            self._server = server = await self._listen(config)
        except OSError as error:  # a full disk, too few descriptors
            return PoolError.at(f"worker {self.rank} cannot be started: {error}", worker=self.rank)
        cause: BaseException | None = None
        self._started = []
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + _START_LIMIT) as self._start_scope:
                await interpreter.run(serve, config, config.log, self._started)
        except (anyio.BrokenWorkerProcess, OSError, PoolError) as broken:  # always: `serve` does not return
            cause = broken.__cause__ or broken
        finally:
            server.close()
            self._server = None  # asyncio's keeps the factory of hosts, and so the page
            tail = log_tail(config.log, self._log_start)
            served = self._on_exit(tail)
            shutil.rmtree(config.directory, ignore_errors=True)
        if served or self.stopping:
            return None
        codes = [process.returncode for process in self._started]
        self._was_killed = isinstance(cause, _ENDED_EARLY) and not tail and any(map(may_be_killed, codes))
        self._watch.idle_kills += self._was_killed
        return _start_error(self.rank, cause, tail)

    def _prepare(self, directory: Path) -> WorkerConfig:
        directory.mkdir(mode=0o700)
        self._page = StatusPage.create(directory / "page")
        output = (self._log_dir or directory) / f"worker-{self.rank}.log"
        self._log_start = output.stat().st_size if output.exists() else 0
        return WorkerConfig(
            main=MainModule.of_this_process(),
            rank=self.rank,
            directory=directory,
            log=output,
            token=secrets.token_bytes(16),
            parent=os.getpid(),
            environ=self._environ,
            send_snapshots=self._send_snapshots,
            memory_limit=self._limits.memory,
        )

    async def _listen(self, config: WorkerConfig) -> asyncio.AbstractServer:
        assert self._page is not None  # `_prepare` made it
        make_host = partial(
            WorkerHost,
            self.rank,
            token=config.token,
            arrays=ArrayReader(config.directory),
            page=self._page,
            clock=self.clock,
            on_hello=partial(self._on_hello, config.directory),
            on_idle=self._on_idle,
            starting=self._watch.starting,
            on_lost=self._on_disconnect,
        )
        return await asyncio.get_running_loop().create_unix_server(make_host, str(config.directory / "socket"))

    def _on_hello(self, directory: Path, host: WorkerHost) -> None:
        if host.page is not self._page:  # its process was given up before it was heard, and may have a successor
            host.refuse()
            return
        try:
            self._welcome(directory, host)
        except Exception as error:  # else it would be lost in a callback, and the pool would wait for ever
            self.failure = PoolError(f"worker {self.rank} cannot be used: {type(error).__name__}: {error}")
            kill_group(host.pid)

    def _welcome(self, directory: Path, host: WorkerHost) -> None:
        self._start_scope.deadline = float("inf")
        if self._server is not None:
            self._server.close()
        limit = self._limits.memory
        if limit is not None and host.bare_memory > limit:
            uses = f"a worker without envs uses, {host.bare_memory} bytes"
            self.failure = PoolError(f"memory_limit={limit} is less than {uses}")
            kill_group(host.pid)
            return
        for name in ("socket", "page"):  # both sides have them open
            (directory / name).unlink(missing_ok=True)
        self.host, self._process = host, self._started[0]
        self._watchdog = Watchdog(self._limits, self._watch, self.clock)
        if self.stopping:
            host.stop()
        self._on_change()

    def _on_disconnect(self, host: WorkerHost) -> None:
        self._sweep(host)

    def _sweep(self, host: WorkerHost, patience: int = _SWEEP_LOOKS) -> None:
        """The socket is closed, so the process is ending: when its exit status is known, kill what it leaves.

        A process that still lives without its socket is of no use, and is killed too.
        """
        if self.host is not host:
            return
        if patience and self._process is not None and self._process.returncode is None:
            asyncio.get_running_loop().call_later(_SWEEP_EVERY, self._sweep, host, patience - 1)
            return
        if self._kill_reason is None and self._page is not None and not patience:
            self._page.give_up()  # by our own hand, but not of our own accord
        kill_group(host.pid)

    def _on_exit(self, tail: str) -> bool:
        """The process is gone: sweep up what it left, and fail the calls in flight with what it died of."""
        host, page, reason = self.host, self._page, self._kill_reason
        self.host = self._page = self._kill_reason = None
        if host is None or page is None:
            return False
        kill_group(host.pid)
        code = self._process.returncode if self._process is not None else None
        if self.stopping:
            reason = KillReason("closed", set())
        elif reason is None:
            reason = crash({call for call, _ in page.running()}, code, was_given_up=page.was_given_up)
        reason = reason._replace(cause=reason.cause or cause_of_death(code))
        if not self.stopping:
            log.warning(
                "worker_died", worker=self.rank, reason=reason.kind, cause=reason.cause, calls=len(host.pending)
            )
        self._watch.idle_kills += reason.from_outside and not reason.blamed
        host.end(*reason.losses(tail, self._watch.idle_kills))
        self._on_change()
        return True

    def watch(self, now: float) -> None:
        """Kill a process whose call or memory is past its limit."""
        host, page = self.host, self._page
        if host is None or page is None or self._kill_reason is not None:
            return
        if self._process is not None and self._process.returncode is not None:
            kill_group(host.pid)  # it is dead, and a child that it forked holds its socket
            return
        reason = self._watchdog.look(host, page, now)
        if reason is not None:
            self._kill(host, reason)

    def _kill(self, host: WorkerHost, reason: KillReason) -> None:
        self._kill_reason = reason
        with contextlib.suppress(ProcessLookupError):
            os.kill(host.pid, signal.SIGKILL)


def refuse_in_worker() -> None:
    """Not every import may start a pool: one in a child process would have a child do the same, and so on."""
    if is_imported_by_child():
        raise PoolError(
            "a pool is started by an import in a child process, whose workers would do the same. Put what starts it "
            "in that module or script behind `if __name__ == '__main__':`"
        )


def _start_error(rank: int, cause: BaseException | None, tail: str) -> PoolError:
    if isinstance(cause, PoolError):
        return cause
    if cause is None or isinstance(cause, TimeoutError):
        why = f"it did not answer within {_START_LIMIT:.0f} s"
    elif isinstance(cause, _ENDED_EARLY):
        why = "its process ended before it answered"
    elif isinstance(cause, ValueError | RuntimeError | anyio.BrokenWorkerProcess):
        why = f"{cause}: does a sitecustomize or .pth file write to stdout, or start a process that does?"
    else:
        why = f"{type(cause).__name__}: {cause}"
    last = next((line for line in reversed(tail.splitlines()) if line.strip()), "")
    said = f". The last line of its output: {last.strip()}" if last else ""
    return PoolError.at(f"worker {rank} did not start: {why}{said}", worker=rank, notes=tail)


def cause_of_death(code: int | None) -> str:
    if code is None:
        return "its end is not known"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"


def log_tail(log_file: Path, start: int) -> str:
    """The end of what was written since `start`; of all, if the file was cut since then."""
    try:
        with log_file.open("rb") as output:
            size = os.fstat(output.fileno()).st_size
            output.seek(max(start if start <= size else 0, size - _LOG_TAIL))
            return output.read().decode(errors="replace")
    except OSError:  # it was never begun
        return ""
