"""Environments on Ray: the options of such a pool, and its backend."""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from asyncrollout import validation
from asyncrollout.errors import PoolError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.hosts import PoolLimits
from asyncrollout.pool.process.backend import WorkerEnv, WorkerRank, WorkersBackend
from asyncrollout.ray import orders
from asyncrollout.ray.actor import WorkerActor
from asyncrollout.ray.actor_rank import ActorRank, ClusterCalls, LifeSettings
from asyncrollout.ray.call_transport import FRAMES_GROUP
from asyncrollout.ray.cluster import ClusterLease, is_answering
from asyncrollout.ray.listener import WorkerListener
from asyncrollout.ray.room import ActorDemand, ClusterUsage, missing_now, missing_room

log = get_logger(__name__)

_HEAD_LOOK = 5.0  # seconds between two looks, and for one to be answered
_HEAD_LOOKS = 4  # in vain, until the head is given up; Ray ends the program after 60 s
_TRANSPORTS = ("socket", "ray")
_FRAME_THREADS = 2  # one to send, one to receive


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how the workers of `EnvPool(backend="ray")` run: each is an actor.

    `address` is that of a cluster, "auto" for one on this machine, or "local" to start one. Without it, the pool uses
    the program's own connection (`ray.init`), $RAY_ADDRESS, or "local". Each actor takes `num_cpus`, `num_gpus` and
    `resources` of a node with these `labels`. Steps travel over a socket; `transport="ray"` has Ray carry them, slowly,
    where only its own ports are open. `wait` is how many seconds the cluster may lack room before that is an error;
    set it high where a cluster grows on demand. `runtime_env` is Ray's, such as `{"working_dir": "."}`.
    """

    address: str | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    transport: Literal["socket", "ray"] = "socket"
    wait: float = 5.0
    runtime_env: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        validation.check_choice("transport", self.transport, _TRANSPORTS)
        validation.check_seconds("wait", self.wait)
        if self.runtime_env is not None and not isinstance(self.runtime_env, dict):
            raise UsageError(f"runtime_env={self.runtime_env!r:.100} is not a dict")
        self.demand()

    def demand(self) -> ActorDemand:
        return ActorDemand(num_cpus=self.num_cpus, num_gpus=self.num_gpus, resources=self.resources, labels=self.labels)

    def make_backend(
        self,
        workers: int,
        *,
        limits: PoolLimits,
        worker_env: WorkerEnv | None,
        log_dir: Path | None,
        send_snapshots: bool,
    ) -> "RayBackend":
        """For the pool."""
        return RayBackend(
            workers, self, limits=limits, worker_env=worker_env, log_dir=log_dir, send_snapshots=send_snapshots
        )


class RayBackend(WorkersBackend):
    """`workers` processes on the nodes of a Ray cluster."""

    def __init__(
        self,
        workers: int,
        options: RayOptions,
        *,
        limits: PoolLimits,
        worker_env: WorkerEnv | None,
        log_dir: Path | None,
        send_snapshots: bool,
    ) -> None:
        super().__init__(workers, limits, worker_env)
        self._workers = workers
        self._options = options
        self._log_dir = None if log_dir is None else str(log_dir.absolute())
        self._send_snapshots = send_snapshots
        self._lease: ClusterLease | None = None
        self._listener: WorkerListener | None = None
        self._head_is_gone: list[str] = []  # its address, once nothing is to be asked of it any more

    async def _make_ranks(self, root: Path) -> Sequence[WorkerRank]:
        self._lease = lease = await ClusterLease.take(self._options.address)
        if self._options.transport == "socket":
            self._listener = WorkerListener()
            await self._listener.open(lease.node_ip)
        settings = LifeSettings(
            root=root,
            probe=secrets.token_bytes(32),
            limits=self._limits,
            send_snapshots=self._send_snapshots,
            log_dir=self._log_dir,
            working_directory=None if self._has_own_directory() else str(Path.cwd()),
            wait=self._options.wait,
        )
        (root / orders.PROBE).write_bytes(settings.probe)
        calls = await anyio.to_thread.run_sync(_calls, lease.ray, self._options, self._workers)
        calls = calls._replace(kill=partial(self._kill, calls.kill))
        return [
            ActorRank(
                rank,
                calls,
                self._listener,
                settings,
                environ=environ,
                watch=self._watch,
                on_change=self._on_change,
                on_idle=self._on_idle,
            )
            for rank, environ in enumerate(self._environs)
        ]

    def _kill(self, kill: Callable[[Any], None], actor: Any) -> None:
        if not self._head_is_gone:  # without it, an actor ends with its connections
            kill(actor)

    def _has_own_directory(self) -> bool:
        return bool(self._options.runtime_env and self._options.runtime_env.get("working_dir"))

    async def start(self, tasks: TaskGroup) -> None:
        await super().start(tasks)
        assert self._lease is not None  # the ranks were made
        tasks.start_soon(self._watch_head, self._lease.head)

    async def _watch_head(self, address: str) -> None:
        """End in good order, as steps still can, before Ray ends the program a minute after the loss of its head."""
        looks = 0
        while True:
            await anyio.sleep(_HEAD_LOOK)
            looks = 0 if await is_answering(address, _HEAD_LOOK) else looks + 1
            if looks == 1:
                log.warning("ray_head_silent", address=address)
            if looks >= _HEAD_LOOKS:
                self._head_is_gone.append(address)
                raise PoolError(
                    f"the head node of the Ray cluster at {address} is gone: Ray ends every program that is connected "
                    "to it. Start the cluster again, and resume the run"
                )

    async def _release(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        if self._lease is not None and not self._head_is_gone:  # else it would wait for an answer
            await self._lease.give_back()


def _calls(ray: Any, options: RayOptions, workers: int) -> ClusterCalls:
    """Before there is any actor."""
    demand = options.demand()
    given = demand.actor_options()
    if options.runtime_env is not None:
        given["runtime_env"] = options.runtime_env
    if options.transport == "ray":
        given["concurrency_groups"] = {FRAMES_GROUP: _FRAME_THREADS}
    actor = ray.remote(**given)(WorkerActor)

    def usage() -> ClusterUsage:
        return ClusterUsage(ray.cluster_resources(), ray.available_resources())

    def lacks_room() -> str:
        lack = missing_room(demand, workers, "workers", ray.nodes())
        return lack or missing_now(demand, workers, "workers", usage(), before)

    before = usage()
    return ClusterCalls(create=actor.remote, kill=partial(ray.kill, no_restart=True), lacks_room=lacks_room)
