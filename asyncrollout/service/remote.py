"""`RemoteEnvPool`: a pool whose envs live at servers, on this machine or others."""

import os
import secrets
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

from asyncrollout import validation
from asyncrollout.errors import ClosedError, PoolError, UnknownEnvError, UsageError
from asyncrollout.pool.binding import EnvBinding
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.pool.hosts import Backend, EnvHost
from asyncrollout.pool.pool import EnvDescription, EnvPool
from asyncrollout.pool.wire.messages import OpenRequest
from asyncrollout.pool.worker.env_factory import own_copies
from asyncrollout.protocols import EnvRecording
from asyncrollout.registry import EnvRef, EnvSpec
from asyncrollout.service.access import VARIABLE
from asyncrollout.service.remote_host import RemoteHost
from asyncrollout.types import TextOptions, WorkerStats


class RemoteEnvPool(EnvPool):
    """An `EnvPool` whose envs live at `asyncrollout serve`, at one address or several; all else is the same.

    An env is opened by a name that the server knows. `token` defaults to $ASYNCROLLOUT_TOKEN. A lost connection is
    retried for `patience` seconds, and calls in flight are never made twice. An env whose server is gone, or no longer
    has it, is replayed there or elsewhere, as after the death of a worker; if no server can be reached for `patience`
    seconds, that is a `PoolError`. A server that was given up is used again once it is back.
    """

    takes_states = False  # an env may unpickle its own, which no server accepts from a network

    def __init__(
        self,
        url: str | list[str] | tuple[str, ...],
        *,
        token: str | None = None,
        patience: float = 10.0,
        max_restarts: int = 10,
    ) -> None:
        self._urls = [checked_address(one) for one in (url if isinstance(url, list | tuple) else [url])]
        if not self._urls:
            raise UsageError("a remote pool needs the address of a server")
        validation.check_seconds("patience", patience)
        super().__init__(len(self._urls), max_restarts=max_restarts)
        self._token = os.environ.get(VARIABLE) if token is None else token
        self._patience = patience

    def _make_backend(self) -> Backend:
        return RemoteBackend(self._urls, token=self._token, patience=self._patience)

    def find(self, env: EnvRef) -> EnvSpec:
        """What is known about an env here; the server may know more envs."""
        if not isinstance(env, str | EnvSpec):
            raise UsageError(f"{env!r:.100}: a server knows its envs by name; code is not sent there")
        try:
            return super().find(env)
        except UnknownEnvError:
            return EnvSpec(name=str(env), factory=str(env))

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
        """An env that the server knows by this name; `worker` is the index of the server to use.

        `beside` starts it at the server of another env.
        """
        self.check_open()
        spec = self.find(env)
        if record is not None:
            raise UsageError(f"env {spec.name!r} lives at a server: a remote pool records no videos")
        given = {"text": text, "expert": expert or None}
        kwargs = own_copies({**spec.kwargs, **env_kwargs})
        kwargs |= {key: value for key, value in given.items() if value is not None}
        self._check_rank(spec.name, worker)
        there = EnvSpec(name=spec.name, factory=spec.name, kwargs=kwargs, replayable=spec.replayable)
        return self._handle(OpenRequest(there, text=False, expert=False, options=TextOptions()), worker, beside=beside)

    def describe(self, binding: EnvBinding) -> EnvDescription:
        opening = binding.opening
        kwargs = dict(opening.spec.kwargs)
        text, expert = kwargs.pop("text", None), bool(kwargs.pop("expert", False))
        return EnvDescription(opening.spec.name, kwargs, text, expert, binding.pinned)

    def _lives_on_loop(self, opening: OpenRequest, pinned: int | None) -> bool:  # noqa: ARG002
        return False


class RemoteBackend:
    """The servers of a pool, as its backend."""

    def __init__(self, urls: Sequence[str], *, token: str | None, patience: float) -> None:
        options: Any = {"client_id": secrets.token_hex(16), "token": token, "patience": patience}
        self._hosts = [RemoteHost(rank, url, on_back=self._notify, **options) for rank, url in enumerate(urls)]
        self._patience = patience
        self._changed = anyio.Event()
        self._closed = False

    @property
    def hosts(self) -> Sequence[EnvHost]:
        return [host for host in self._hosts if host.usable]

    @property
    def ranks(self) -> Collection[int]:
        return range(len(self._hosts))

    async def start(self, tasks: TaskGroup) -> None:
        for host in self._hosts:
            await tasks.start(host.run)

    async def stop(self) -> None:
        self._closed = True
        self._notify()
        async with anyio.create_task_group() as tasks:
            for host in self._hosts:
                tasks.start_soon(host.close)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_usable(self, rank: int | None, avoided: Collection[int] = ()) -> Sequence[EnvHost]:  # noqa: ARG002
        wanted = self._hosts if rank is None else [self._hosts[rank]]
        usable = [host for host in wanted if host.usable]
        with anyio.move_on_after(self._patience):
            while not usable and not self._closed and not any(host.just_lost for host in wanted):
                await self._changed.wait()
                usable = [host for host in wanted if host.usable]
        if self._closed:
            raise ClosedError("the pool is closed")
        if not usable:
            what = "no server is left" if rank is None else f"its server, {wanted[0].url} (worker={rank}), is away"
            raise PoolError(f"{what}: " + "; ".join(str(host.trouble) for host in wanted))
        return usable

    async def wait_idle(self) -> None:
        """Return at once: each server balances the load in its own pool."""

    def stats(self) -> list[WorkerStats]:
        return [host.stats() for host in self._hosts]

    def recent_seconds(self) -> list[float]:
        return [seconds for host in self._hosts for seconds in host.clock.recent()]


def checked_address(url: Any) -> str:
    """The address of a server, without a trailing slash; anything else is refused."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r:.200} is not the address of a server: write it as http://host:8200")
    if parts.username or parts.password or parts.query:
        raise UsageError(
            f"the address of {parts.hostname} must not contain a user, password or query: pass a token as token="
        )
    return str(url).rstrip("/")
