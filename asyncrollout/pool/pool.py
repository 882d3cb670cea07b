"""The environment pool: opens envs, places them on the least loaded worker, and reports its state."""

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

import anyio
import msgspec

from asyncrollout import validation
from asyncrollout.concurrency import Background
from asyncrollout.errors import ClosedError, PoolError, UsageError
from asyncrollout.machine import FDS_PER_WORKER, count_descriptors, usable_cpus
from asyncrollout.pool.batch_calls import Result, call_all
from asyncrollout.pool.binding import EnvBinding
from asyncrollout.pool.handle import EnvHandle, calls_of
from asyncrollout.pool.hosts import Backend, PoolLimits
from asyncrollout.pool.inline_host import InlineHost
from asyncrollout.pool.limits import RESET_TIMEOUT, STEP_TIMEOUT, check_interruptible, refuse_inline
from asyncrollout.pool.loop_monitor import LoopMonitor, watch_loop
from asyncrollout.pool.placement import Placement
from asyncrollout.pool.process.backend import ProcessBackend, WorkerEnv
from asyncrollout.pool.process.supervisor import refuse_in_worker
from asyncrollout.pool.recovery import RecoveryRules
from asyncrollout.pool.wire.codec import UnsendableError, to_pickle
from asyncrollout.pool.wire.definitions import SentDefinitions
from asyncrollout.pool.wire.messages import OpenRequest
from asyncrollout.pool.worker.env_factory import of_this_script, own_copies
from asyncrollout.pool.worker.env_runner import is_async
from asyncrollout.protocols import EnvRecording
from asyncrollout.registry import EnvRef, EnvSpec, check_exists, find_env, load_factory
from asyncrollout.types import Durations, PoolStats, Recovery, TextOptions

_BACKENDS = ("process", "inline", "ray")
_RAY_OPTIONS = "asyncrollout.ray.env_actors:RayOptions"  # of a higher row, which only those who use it import
_RECOVERIES = ("replay", "snapshot", "none")
_FDS_SPARE = 16  # to start at all; a run needs more


class EnvDescription(NamedTuple):
    """How to open an env like another one, whichever pool that one is in; `kwargs` hold its text options, too."""

    env: EnvSpec | str
    kwargs: Mapping[str, Any]
    text: bool | None
    expert: bool
    pinned: int | None


class WorkerPlaces(Protocol):
    """Where the workers of a pool run, if not on this machine: `RayOptions`."""

    def make_backend(
        self,
        workers: int,
        *,
        limits: PoolLimits,
        worker_env: WorkerEnv | None,
        log_dir: Path | None,
        send_snapshots: bool,
    ) -> Backend: ...


class EnvPool:
    """Many envs on few processes; an async context manager, or opened by `await start()` and closed by `await close()`.

    `workers` defaults to the number of usable CPUs. `step_timeout` and `reset_timeout` (which covers building) are
    seconds of work, not of waiting. `memory_limit` is bytes for each worker. `worker_env(rank)` gives a worker's
    environment variables. Workers' output is kept in `log_dir`, if given. An env whose worker dies is restored; it
    fails if it crashes its worker twice at the same call, or more than `max_restarts` times in one episode. With
    `backend="inline"` there are no workers: their options, and time limits that cannot be kept, are refused. With
    `backend="ray"` they run on the nodes of a Ray cluster, as `ray=RayOptions(...)` says.
    """

    takes_states = True
    """Whether an env here can be restored from another one's own snapshot."""

    def __init__(
        self,
        workers: int | None = None,
        backend: Literal["process", "inline", "ray"] = "process",
        *,
        step_timeout: float = STEP_TIMEOUT,
        reset_timeout: float = RESET_TIMEOUT,
        memory_limit: int | None = None,
        recover: Recovery = "replay",
        max_restarts: int = 10,
        worker_env: WorkerEnv | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        ray: "WorkerPlaces | None" = None,
    ) -> None:
        validation.check_choice("backend", backend, _BACKENDS)
        validation.check_choice("recover", recover, _RECOVERIES)
        validation.check_int("workers", 1 if workers is None else workers, 1)
        validation.check_int("memory_limit", 1 if memory_limit is None else memory_limit, 1)
        validation.check_int("max_restarts", max_restarts, 0)
        validation.check_seconds("step_timeout", step_timeout)
        validation.check_seconds("reset_timeout", reset_timeout)
        if backend == "inline":
            refuse_inline(workers=workers, memory_limit=memory_limit, worker_env=worker_env, log_dir=log_dir)
        self._workers = 0 if backend == "inline" else workers or usable_cpus()
        self._places = _places(ray) if backend == "ray" else None
        if ray is not None and backend != "ray":
            raise UsageError(f"ray= is for backend='ray', and this pool has backend={backend!r}")
        self._worker_env = worker_env
        self._log_dir = Path(log_dir) if log_dir is not None else None
        self._rules = RecoveryRules(PoolLimits(step_timeout, reset_timeout, memory_limit), recover, max_restarts)
        self._inline_host = InlineHost(self._rules.limits)
        self._sendable = SentDefinitions()  # classes that were found to be so
        self._backend: Backend | None = None
        self._placement = Placement(self._inline_host, None)
        self._background = Background(self._stop)
        self._was_opened = False
        self._loop_watch: LoopMonitor | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # in which it was entered
        self.thread = 0  # likewise

    async def __aenter__(self) -> Self:
        await self._start(cancels_body=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.close(error)

    async def start(self) -> Self:
        """Open the pool until `close()`, which another task of the same event loop may call: for notebooks.

        Where one block of code is enough, `async with` is better: it closes the pool in any case.
        """
        await self._start(cancels_body=False)
        return self

    async def close(self) -> None:
        """Close all envs and end the workers. Closing a closed pool does nothing."""
        await self._background.close()

    async def _start(self, *, cancels_body: bool) -> None:
        refuse_in_worker()
        if self._was_opened:
            raise UsageError("a pool cannot be opened twice: make another one")
        self._check_descriptors()
        self._was_opened = True
        self.loop, self.thread = asyncio.get_running_loop(), threading.get_ident()
        self._backend = self._make_backend()
        self._placement = Placement(self._inline_host, self._backend)
        async with self._background.opening(cancels_body=cancels_body):
            self._loop_watch = watch_loop()
            self._inline_host.open(self._background.group)
            if self._backend is not None:
                await self._backend.start(self._background.group)
                self._background.start_soon(self._placement.weigh)
            self._placement.open = True

    def _make_backend(self) -> Backend | None:
        if not self._workers:
            return None
        make = ProcessBackend if self._places is None else self._places.make_backend
        return make(
            self._workers,
            limits=self._rules.limits,
            worker_env=self._worker_env,
            log_dir=self._log_dir,
            send_snapshots=self._rules.recover == "snapshot",
        )

    async def _stop(self) -> None:
        """Each part is bounded."""
        self._placement.open = False
        async with anyio.create_task_group() as closing:
            closing.start_soon(self._inline_host.close)
            if self._backend is not None:
                closing.start_soon(self._stop_backend, self._backend)
        for binding in [*self._placement.bindings]:
            if binding.host is self._inline_host:
                self._placement.leave(binding)
        self._placement.bindings.clear()
        if self._loop_watch is not None:
            self._loop_watch.release()

    async def _stop_backend(self, backend: Backend) -> None:
        with anyio.CancelScope(shield=True):  # no other failure of closing may leave workers behind
            await backend.stop()

    def check_open(self) -> None:
        """An error if envs cannot be opened, with the reason."""
        failure = self._background.failure
        if failure is not None:
            raise ClosedError(f"the pool has failed: {type(failure).__name__}: {failure}") from failure
        self._placement.check_open()

    def find(self, env: EnvRef) -> EnvSpec:
        """What an env of this name is in this pool."""
        return of_this_script(find_env(env))

    def open(
        self,
        env: EnvRef,
        /,
        *,
        text: bool | None = None,
        worker: int | None = None,
        beside: EnvHandle | None = None,
        expert: bool = False,
        record: EnvRecording | None = None,
        **env_kwargs: Any,
    ) -> EnvHandle:
        """An env to enter with `async with`, or to `await` and close yourself; by its name, class, factory or spec.

        `text` overrides whether it opens with its text interface; `worker` pins it to a rank; `beside` starts it on
        the worker of another env, with which it may share what is costly to make; with `expert`, each outcome carries
        the solver's next reply in `info["expert"]`. `record` is what `VideoRecorder.record` gives.
        """
        self.check_open()
        spec = self.find(env)
        if text is not None and not isinstance(text, bool):
            raise UsageError(f"env {spec.name!r}: text={text!r} is neither True nor False")
        if record is not None and not all(hasattr(record, part) for part in ("camera", "opened", "ended")):
            raise UsageError(f"env {spec.name!r}: record={record!r:.100} is not what VideoRecorder.record() returns")
        text = spec.text is not None if text is None else text
        kwargs = own_copies({**spec.kwargs, **env_kwargs})
        if expert and not text:
            check_exists(spec)
            missing = "this env has none" if spec.text is None else "text=False turns it off"
            raise UsageError(
                f"env {spec.name!r}: SolverPolicy (expert=True) needs a text interface with solve(), and {missing}"
            )
        options = TextOptions()
        if text:
            given = {key: kwargs.pop(key) for key in TextOptions.__struct_fields__ if key in kwargs}
            try:
                options = msgspec.convert(given, TextOptions)
            except msgspec.ValidationError as error:
                raise UsageError(f"env {spec.name!r}: {error}") from error
        self._check_rank(spec.name, worker)
        camera = None if record is None else record.camera
        opening = OpenRequest(replace(spec, kwargs=kwargs), text, expert, options, camera)
        return self._handle(opening, worker, record, beside)

    def _check_rank(self, name: str, worker: int | None) -> None:
        if worker is not None and (type(worker) is not int or worker not in range(self._workers)):
            raise UsageError(f"env {name!r}: worker={worker!r} is not a rank of this pool, which has {self._workers}")

    def describe(self, binding: EnvBinding) -> EnvDescription:
        """All that it takes to open another env like this one, here or in another pool."""
        opening = binding.opening
        options = msgspec.structs.asdict(opening.options) if opening.text else {}
        kwargs = {**opening.spec.kwargs, **options}
        return EnvDescription(opening.spec, kwargs, opening.text, opening.expert, binding.pinned)

    def reopen(self, like: EnvDescription) -> EnvHandle:
        """An env of this description, without recording."""
        worker = like.pinned if self._workers else None
        if worker is not None and worker >= self._workers:
            name = like.env if isinstance(like.env, str) else like.env.name
            raise UsageError(
                f"env {name!r} is pinned to worker {worker}, and the pool that it is to continue in has "
                f"{self._workers}: open it there without worker=, or give that pool more workers"
            )
        return self.open(like.env, text=like.text, worker=worker, expert=like.expert, **like.kwargs)

    def _handle(
        self,
        opening: OpenRequest,
        pinned: int | None,
        record: EnvRecording | None = None,
        beside: EnvHandle | None = None,
    ) -> EnvHandle:
        if beside is not None and not isinstance(beside, EnvHandle):
            raise UsageError(f"env {opening.spec.name!r}: beside={beside!r:.100} is not an env that pool.open() gave")
        on_loop = self._lives_on_loop(opening, pinned)
        near = None if beside is None else calls_of(beside).binding
        binding = EnvBinding(opening, self._placement, self._rules, pinned=pinned, on_loop=on_loop, beside=near)
        return EnvHandle(self, binding, record)

    def _lives_on_loop(self, opening: OpenRequest, pinned: int | None) -> bool:
        """Whether an env lives here; one that does not must be able to travel."""
        if pinned is not None and is_async(opening.spec):
            name = opening.spec.name
            raise UsageError(f"env {name!r}: worker={pinned}: async envs run on the event loop and cannot be pinned")
        if not self._workers:
            check_interruptible(opening.spec, self._rules.limits)
            return True
        if pinned is None and (opening.spec.runs == "light" or is_async(opening.spec)):
            return True
        self._check_picklable(opening)
        return False

    def _check_picklable(self, opening: OpenRequest) -> None:
        try:
            to_pickle(opening, self._sendable)
        except UnsendableError as error:
            raise UsageError(
                f"env {opening.spec.name!r} cannot be sent to a worker process: {error.__cause__ or error}. Have the "
                "env make it (in `__init__` or `reset`), put the env in a module and name it 'module:Class', or run it "
                "in this process: EnvSpec(..., runs='light') or EnvPool(backend='inline')"
            ) from error

    async def step_many(self, handles: Sequence[EnvHandle], actions: Sequence[Any]) -> list[Result]:
        """Step all at once; an env that fails has its error in its place."""
        _check_handles(handles)
        if len(handles) != len(actions):
            raise UsageError(f"{len(handles)} handles, but {len(actions)} actions")
        each = zip(handles, actions, strict=True)
        return await call_all(partial(calls_of(handle).begin_step, action) for handle, action in each)

    async def reset_many(
        self,
        handles: Sequence[EnvHandle],
        seeds: Sequence[int | None] | None = None,
        tasks: Sequence[Any] | None = None,
    ) -> list[Result]:
        """Reset all at once; an env that fails has its error in its place."""
        _check_handles(handles)
        seeds = seeds if seeds is not None else [None] * len(handles)
        tasks = tasks if tasks is not None else [None] * len(handles)
        if not len(handles) == len(seeds) == len(tasks):
            raise UsageError(f"{len(handles)} handles, but {len(seeds)} seeds and {len(tasks)} tasks")
        each = zip(handles, seeds, tasks, strict=True)
        return await call_all(
            partial(calls_of(handle).begin_reset, seed=seed, task=task) for handle, seed, task in each
        )

    def stats(self) -> PoolStats:
        """How the pool fares at this moment."""
        workers = self._backend.stats() if self._backend else []
        recent = self._backend.recent_seconds() if self._backend else []
        if self._inline_host.clock.calls or not workers:
            workers.append(self._inline_host.stats())
        return PoolStats(
            workers=tuple(workers),
            envs=len(self._placement.bindings),
            queued=sum(worker.queued for worker in workers),
            calls=sum(worker.calls for worker in workers),
            restarts=sum(worker.restarts for worker in workers),
            restored=self._rules.restored,
            moved=self._placement.moved,
            seconds=Durations.of([*recent, *self._inline_host.clock.recent()]),
            quarantined=self._placement.quarantine.names(),
        )

    def _check_descriptors(self) -> None:
        """Raise if there are too few file descriptors: before the start, not in the middle of a run."""
        used, allowed, _ = count_descriptors()
        needed = used + self._workers * FDS_PER_WORKER + _FDS_SPARE
        if needed > allowed:
            raise PoolError(
                f"{self._workers} workers need {needed} file descriptors ({used} are open), but only {allowed} are "
                f"allowed: raise the limit with `ulimit -n {needed}`, or use fewer workers"
            )


def _places(options: Any) -> WorkerPlaces:
    kind: Any = load_factory(_RAY_OPTIONS)
    if options is None:
        made: WorkerPlaces = kind()
        return made
    if not isinstance(options, kind):
        raise UsageError(f"ray={options!r:.100} is not RayOptions(...)")
    places: WorkerPlaces = options
    return places


def _check_handles(handles: Sequence[EnvHandle]) -> None:
    for handle in handles:
        if not isinstance(handle, EnvHandle):
            raise UsageError(f"an env that pool.open() gave is needed, not a {type(handle).__name__}")
