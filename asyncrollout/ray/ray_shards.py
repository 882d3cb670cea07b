"""Shards of `Rollouts` on the nodes of a Ray cluster: Ray places, starts and kills them; a socket carries frames."""

import os
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec

from asyncrollout import __version__, validation
from asyncrollout.concurrency import Background
from asyncrollout.errors import PoolError, UsageError
from asyncrollout.machine import FDS_SPARE, count_descriptors
from asyncrollout.pool.wire.main_module import MainModule
from asyncrollout.ray.cluster import ClusterLease, import_ray
from asyncrollout.ray.room import ActorDemand, ClusterUsage, missing_now, missing_room
from asyncrollout.rollouts.shards.shard_socket import (
    SECRET_BYTES,
    BeatWatch,
    ShardAddress,
    ShardConnection,
    ShardListener,
    SocketChannel,
    connect_shard,
)

_START_LIMIT = 60.0  # seconds from the moment when there is room for it
_CALL_LIMIT = 20.0  # seconds that the cluster may take to answer
_END_LIMIT = 10.0
_FDS_PER_SHARD = 2  # its frames, and the sign that it lives


class RayShards(msgspec.Struct, frozen=True):
    """Where and how the shards of `Rollouts(shards=RayShards(8))` run: each is an actor.

    The rest is as in `RayOptions`. A shard's pool has a worker for each of its `num_cpus`, unless `Rollouts(workers=)`
    says how many; envs that need no worker have none.
    """

    count: int
    address: str | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    wait: float = 5.0
    runtime_env: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        validation.check_int("RayShards: count", self.count, 1)
        validation.check_seconds("wait", self.wait)
        if self.runtime_env is not None and not isinstance(self.runtime_env, dict):
            raise UsageError(f"runtime_env={self.runtime_env!r:.100} is not a dict")
        self.demand()

    def demand(self) -> ActorDemand:
        return ActorDemand(num_cpus=self.num_cpus, num_gpus=self.num_gpus, resources=self.resources, labels=self.labels)

    @property
    def workers(self) -> int:
        return max(int(self.num_cpus), 1)

    def launcher(self) -> "RayShardLauncher":
        """For `Rollouts`."""
        return RayShardLauncher(self)


class ShardActorOrder(msgspec.Struct, frozen=True):
    """What an actor needs to know before the trainer connects to it."""

    version: str
    secret: bytes
    main: MainModule
    path: list[str]
    working_directory: str | None


class ShardActor:
    """Made by Ray. `run` takes as long as its shard lives."""

    def __init__(self) -> None:
        self._listener: ShardListener | None = None

    def listen(self, order: ShardActorOrder) -> tuple[ShardAddress, str]:
        """Where it waits for the trainer, and the name of its node."""
        if order.version != __version__:
            raise RuntimeError(f"this node has asyncrollout {__version__}, and the program {order.version}")
        if order.working_directory is not None:
            with suppress(OSError):
                os.chdir(order.working_directory)
        sys.path.extend(entry for entry in order.path if entry not in sys.path)
        order.main.install()
        ray = import_ray()
        host: str = ray.util.get_node_ip_address()
        self._listener = ShardListener(host, order.secret)
        return self._listener.address, f"{host}/{ray.get_runtime_context().get_node_id()[:8]}"

    def run(self) -> None:
        assert self._listener is not None
        self._listener.serve()


class RayShardLauncher:
    """Creates actors, and kills them; says what a cluster lacks that has no room for them."""

    def __init__(self, options: RayShards) -> None:
        self._options = options
        self._lease: ClusterLease | None = None
        self._watch = BeatWatch()
        self._background = Background()
        self._create: Callable[[], Any] | None = None
        self._lacks_room: Callable[[], str] = str

    async def __aenter__(self) -> Self:
        self._check_descriptors()
        self._lease = lease = await ClusterLease.take(self._options.address)
        try:
            await anyio.to_thread.run_sync(self._prepare, lease.ray)
            await self._background.open()
        except BaseException:
            await lease.give_back()
            raise
        self._background.start_soon(self._watch.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lease is not None
        try:
            await self._background.close(error)
        finally:
            await self._lease.give_back()

    async def start(self, name: str, on_silent: Callable[[str], None]) -> "RayShardProcess":
        assert self._lease is not None
        assert self._create is not None
        actor = None
        try:
            with anyio.fail_after(_CALL_LIMIT):
                actor = await anyio.to_thread.run_sync(self._create, abandon_on_cancel=True)
            secret = secrets.token_bytes(SECRET_BYTES)
            address, node = await self._listening(actor, name, secret)
            ended = actor.run.remote()
            connection = await connect_shard(ShardAddress(*address), secret, self._watch, on_silent)
        except PoolError:
            await self._kill(actor)
            raise
        except Exception as error:  # Ray raises all sorts
            await self._kill(actor)
            raise PoolError(f"shard {name} cannot start: {type(error).__name__}: {error}") from error
        except BaseException:
            await self._kill(actor)
            raise
        return RayShardProcess(node, connection, partial(self._kill, actor), ended)

    def _check_descriptors(self) -> None:
        """Raise if there are too few file descriptors: before the start, not in the middle of a run."""
        used, allowed, _ = count_descriptors()
        needed = used + self._options.count * _FDS_PER_SHARD + FDS_SPARE
        if needed > allowed:
            raise PoolError(
                f"{self._options.count} shards need {needed} file descriptors ({used} are open), but only {allowed} "
                f"are allowed: raise the limit with `ulimit -n {needed}`, or use fewer shards"
            )

    def _prepare(self, ray: Any) -> None:
        demand, count = self._options.demand(), self._options.count
        given = demand.actor_options()
        if self._options.runtime_env is not None:
            given["runtime_env"] = self._options.runtime_env

        def usage() -> ClusterUsage:
            return ClusterUsage(ray.cluster_resources(), ray.available_resources())

        def lacks_room() -> str:
            lack = missing_room(demand, count, "shards", ray.nodes())
            return lack or missing_now(demand, count, "shards", usage(), before)

        before = usage()
        self._create, self._lacks_room = ray.remote(**given)(ShardActor).remote, lacks_room

    async def _listening(self, actor: Any, name: str, secret: bytes) -> Any:
        """Its address and its node, once it runs; an error within seconds if the cluster has no room for it."""
        has_own_directory = bool(self._options.runtime_env and self._options.runtime_env.get("working_dir"))
        order = ShardActorOrder(
            version=__version__,
            secret=secret,
            main=MainModule.of_this_process(),
            path=[entry for entry in sys.path if isinstance(entry, str)],
            working_directory=None if has_own_directory else str(Path.cwd()),
        )
        listening = actor.listen.remote(order)
        for seconds in (self._options.wait, _START_LIMIT):
            with anyio.move_on_after(seconds):
                return await listening
            lack: str | None = None
            with anyio.move_on_after(_CALL_LIMIT):
                lack = await anyio.to_thread.run_sync(self._lacks_room, abandon_on_cancel=True)
            if lack is None:
                lack = f"the Ray cluster has not answered for {_CALL_LIMIT:g} s; is its head node gone?"
            if lack:
                raise PoolError(f"shard {name} cannot start: {lack}")
        raise PoolError(f"shard {name} did not start within {_START_LIMIT:g} s, although the cluster has room for it")

    async def _kill(self, actor: Any) -> None:
        if actor is None or self._lease is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CALL_LIMIT), suppress(Exception):
            kill = partial(self._lease.ray.kill, actor, no_restart=True)
            await anyio.to_thread.run_sync(kill, abandon_on_cancel=True)


class RayShardProcess:
    """An actor at work."""

    def __init__(self, node: str, connection: ShardConnection, kill: Callable[[], Any], ended: Any) -> None:
        self.node = node
        self._connection = connection
        self._kill = kill
        self._ended = ended

    @property
    def channel(self) -> SocketChannel:
        return self._connection.channel

    async def kill(self) -> None:
        self._connection.close()
        await self._kill()
        with anyio.move_on_after(_END_LIMIT), suppress(Exception):  # its end is an error, too
            await self._ended
